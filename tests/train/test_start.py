"""Beginning with trained weights: which are taken, what is remembered, and what is refused."""

import json

import pytest
import torch

from statespan import models
from statespan.data.base import Dataset, Info
from statespan.data.tokens import documents, join
from statespan.models.pretrained import read
from statespan.papers.datasets.text import hide
from statespan.train import ConfigError, Interrupted, fit, read_recipe
from statespan.train.checkpoint import at_step, latest
from statespan.train.start import begin
from tests.train.make import assert_same
from tests.train.test_lengths import dataset
from tests.train.test_resume import stop_at  # noqa: F401

MODEL = {"d_model": 4, "d_state": 4, "n_layers": 2, "layer": "s4d", "bidirectional": True}
HEAD = {"head.linear.weight", "head.linear.bias"}


def recipe(name, model=None, **train):
    settings = {"epochs": 2, "batch": 6, "log_every": 3, "tensorboard": False, "group_lengths": True, **train}
    chosen = {"name": name, **MODEL, **(model or {})}
    return read_recipe({"name": f"words-{name}", "data": {"name": "words"}, "model": chosen, "train": settings})


def run(folder, name, model=None, resume=False, **train):
    data = hide(dataset(), 0.4, True) if name == "masked" else dataset()
    return fit(recipe(name, model, **train), folder, resume=resume, data=data, progress=False, device="cpu")


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "learnt"
    run(folder, "masked", epochs=3)
    return folder


def test_finding_hidden_words_is_learnt(tmp_path):
    """Of six words as frequent as one another, one stands at every place of a row: what is seen tells the hidden."""

    def split(n):
        words = [torch.full((10 + i % 6,), 2 + i % 6, dtype=torch.uint8).numpy() for i in range(n)]
        return documents(join(words, "uint8"), torch.zeros(n, dtype=torch.uint8).numpy(), 20)

    data = Dataset("words", Info("classification", 20, None, 8, 3), split(70), split(14), split(14))
    chosen = recipe("masked", epochs=30, lr=0.03)
    made = fit(chosen, tmp_path / "run", data=hide(data, 0.4, True), progress=False, device="cpu")
    assert made.metric == "perplexity"
    assert made.test["perplexity"] < 1.5  # 6 for one that does not look


def test_takes_what_fits(learnt):
    """The encoder and the layers; the new head stays as it was drawn."""
    network = models.build("classifier", dataset().info, MODEL)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    facts = begin(network, str(learnt))
    found, after = read(learnt / "model").tensors, network.state_dict()
    taken = {name for name in after if torch.equal(after[name], found.get(name, torch.zeros(0)))}
    assert {name for name in after if name not in taken} == HEAD
    assert all(torch.equal(after[name], before[name]) for name in HEAD)
    result = json.loads((learnt / "result.json").read_text())
    assert (facts["tensors"], facts["of"]) == (len(taken), len(after))
    assert facts["tensors"] == facts["of"] - len(HEAD)
    assert facts["name"] == facts["recipe"]["name"] == "words-masked"
    assert facts["steps"] == 24
    assert facts["wall_seconds"] == result["wall_seconds"]


def test_first_step_is_from_them(learnt, tmp_path):
    """A run that takes no real step has them still, and says so; the next one counts both times."""
    run(tmp_path / "run", "classifier", steps=1, lr=1e-12, ssm_lr=1e-12, start=str(learnt))
    found, (tensors, _) = read(learnt / "model").tensors, latest(tmp_path / "run" / "checkpoints")
    for name, tensor in found.items():
        if not name.startswith("tell."):
            torch.testing.assert_close(tensors[f"model/{name}"], tensor, atol=1e-6, rtol=0)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["start"]["name"] == "words-masked"
    assert result["start"] == json.loads((tmp_path / "run" / "start.json").read_text())
    result["overrides"] = [f"train.start={learnt}", "train.steps=1"]
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    made = run(tmp_path / "next", "classifier", steps=1, start=str(tmp_path / "run" / "model"))
    assert made.start["overrides"] == ["train.steps=1"]
    assert made.start["recipe"]["train"]["start"] == "words-masked"  # a name: where it lay is nobody's business
    assert made.start["wall_seconds"] == round(result["wall_seconds"] + result["start"]["wall_seconds"], 2)


def test_no_start_is_not_mentioned(tmp_path):
    assert run(tmp_path, "classifier", steps=1).start is None
    assert "start" not in json.loads((tmp_path / "result.json").read_text())


@pytest.mark.parametrize("step", [0, 5])
def test_resumed_to_the_bit(learnt, tmp_path, stop_at, step):  # noqa: F811
    """Also if nothing was saved before the break, and without the weights if something was."""
    settings = {"ema": 0.9, "start": str(learnt)}
    run(tmp_path / "whole", "classifier", **settings)
    stop_at.add(step)
    with pytest.raises(Interrupted):
        run(tmp_path / "broken", "classifier", **settings)
    if step == 0:
        for path in (tmp_path / "broken" / "checkpoints").iterdir():
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    stop_at.clear()
    made = run(tmp_path / "broken", "classifier", resume=True, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")
    assert made.start["name"] == "words-masked"
    assert at_step(tmp_path / "broken" / "checkpoints", 16)


def test_mistakes(learnt, tmp_path):
    run(tmp_path / "wide", "classifier", {"d_model": 6}, steps=1)
    run(tmp_path / "deep", "classifier", {"n_layers": 3}, steps=1)
    run(tmp_path / "shallow", "classifier", {"n_layers": 1}, steps=1)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "recipe.yaml").touch()
    damaged = tmp_path / "damaged"
    models.build("classifier", dataset().info, MODEL).save_pretrained(damaged)
    next(damaged.glob("*.safetensors")).write_bytes(b"x")
    wrong = {
        "wide": r"weights of the same layers \(backbone\.\S+ is \(.*6.*\) there and \(.*4.*\) here",
        "deep": r"weights of the same layers \(backbone\.\S+ is \(.*\) there and not here",
        "shallow": r"weights of the same layers \(backbone\.\S+ is not there and \(.*\) here",
        "begun": r"an unfinished run; finish it with statespan train \S+begun --resume",
        "damaged": r"it cannot be read: .* is damaged",
        "runs/text-masked-s4d": r"which does not exist; create it with statespan train text-masked-s4d$",
        "nowhere": r"the folder of a finished run or of a saved model, or the name of a published one: there is no",
    }
    for name, message in wrong.items():
        with pytest.raises(ConfigError, match=rf"^train\.start is \S+{name}[;,] .*{message}"):
            run(tmp_path / "run", "classifier", start=str(tmp_path / name))
        assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"^train\.start is 3; allowed: text or null"):
        recipe("classifier", start=3)
