"""Measuring as CUDA graphs, with a recorder that needs no GPU."""

import pytest
import torch

from statespan.nn.capture.recorder import CannotCaptureError
from statespan.papers.bench import measure


class FakeRecorder:
    """Fails where it is told to, or returns a replay that counts its calls."""

    fault: tuple[str, Exception] | None = None
    replays = 0

    def __init__(self, device):
        self.device = device

    def warm(self, run, *, strict):
        assert strict
        self._fail("warm")
        return run()

    def record(self, run):
        self._fail("record")
        return self._replay, run()

    def _fail(self, where):
        if self.fault is not None and self.fault[0] == where:
            raise self.fault[1]

    def _replay(self):
        type(self).replays += 1


@pytest.mark.parametrize(
    "fault", [("warm", CannotCaptureError("it waits")), ("record", torch.AcceleratorError("rejected")), None]
)
def test_a_run_that_cannot_be_a_graph_has_none(fault, monkeypatch):
    monkeypatch.setattr(measure, "CudaRecorder", type("Recorder", (FakeRecorder,), {"fault": fault, "replays": 0}))
    runs = []
    replay = measure.replay_of(lambda: runs.append(1), torch.device("cuda"))
    assert (replay is None) == (fault is not None)
    if replay is not None:
        replay()
        replay()
        assert (measure.CudaRecorder.replays, len(runs)) == (2, 2)


def test_too_little_memory_is_an_error(monkeypatch):
    fault = ("record", torch.OutOfMemoryError("no"))
    monkeypatch.setattr(measure, "CudaRecorder", type("Recorder", (FakeRecorder,), {"fault": fault}))
    with pytest.raises(torch.OutOfMemoryError):
        measure.replay_of(lambda: None, torch.device("cuda"))
