"""The chunk engine in plain torch against the recurrence, the convolution, autograd and finite differences."""

import pytest
import torch
from torch.autograd import gradcheck

from statespan.ops import apply, apply_from, dispatch, fftconv, plain, use_path
from statespan.ops.chunked import ordered
from statespan.ssm import DPLR, Diagonal
from tests.ops.make import assert_near, engine
from tests.ssm.make import make

CHUNK = 32
KINDS = ["diagonal-trained", "dplr-trained", "dense-trained"]
kinds = pytest.mark.parametrize("kind", KINDS)
lengths = pytest.mark.parametrize("length", [1, 2, 31, 33, 64, 100])


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def heads_first(x, dense):
    """A state (B, H, N) as the engine takes it."""
    return ordered(x, dense).transpose(0, 1).contiguous()


@lengths
@kinds
def test_against_the_recurrence(kind, length):
    """From a state, with two channels; the last state is the one after all whole chunks."""
    ssm = make(kind, 6, "bilinear", H=3, channels=2)
    u, start = randn(2, length, 3), randn(2, 3, 6)
    K, E, G, O = engine(ssm, CHUNK)  # noqa: E741
    dense = G.ndim == 3
    for state in (start, None):
        wanted, _ = ssm.scan(u, state)
        first = None if state is None else heads_first(state, dense)
        found = plain.forward(u.permute(2, 0, 1), K, E, G, O, first)
        assert_near(found.y, wanted.permute(2, 3, 0, 1), 1e-11)
        chunks = -(-length // CHUNK)
        states = found.states.unflatten(1, (2, chunks))
        for i in range(chunks):
            _, before = ssm.scan(u[:, : i * CHUNK], state)
            assert_near(states[:, :, i], heads_first(before, dense), 1e-11, f"state before chunk {i}")
        _, end = ssm.scan(u[:, : length - length % CHUNK], state)
        assert_near(found.last, heads_first(end, dense), 1e-11, "last state")


@lengths
@kinds
def test_both_directions_against_the_convolution(kind, length):
    ssm = make(kind, 6, "zoh", H=3, channels=4)
    u = randn(2, length, 3)
    found = plain.forward(u.permute(2, 0, 1), *engine(ssm, CHUNK, ahead=2), both=True)
    wanted = fftconv(u, *ssm.kernel(length).chunk(2))
    assert_near(found.y, wanted.permute(2, 3, 0, 1), 1e-11)
    chunks = -(-length // CHUNK)
    ahead = found.ahead.unflatten(1, (2, chunks))
    padded = torch.nn.functional.pad(u, (0, 0, 0, -length % CHUNK))
    for i in range(chunks):  # the state behind chunk i is that of everything to its right, from the right
        _, behind = ssm.scan(padded[:, (i + 1) * CHUNK :].flip(1))
        assert_near(ahead[:, :, i], heads_first(behind, not isinstance(ssm, Diagonal)), 1e-11, f"chunk {i}")


@pytest.mark.parametrize("both", [False, True])
@lengths
@kinds
def test_backward_against_autograd(kind, length, both):
    ssm = make(kind, 6, "bilinear", H=3, channels=4 if both else 2)
    leaves = [randn(3, 2, length), *engine(ssm, CHUNK, ahead=2 if both else 0), randn(3, 2, 6)]
    leaves = [x.requires_grad_() for x in leaves]
    found = plain.forward(*leaves, both=both)
    dy, dlast = torch.randn_like(found.y), torch.randn_like(found.last)
    for weight in (dlast, None):
        through = (found.y,) if weight is None else (found.y, found.last)
        given = (dy,) if weight is None else (dy, weight)
        wanted = torch.autograd.grad(through, leaves, given, retain_graph=True, materialize_grads=True)
        with torch.no_grad():
            got = plain.backward(leaves[0], dy, weight, found, *leaves[1:5], both=both)
        for name, one, other in zip(got._fields, got, wanted, strict=True):
            assert_near(one, other, 1e-11, name)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("length", [1, 3, 4, 9])
@kinds
def test_operator_against_finite_differences(kind, length, both):
    """With respect to the input, every operator and the first state; through y and the last state."""
    ssm = make(kind, 4, "bilinear", channels=2)
    given = [randn(2, 1, length), *engine(ssm, 4, ahead=1 if both else 0), randn(2, 1, 4)]

    def function(*values):
        found = torch.ops.statespan.chunks(*values, both, False, True, True, "chunks", torch.float64)
        return found[:2]

    assert gradcheck(function, [x.requires_grad_() for x in given], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
@kinds
def test_apply_against_finite_differences(kind, bidirectional, monkeypatch):
    """Through the dispatcher, to the parameters themselves: whole chunks and a rest of 2."""
    monkeypatch.setattr(dispatch, "CHUNK", 16)
    ssm = make(kind, 2, "bilinear", H=1, channels=2, dt_min=0.05)
    kind_of = type(ssm)
    names = ("A", "P", "B", "C", "dt") if kind_of is DPLR else ("A", "B", "C", "dt")
    channels = 1 if bidirectional else 2
    leaves = [randn(1, 34, 1), randn(1, 1, 2), randn(channels, 1), *(getattr(ssm, n).detach().clone() for n in names)]

    def function(u, state, D, *values):
        built = kind_of(*values, "bilinear")
        with use_path("chunks"):
            if bidirectional:
                return apply(built, u, D, bidirectional=True, activation="gelu")
            return apply_from(built, u, state, D, activation="gelu")

    needed = [x.requires_grad_(not (bidirectional and i == 1)) for i, x in enumerate(leaves)]
    assert gradcheck(function, needed, atol=1e-7, rtol=1e-6)
