"""The gradients of a large state's operators against their definition."""

import pytest
import torch

from tests.ops.make import assert_near, poison

pytest.importorskip("triton")

from statespan.ops.ssm._triton import products as module
from statespan.ops.ssm._triton.products import products
from tests.ops.kernels import BOUNDS, DEVICE, within

DTYPE = torch.float32 if DEVICE == "cuda" else torch.float64


def defined(u, dy, S, R, W, ahead):
    """Chunk by chunk, in float64."""
    c, channels = W.shape[2], len(dy) // len(u)
    pad = (0, -u.shape[-1] % c)
    U, dY = (torch.nn.functional.pad(x.double(), pad).unflatten(-1, (-1, c)) for x in (u, dy))
    F, J, U, S = (torch.cat([x.double()] * channels) for x in (*W, U, S))
    R = R.double()
    dE = torch.einsum("hbic,hbin->hcn", U, R)
    dO = torch.einsum("hbic,hbin->hcn", dY, S)
    dF = torch.einsum("hbin,hjn,hbim->hjm", S, J, R)
    dJ = torch.einsum("hbin,hjn,hbim->hjm", R, F, S)
    return torch.stack([dE.flip(1) if ahead else dE, dO, dF, dJ])


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("batch", "heads", "channels", "length", "d_state", "programs"),
    [
        pytest.param(5, 2, 1, 300, 34, 132, id="a tile a share"),
        pytest.param(5, 2, 1, 300, 34, 2, id="all tiles in one"),
        pytest.param(9, 1, 1, 330, 16, 3, id="shares of two, the last with none"),
        pytest.param(3, 2, 2, 100, 20, 6, id="two channels"),
        pytest.param(1, 1, 1, 5, 6, 132, id="less than a chunk"),
    ],
)
def test_sums(batch, heads, channels, length, d_state, programs, ahead, monkeypatch):
    poison(monkeypatch)
    monkeypatch.setattr(module, "PROGRAMS", programs)
    c, chunks = 16, -(-length // 16)
    u = within(torch.randn(heads, batch, length, dtype=DTYPE, device=DEVICE))
    dy = within(torch.randn(channels * heads, batch, length, dtype=DTYPE, device=DEVICE))
    S = torch.randn(heads, batch, chunks, d_state, dtype=DTYPE, device=DEVICE)
    R = torch.randn(channels * heads, batch, chunks, d_state, dtype=DTYPE, device=DEVICE)
    W = torch.randn(2, heads, c, d_state, dtype=DTYPE, device=DEVICE)
    got, wanted = products(u, dy, S, R, W=W, ahead=ahead, acc=DTYPE), defined(u, dy, S, R, W, ahead)
    for name, one, other in zip(("E", "O", "F", "J"), got, wanted):
        assert_near(one, other, BOUNDS[DTYPE][1], name)
