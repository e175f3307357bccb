"""train.select: which split selects the best weights, lowers the rate and ends the run."""

import csv
import json
from dataclasses import replace

import pytest
import torch

from statespan.data.base import Info
from statespan.plot.runs import curves
from statespan.train import ConfigError, Train, evaluate, load_run, read_recipe
from statespan.train import loop as loops
from statespan.train.checkpoint import at_step
from statespan.train.device import OneProcess
from statespan.train.loop import Loop, Splits
from statespan.train.sinks import Memory
from statespan.train.state import part
from statespan.train.tasks import TASKS
from tests.train.make import Toy, dataset, recipe, run, state

EVERY = {"epochs": 4, "validate_every": 1, "keep": 99, "lr": 0.05}
VALID = [0.5, 0.7, 0.6, 0.4, 0.4, 0.4]
TEST = [0.5, 0.4, 0.4, 0.8, 0.4, 0.4]


def log(folder):
    return list(csv.DictReader((folder / "log.csv").read_text().splitlines()))


def made_up(monkeypatch, valid=VALID, test=TEST):
    """Scores in the order of validations, and 0 of the final tests; returns the splits asked for."""
    scores, asked = {"valid": iter(valid), "test": iter(test)}, []

    def measure(self, split, **_):
        asked.append(split)
        return {"loss": 1.0, "accuracy": next(scores[split], 0.0)}

    monkeypatch.setattr(loops.Loop, "measure", measure)
    return asked


@pytest.mark.parametrize(("select", "best"), [("valid", 2), ("test", 4)])
def test_the_chosen_split_selects(select, best, tmp_path, monkeypatch):
    asked = made_up(monkeypatch)
    result = run(tmp_path, {"epochs": 1, "validate_every": 1, "select": select})
    assert (result.best_step, result.steps) == (best, 6)
    assert asked == [select] * 6 + ["test", "valid", "test"]  # the last three are the result's


def test_the_best_weights_are_those_of_the_best_test_score(tmp_path):
    """With the weights of every step at hand, each is tested anew in float64; the loss breaks ties."""
    data = dataset()
    result = run(tmp_path, {**EVERY, "select": "test"}, data=data)
    scores = {}
    for step in range(1, result.steps + 1):
        tensors, _ = at_step(tmp_path / "checkpoints", step)
        model = Toy().double()
        model.load_state_dict({name: value.double() for name, value in part(tensors, "model").items()})
        batch = data.test.batch(list(range(len(data.test))))
        answers = model(batch.x.double())
        hits = (answers.argmax(-1) == batch.y).double().mean().item()
        scores[step] = (round(hits, 9), -round(torch.nn.functional.cross_entropy(answers, batch.y).item(), 5))
    assert result.best_step == max(scores, key=scores.__getitem__)
    assert result.test["accuracy"] == pytest.approx(scores[result.best_step][0])
    assert len({hits for hits, _ in scores.values()}) > 2  # the score did change in training


def test_the_record_says_what_selected(tmp_path):
    data = dataset()
    chosen = run(tmp_path / "test", {**EVERY, "select": "test"}, data=data)
    record = json.loads((tmp_path / "test/result.json").read_text())
    assert record["recipe"]["train"]["select"] == "test"
    assert read_recipe(tmp_path / "test/recipe.yaml").train.select == "test"
    assert set(record["history"]) == {"epoch", "seconds", "train_loss", "test_accuracy"}
    assert max(record["history"]["test_accuracy"]) == pytest.approx(chosen.test["accuracy"], rel=1e-5)
    columns = log(tmp_path / "test")[0].keys()
    assert {"test_loss", "test_accuracy"} < columns
    assert not [name for name in columns if name.startswith("valid")]  # nothing is called what it is not
    again = evaluate(tmp_path / "test", data=data, model=Toy)
    assert again == pytest.approx(chosen.test, rel=1e-6)
    figure = curves({"run": tmp_path / "test"})
    assert [line.get_label() for line in figure.axes[1].lines] == ["test accuracy"]


def test_the_honest_form_has_the_same_bits_as_before(tmp_path):
    """Saying valid changes nothing, and test changes what is chosen but nothing of the training."""
    data = dataset()
    plain, said, other = (tmp_path / name for name in ("plain", "said", "other"))
    first = run(plain, EVERY, data=data)
    second = run(said, {**EVERY, "select": "valid"}, data=data)
    third = run(other, {**EVERY, "select": "test"}, data=data)
    assert state(plain) == state(said)
    assert (first.test, first.valid, first.best_step) == (second.test, second.valid, second.best_step)
    bits = [{key: value for key, value in state(folder).items() if "/" in key} for folder in (plain, other)]
    assert bits[0] == bits[1]
    assert len(bits[0]) > 8
    assert third.test["accuracy"] >= first.test["accuracy"]


def test_the_plateau_and_the_patience_follow_it(tmp_path, monkeypatch):
    """Validation improves all the time, the test score never after the first."""
    made_up(monkeypatch, [0.1 + i / 100 for i in range(50)], [0.5] + 50 * [0.4])
    train = {"epochs": 9, "patience": 5, "schedule": "plateau", "plateau_patience": 1, "factor": 0.5, "log_every": 6}
    result = run(tmp_path, {**train, "warmup": 0, "select": "test"})
    assert (result.steps, result.best_step) == (36, 6)
    rates = [float(row["lr"]) for row in log(tmp_path) if row["lr"]]
    assert rates == pytest.approx([0.01, 0.01, 0.01, 0.005, 0.005, 0.0025])


def test_a_resumed_run_keeps_it(tmp_path):
    run(tmp_path / "cut", {**EVERY, "epochs": 2, "schedule": "constant", "select": "test"})
    with pytest.raises(
        ConfigError, match=r"^train\.select is 'valid'; allowed: 'test', the value of the run to resume$"
    ):
        run(tmp_path / "cut", {**EVERY, "schedule": "constant"}, resume=True)
    longer = run(tmp_path / "cut", {**EVERY, "schedule": "constant", "select": "test"}, resume=True)
    straight = run(tmp_path / "straight", {**EVERY, "schedule": "constant", "select": "test"})
    assert (longer.best_step, longer.test) == (straight.best_step, straight.test)


NONE = r"^train\.select is test; allowed: valid, as this data has no test split of its own$"


@pytest.mark.parametrize("kind", ["the same", "empty"])
def test_data_without_a_test_split_of_its_own_is_refused(kind, tmp_path):
    data = dataset()
    data = replace(data, test=data.valid) if kind == "the same" else dataset(test=0)
    with pytest.raises(ConfigError, match=NONE):
        run(tmp_path, {"select": "test"}, data=data)


def test_training_in_memory_without_a_test_split_is_refused():
    data = dataset()
    with pytest.raises(ConfigError, match=NONE):
        Loop(
            Train(batch=4, select="test"),
            Splits(data.train, data.valid),
            Toy(Info("classification", length=5, d_input=2, vocabulary=None, d_output=3)),
            task=TASKS["classification"],
            processes=OneProcess(torch.device("cpu")),
            sink=Memory(),
        )


def test_where_no_score_decides_it_is_refused():
    message = r"^train\.select is test; allowed: valid, as no score decides \(train\.test_weights is last\)$"
    with pytest.raises(ConfigError, match=message):
        recipe(select="test", test_weights="last")
    assert recipe(select="test", test_weights="last", patience=3).train.select == "test"
    assert recipe(select="test", test_weights="last", schedule="plateau").train.select == "test"
    with pytest.raises(ConfigError, match=r"^train\.select is train; allowed: one of valid, test"):
        recipe(select="train")


def test_the_published_model_of_such_a_run_is_the_one_that_tested_best(tmp_path):
    data = dataset()
    result = run(tmp_path, {**EVERY, "select": "test"}, data=data)
    model, *_ = load_run(tmp_path, data=data, model=Toy)
    tensors, _ = at_step(tmp_path / "checkpoints", result.best_step)
    for name, value in part(tensors, "model").items():
        assert torch.equal(model.state_dict()[name], value), name
