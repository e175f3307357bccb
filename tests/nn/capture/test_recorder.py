"""Recording CUDA graphs, with CUDA's calls stood in for."""

import contextlib
import gc
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from statespan.generation.capture import CudaRecorder as GenerationRecorder
from statespan.nn.capture.recorder import CannotCaptureError, CudaRecorder, LoopRecorder, no_waiting
from statespan.train import graph as train_graph


@pytest.fixture
def cuda(monkeypatch):
    """What happens, in order; ``fails`` lists the graphs, from 0, that CUDA does not accept."""
    log, fails, made = [], set(), []

    class Graph:
        def __init__(self):
            made.append(self)
            self.number = len(made) - 1

        def capture_begin(self, pool=None, capture_error_mode="global"):
            log.append(f"begin {capture_error_mode}" if pool else "begin alone")

        def capture_end(self):
            log.append("end")
            if self.number in fails:
                raise RuntimeError("invalidated")

        def replay(self):
            log.append("replay")

    stream = SimpleNamespace(wait_stream=lambda other: log.append("wait"))
    zeros = torch.zeros
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: f"pool {len(made)}")
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: log.append(mode))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.tensor([1, 2]))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: log.append(state.tolist()))
    monkeypatch.setattr(torch, "zeros", lambda *size, device: zeros(*size))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *each: log.append(each), raising=False)
    return SimpleNamespace(log=log, fails=fails)


device = torch.device("cuda", 1)


def test_a_recording(cuda):
    recorder = CudaRecorder(device)
    collecting = []
    replay, result = recorder.record(lambda: collecting.append(gc.isenabled()) or 3)
    assert (result, collecting, gc.isenabled()) == (3, [False], True)
    replay()
    assert cuda.log == ["synchronize", "begin global", "end", "replay"]
    cuda.log.clear()
    LoopRecorder(device).record(lambda: None)  # whose loader may allocate memory
    assert cuda.log == ["synchronize", "begin thread_local", "end"]


def test_a_function_that_fails(cuda):
    """CUDA accepts what there is of the graph, so there is nothing to mend."""
    recorder = CudaRecorder(device)
    with pytest.raises(ValueError, match="mine"):
        recorder.record(lambda: (_ for _ in ()).throw(ValueError("mine")))
    assert cuda.log == ["synchronize", "begin global", "end"]
    assert gc.isenabled()


@pytest.mark.parametrize("function", [lambda: None, lambda: 1 / 0], ids=["works", "fails"])
def test_a_graph_that_cuda_rejects(function, cuda):
    """A whole graph ends what the broken one began, and later ones have another pool."""
    cuda.fails.add(0)
    recorder = CudaRecorder(device)
    with pytest.raises((RuntimeError, ZeroDivisionError), match=r"invalidated|division"):
        recorder.record(function)
    assert cuda.log == ["synchronize", "begin global", "end", (1, "pool 0"), "begin alone", "end"]
    assert recorder.pool == "pool 1"
    assert gc.isenabled()


def test_trial_runs(cuda):
    recorder = CudaRecorder(device)
    assert recorder.warm(lambda: 5) == 5
    assert cuda.log == ["wait", "wait"]
    cuda.log.clear()

    def waits():
        raise RuntimeError("called a synchronizing CUDA operation\nmore")

    with pytest.raises(CannotCaptureError, match=r"synchronizing CUDA operation$"):
        recorder.warm(waits, strict=True)
    assert cuda.log == ["wait", "error", "default", "wait"]
    with pytest.raises(RuntimeError, match="synchronizing") as error:
        recorder.warm(waits)
    assert type(error.value) is RuntimeError


def test_runs_on_several_streams(cuda, monkeypatch):
    """A run waits for the one before, if that was on another stream."""
    waits = []
    streams = [SimpleNamespace(wait_stream=lambda other, i=i: waits.append((i, streams.index(other)))) for i in (0, 1)]
    recorder = CudaRecorder(device)
    for i in (0, 0, 1, 1, 0):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, i=i: streams[i])
        recorder.order()
    assert waits == [(1, 0), (0, 1)]


def test_random_numbers(cuda):
    recorder = CudaRecorder(device)
    state = recorder.random_state()
    assert state.device.tolist() == [1, 2]
    drawn = [torch.rand(1).item(), random.random(), np.random.rand()]
    assert recorder.random_state().host != state.host
    recorder.set_random_state(state)
    assert cuda.log == [[1, 2]]
    assert recorder.random_state().host == state.host
    assert [torch.rand(1).item(), random.random(), np.random.rand()] == drawn


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), lambda: random.random()])
def test_each_generator_on_the_host_is_noticed(draw, cuda):
    recorder = CudaRecorder(device)
    state = recorder.random_state()
    assert recorder.random_state().host == state.host
    draw()
    assert recorder.random_state().host != state.host


def test_devices():
    assert CudaRecorder.obstacle(device) is None
    assert "it is on cpu" in CudaRecorder.obstacle(torch.device("cpu"))


def test_training_and_generation_share_it():
    assert GenerationRecorder is CudaRecorder
    assert train_graph.no_waiting is no_waiting
    assert train_graph.CannotCaptureError is CannotCaptureError
