"""Training on a GPU: each way to run a step trains the same model, and a resumed run is the same to the bit."""

import os
import signal

import numpy as np
import pytest
import torch

from statespan import models
from statespan.data.base import Arrays, Batch, Dataset, Info
from statespan.data.tokens import shift
from statespan.train import Interrupted, NonFiniteError
from statespan.train.checkpoint import latest
from statespan.train.loop import Loop
from statespan.train.run import build_model
from tests.train.make import assert_same, flip, recipe, run

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

LENGTH, WAYS = 96, ["none", "graph", "compile", "both"]


def prepare(rows):
    return Batch(rows["x"].float() / 255, rows["y"].long(), rows["lengths"].long())


def split(n, seed):
    random = np.random.default_rng(seed)
    x = random.integers(0, 255, (n, LENGTH, 2), dtype=np.uint8)
    lengths = random.integers(LENGTH // 2, LENGTH + 1, n)
    return Arrays({"x": x, "y": (x[:, :, 0].mean(1) > 127).astype(np.uint8), "lengths": lengths}, prepare)


def data():
    info = Info("classification", LENGTH, 2, None, 2)
    return Dataset("made up", info, split(40, 1), split(9, 2), split(9, 3), flip)


SETTINGS = {"epochs": 2, "batch": 8, "accumulate": 2, "ema": 0.9, "clip": 1.0, "precision": "bf16"}


def network(info, dropout=0.1):
    options = {"d_model": 32, "d_state": 16, "n_layers": 2, "layer": "s4d", "bidirectional": True}
    return models.build("classifier", info, {**options, "mix": "glu", "norm": "layer", "dropout": dropout})


@pytest.mark.parametrize("group_lengths", [False, True])  # with it, batches have one of two shapes
@pytest.mark.parametrize("way", WAYS[1:])
def test_every_way_trains_the_same(way, group_lengths, tmp_path):
    """With the same dropout as a graph; a compiler draws its own, so there without any."""

    def model(info):
        return network(info, 0.1 if way == "graph" else 0.0)

    for each in ("none", way):
        run(tmp_path / each, {**SETTINGS, "compile": each, "group_lengths": group_lengths}, data=data(), model=model)
    plain, other = (latest(tmp_path / each / "checkpoints")[0] for each in ("none", way))
    start = build_model(recipe(**SETTINGS), data(), model).state_dict()
    assert plain.keys() == other.keys()
    for name in start:
        moved = (plain[f"model/{name}"] - start[name]).norm()
        bound = 1e-3 if way == "graph" else 0.1  # learning rates are float32 in a graph; 16 bits round elsewhere
        assert (plain[f"model/{name}"] - other[f"model/{name}"]).norm() <= bound * moved + 1e-6, name


LAYERS = {
    "s4": {"layer": "s4"},
    "s4, rank two": {"layer": "s4", "ssm": {"init": "legt"}},
    "s4, both halves": {"layer": "s4", "ssm": {"init": "legs/fout", "n_ssm": 2}},
    "dss": {"layer": "dss"},
    "lssl": {"layer": "lssl"},
    "s5": {"layer": "s5"},
    "lru": {"layer": "lru"},
    "the norm behind": {"layer": "s4d", "prenorm": False},
    "batch norm": {"layer": "s4d", "norm": "batch"},
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_can_be_a_graph(name, tmp_path):
    """Nothing in its step waits for the device."""
    options = {"d_model": 32, "d_state": 16, "n_layers": 2, **LAYERS[name]}
    for way in ("none", "graph"):
        run(tmp_path / way, {**SETTINGS, "epochs": 1, "compile": way}, data=data(),
            model=lambda info: models.build("classifier", info, options))  # fmt: skip
    plain, graph = (latest(tmp_path / way / "checkpoints")[0] for way in ("none", "graph"))
    for key, value in plain.items():
        if key.startswith("model/"):
            assert (value - graph[key]).norm() <= 1e-3 * value.norm() + 1e-6, key


def test_a_language_model_can_be_a_graph(tmp_path):
    """Its adaptive softmax knows how many tokens are in a cluster only by waiting; in a graph it does without."""

    def text(n, seed):
        return Arrays({"text": np.random.default_rng(seed).integers(0, 500, (n, LENGTH + 1), dtype=np.int32)}, shift)

    dataset = Dataset("made up", Info("language", LENGTH, None, 500, 500), text(24, 1), text(4, 2), text(4, 3))
    options = {"d_model": 32, "d_state": 16, "n_layers": 1, "cutoffs": [50, 200], "dropout": 0.0}
    for way in ("none", "graph"):
        run(tmp_path / way, {**SETTINGS, "epochs": 1, "compile": way}, data=dataset,
            model=lambda info: models.build("language", info, options))  # fmt: skip
    plain, graph = (latest(tmp_path / way / "checkpoints")[0] for way in ("none", "graph"))
    for key, value in plain.items():
        if key.startswith("model/"):
            assert (value - graph[key]).norm() <= 1e-3 * value.norm() + 1e-6, key


@pytest.mark.parametrize("way", WAYS)
def test_resumed_is_the_same_to_the_bit(way, tmp_path, monkeypatch):
    settings = {**SETTINGS, "compile": way}
    run(tmp_path / "whole", settings, data=data(), model=network)
    advance = Loop.advance

    def stopped(self, batches):
        advance(self, batches)
        if self.progress.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Loop, "advance", stopped)
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", settings, data=data(), model=network)
    run(tmp_path / "cut", settings, resume=True, data=data(), model=network)
    assert_same(tmp_path / "cut", tmp_path / "whole")


def test_numbers_that_are_not_finite_stop_a_graph(tmp_path):
    class Bad(torch.nn.Module):
        def __init__(self, info):
            super().__init__()
            self.inner = network(info)
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x, lengths=None):
            self.steps.add_(self.training)
            return self.inner(x, lengths=lengths) * torch.where(self.steps > 8, torch.nan, 1.0)

    with pytest.raises(NonFiniteError, match="not finite in step 4"):
        run(tmp_path, {"epochs": 2, "batch": 8, "accumulate": 2, "compile": "graph"}, data=data(), model=Bad)
