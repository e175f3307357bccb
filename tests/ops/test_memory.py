"""What a program of a GPU has, without one: a device's properties are made up."""

from types import SimpleNamespace

import pytest
import torch

from statespan.ops import memory
from statespan.ops.memory import UNLIMITED, shared_memory


@pytest.fixture
def devices(monkeypatch):
    """Three, of which the second is the current one and the third does not say what can be had beyond the usual."""
    all_of_them = [
        SimpleNamespace(shared_memory_per_block=48 << 10, shared_memory_per_block_optin=227 << 10),
        SimpleNamespace(shared_memory_per_block=48 << 10, shared_memory_per_block_optin=99 << 10),
        SimpleNamespace(shared_memory_per_block=64 << 10),
    ]
    asked = []
    monkeypatch.setattr(memory, "_found", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: asked.append(i) or all_of_them[i])
    return asked


def test_each_device_is_asked_once(devices):
    for _ in range(2):
        assert shared_memory(torch.device("cuda", 0)) == 227 << 10
        assert shared_memory(torch.device("cuda")) == 99 << 10
        assert shared_memory(torch.device("cuda", 2)) == 64 << 10
    assert devices == [0, 1, 2]


def test_an_interpreter_has_no_limit():
    assert shared_memory(torch.device("cpu")) == UNLIMITED
    assert shared_memory(torch.device("meta")) == UNLIMITED


def test_a_tracer_takes_the_number_and_goes_on(devices):
    """What it asks of a driver is no part of a graph."""

    @torch.compile(backend="eager", fullgraph=True)
    def scaled(x):
        return x * shared_memory(torch.device("cuda", 1))

    assert scaled(torch.ones(1)).item() == 99 << 10
