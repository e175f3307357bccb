"""A recorder that needs no GPU, modules to capture, and what it is to run eagerly."""

import random
from collections import namedtuple
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from statespan.nn.capture import calls
from statespan.nn.capture.calls import Calls
from statespan.nn.capture.module import view
from statespan.nn.capture.recorder import CannotCaptureError, RandomState

Pair = namedtuple("Pair", ["scores", "hidden"])


class CpuRecorder:
    """Stands in for CUDA graphs on a CPU, and has their limits.

    A recording runs nothing, and each of its runs fills the same memory. Whatever decided it must be the same in every
    run. A forward pass overwrites what those of other recordings of this recorder left for their backward passes.
    """

    strict = False
    fails = False
    recorders: ClassVar = []

    def __init__(self, device):
        self.device, self.owners = device, []
        self.warmed = self.recorded = self.replayed = 0
        CpuRecorder.recorders.append(self)

    @staticmethod
    def obstacle(device):
        return None if device.type == "cpu" else f"it is on {device}"

    @staticmethod
    def is_recording():
        return False

    def warm(self, function, *, strict=False):
        self.warmed += 1
        CpuRecorder.strict = strict
        try:
            return function()
        except RuntimeError as error:
            if strict and not isinstance(error, CannotCaptureError):
                raise CannotCaptureError(str(error)) from error
            raise
        finally:
            CpuRecorder.strict = False

    def record(self, function):
        if CpuRecorder.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")
        self.recorded += 1
        owner = function.__self__
        self.owners.append(owner)
        surface = owner.surface
        settings, snapshot, state = surface.settings(), surface.save(), self.random_state()
        memory = [result.clone() for result in function()]
        for tensor, value in snapshot.tensors:
            tensor.data.copy_(value)  # nothing ran, so nothing that autograd saved has changed
        self.set_random_state(state)

        def replay():
            self.replayed += 1
            assert surface.settings() == settings
            for other in self.owners:
                if other is not owner:
                    other.live = []
            calls._recording = True  # in a graph, the calls of parts were decided when it was recorded
            try:
                results = function()
            finally:
                calls._recording = False
            for into, result in zip(memory, results, strict=True):
                into.copy_(result)

        return replay, memory

    def order(self):
        pass

    def free_memory(self):
        pass

    def random_state(self):
        name, key, *rest = np.random.get_state()
        return RandomState(torch.get_rng_state(), (random.getstate(), (name, tuple(key), *rest)))

    def set_random_state(self, state):
        torch.set_rng_state(state.device)
        random.setstate(state.host[0])
        np.random.set_state(state.host[1])


def captured(module, graphs=8):
    """The module captured by this recorder."""
    return view(module, Calls(module, graphs, CpuRecorder))


def count(model):
    """The recordings of a captured module."""
    return sum(len(lane.recordings) for lane in model._calls.lanes)


def replays(model):
    """How many calls of a captured module were replays."""
    return model._calls.replays


def assert_eager(model, call, reason, file=None):
    """The call gives what the module itself gives, with one warning that names the reason, however often it comes.

    The warning points at the file of the call, or at this one.
    """
    before = replays(model)
    with pytest.warns(UserWarning, match=rf"runs without CUDA graphs here: .*{reason}") as seen:
        results = [call(model) for _ in range(2)]
    assert len(seen) == 1
    assert seen[0].filename == (file or call.__code__.co_filename)
    assert replays(model) == before
    return results[0]


def wait():
    """What reading a number of a GPU does in a strict trial run."""
    if CpuRecorder.strict:
        raise RuntimeError("called a synchronizing CUDA operation")


class Net(nn.Module):
    """Dropout, running statistics, and outputs of several kinds."""

    def __init__(self, dropout=0.3, norm=True):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.auxiliary = nn.Linear(6, 2)

    def forward(self, x, scale=1.0):
        hidden = self.dropout(self.norm(self.first(x)).relu())
        return {"y": self.second(hidden) * scale, "pair": Pair(self.auxiliary(hidden), hidden.argmax(-1)), "n": 3}


def quiet(dropout=0.0):
    """The same without running statistics."""
    return Net(dropout, norm=False)


class Alone(nn.Module):
    """One parameter and a function of it."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)
