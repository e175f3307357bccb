"""A layer's pass makes no tensor from numbers of the host: on a GPU that waits, and no CUDA graph can hold it."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from statespan.ops import use_path
from tests.nn.make import LAYER_IDS, LAYERS

pytest.importorskip("triton")


class NoNumbers(TorchDispatchMode):
    """Collects what ``torch.tensor`` and ``new_tensor`` make."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.lift_fresh, torch.ops.aten.lift):
            self.found.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("cls", "options"), LAYERS, ids=LAYER_IDS)
def test_no_tensor_of_numbers(cls, options, bidirectional):
    layer, x = cls(4, 8, **options, bidirectional=bidirectional), torch.randn(2, 70, 4)
    with use_path("triton"), NoNumbers() as mode:
        layer(x).sum().backward()
    assert mode.found == []


def test_it_would_be_found():
    with NoNumbers() as mode:
        torch.zeros(2).new_tensor([0.5])
    assert len(mode.found) == 1
