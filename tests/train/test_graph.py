"""The captured step: that it starts from where it was made and trains as the other, with CUDA's calls stood in for."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from statespan.train import loop as loops
from statespan.train.graph import CannotCaptureError, GraphStep
from tests.train.make import Toy, assert_same, dataset, flip, run


@pytest.fixture
def stand_ins(monkeypatch):
    """A graph that, replayed, does what was done while it was captured, without the host touching it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # nothing here is to meet a real one
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(pool=lambda: "pool"))
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool=None, stream=None: contextlib.nullcontext())
    made = []
    set_up, build = loops.Loop._set_up, loops.build_optimizer

    def build_with_tensors(*arguments, **extra):
        optimizer = build(*arguments, **extra)
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])
        return optimizer

    def captured(self):
        set_up(self)
        graph = GraphStep(self.step, self.model, self._examples())
        for shape, batch in graph.batches.items():
            graph.forwards[shape].replay = lambda batch=batch: self.step.piece(batch, last=True)
        graph.rest.replay = self.step.update
        self.updater = graph
        made.append(graph)

    monkeypatch.setattr(loops, "build_optimizer", build_with_tensors)  # whose rates are float32, in both runs

    def start():
        monkeypatch.setattr(loops.Loop, "_set_up", captured)
        return made

    return start


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_it_trains_as_the_plain_step(optimizer, tmp_path, stand_ins):
    arguments = {
        "settings": {"optimizer": optimizer, "ema": 0.8, "accumulate": 2, "clip": 0.5},
        "data": dataset(augment=flip),
        "model": lambda info: Toy(info, 0.3, norm=True),
    }
    run(tmp_path / "plain", **arguments)
    made = stand_ins()
    run(tmp_path / "graph", **arguments)
    assert len(made) == 1
    assert all(p.grad is not None for p in made[0].step.parameters)  # where the graph expects them
    assert_same(tmp_path / "graph", tmp_path / "plain")


def test_a_step_that_waits_is_left_as_it_was(tmp_path, stand_ins, monkeypatch):
    """A model that reads a number back cannot be captured, and trains as if nobody had tried."""
    mode = ["default"]

    class Waits(Toy):
        def forward(self, x):
            if mode[0] == "error":
                raise RuntimeError("called a synchronizing CUDA operation")
            return super().forward(x)

    arguments = {"settings": {"ema": 0.8}, "model": lambda info: Waits(info, 0.3, norm=True)}
    run(tmp_path / "plain", **arguments)
    set_up, refused = loops.Loop._set_up, []

    def tried(self):
        set_up(self)
        with pytest.raises(CannotCaptureError, match="synchronizing"):
            GraphStep(self.step, self.model, self._examples())
        refused.append(self)

    stand_ins()
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda value: mode.__setitem__(0, value))
    monkeypatch.setattr(loops.Loop, "_set_up", tried)
    run(tmp_path / "tried", **arguments)
    assert len(refused) == 1
    assert mode == ["default"]
    assert_same(tmp_path / "tried", tmp_path / "plain")
