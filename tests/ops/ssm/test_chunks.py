"""The chunk engine in plain torch against the recurrence, the convolution, autograd and finite differences."""

import pytest
import torch
from torch.autograd import gradcheck

from statespan.ops import apply, apply_from, fftconv, use_path
from statespan.ops.ssm import chunk_length, layout, state_scan
from statespan.ops.ssm import chunks as plain
from statespan.ops.ssm.arguments import ChunkOperators, ChunkOptions, OutputGradients
from statespan.ops.ssm.layout import ordered
from statespan.ssm import DPLR, Diagonal
from tests.ops.make import assert_near, engine
from tests.ssm.make import make

pytestmark = pytest.mark.share(3)

CHUNK = 32
KINDS = ["diagonal-trained", "dplr-trained", "dplr-apart", "dense-trained"]
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
    operators = engine(ssm, CHUNK)
    dense = operators.G.ndim == 3
    for state in (start, None):
        wanted, _ = ssm.scan(u, state)
        first = None if state is None else heads_first(state, dense)
        found = plain.forward(u.permute(2, 0, 1), operators, first)
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
    found = plain.forward(u.permute(2, 0, 1), engine(ssm, CHUNK, ahead=2), both=True)
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
    leaves = [randn(3, 2, length), *engine(ssm, CHUNK, ahead=2 if both else 0)[:4], randn(3, 2, 6)]
    leaves = [x.requires_grad_() for x in leaves]
    u, operators, first = leaves[0], ChunkOperators(*leaves[1:5]), leaves[5]
    found = plain.forward(u, operators, first, both=both)
    dy, dlast = torch.randn_like(found.y), torch.randn_like(found.last)
    for weight in (dlast, None):
        through = (found.y,) if weight is None else (found.y, found.last)
        given = (dy,) if weight is None else (dy, weight)
        wanted = torch.autograd.grad(through, leaves, given, retain_graph=True, materialize_grads=True)
        with torch.no_grad():
            got = plain.backward(u, OutputGradients(dy, weight), found, operators, both=both)
        got = (got.u, *got.operators[:4], got.first)
        for name, one, other in zip(("u", *"KEGO", "first"), got, wanted, strict=True):
            assert_near(one, other, 1e-11, name)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("length", [1, 3, 4, 9])
@kinds
def test_operator_against_finite_differences(kind, length, both):
    """With respect to the input, every operator and the first state; through y and the last state."""
    ssm = make(kind, 4, "bilinear", channels=2)
    given = [randn(2, 1, length), randn(2, 1, 4), *engine(ssm, 4, ahead=1 if both else 0)[:4]]

    def function(*values):
        options = ChunkOptions("chunks", torch.float64, both, save=True, last=True)
        found = torch.ops.statespan.chunks(*values, None, *options)
        return found[:2]

    assert gradcheck(function, [x.requires_grad_() for x in given], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
@kinds
def test_apply_against_finite_differences(kind, bidirectional, monkeypatch):
    """Through the dispatcher, to the parameters themselves: whole chunks and a rest of 2."""
    monkeypatch.setattr(chunk_length, "chunk_on_cpu", lambda *_: 16)
    ssm = make(kind, 2, "bilinear", H=1, channels=2, dt_min=0.05)
    kind_of = type(ssm)
    names = ("A", "P", "B", "C", "dt") if kind_of is DPLR else ("A", "B", "C", "dt")
    channels = 1 if bidirectional else 2
    leaves = [randn(1, 34, 1), randn(1, 1, 2), randn(channels, 1), *(getattr(ssm, n).detach().clone() for n in names)]

    def function(u, state, D, *values):
        built = kind_of(**dict(zip(names, values)), discretization="bilinear")
        with use_path("chunks"):
            if bidirectional:
                return apply(built, u, D, bidirectional=True, activation="gelu")
            return apply_from(built, u, state, D, activation="gelu")

    needed = [x.requires_grad_(not (bidirectional and i == 1)) for i, x in enumerate(leaves)]
    assert gradcheck(function, needed, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 23])
@pytest.mark.parametrize("dense", [False, True])
def test_the_recurrence_in_place(dense, count, pieces, monkeypatch):
    """One walk or two, over blocks of chunks that are copied at once, to the left and to the right, with a rest."""
    if pieces > count:
        pytest.skip("no chunk for each piece")
    monkeypatch.setattr(state_scan, "_pieces", lambda *_: pieces)
    G = randn(3, 4, 4) / 3 if dense else randn(3, 4) / 2
    start, added = randn(3, 2, 4), randn(3, 2, count, 4)
    for left in (False, True):
        for adjoint in (False, True):
            states, last = state_scan._scan_differentiably(added, G, start, left=left, adjoint=adjoint)
            mine = added.clone()
            got, end = state_scan.scan_chunks(mine, G, start, left=left, adjoint=adjoint)
            assert got.data_ptr() == mine.data_ptr()
            assert_near(got, states, 1e-13)
            assert_near(end, last, 1e-13)
    longer = torch.cat([added, randn(3, 2, 1, 4)], 2)  # what the last chunk adds is not asked for, but its state is
    states, last = state_scan._scan_differentiably(added, G, start, left=False, adjoint=False)
    got, end = state_scan.scan_chunks(longer, G, start, whole=count)
    assert_near(got, torch.cat([states, last[:, :, None]], 2), 1e-13)
    assert_near(end, last, 1e-13)


@pytest.mark.parametrize("N", [2, 64, 256])
@pytest.mark.parametrize("dense", [False, True])
def test_pieces_where_they_pay(dense, N):
    """For few rows and many chunks; never more pieces than chunks."""
    for heads in (1, 64):
        for batch in (1, 4, 64):
            for count in (0, 1, 2, 10, 1000, 100000):
                added = torch.empty(1).expand(heads, batch, count, N)
                pieces = state_scan._pieces(added, count, dense)
                assert 1 <= pieces <= max(1, count // 2)
    assert state_scan._pieces(torch.empty(1).expand(1, 1, 1000, N), 1000, dense) > 1
    assert state_scan._pieces(torch.empty(1).expand(64, 64, 1000, N), 1000, dense) == 1


@pytest.mark.parametrize("c", [1, 2, 5])
def test_sums_along_diagonals(c):
    dT = randn(2, 3, c, c)
    wanted = torch.zeros(2, 2, 3, c, dtype=torch.float64)
    for i in range(c):
        for j in range(c):
            wanted[int(j > i), ..., i - j if i >= j else j - i - 1] += dT[..., i, j]
    assert_near(plain._diagonals(dT.clone(), False), wanted[0], 1e-14)
    assert_near(plain._diagonals(dT.clone(), True), wanted.flatten(0, 1), 1e-14)


def test_the_gradient_in_place_of_the_input():
    """The same numbers, with the copy of u that the engine owns overwritten."""
    ssm = make("dplr-trained", 6, "bilinear", H=3, channels=2)
    u, operators = randn(3, 2, 64), engine(ssm, CHUNK)
    with torch.no_grad():
        saved = plain.forward(u, operators)
        dy = torch.randn_like(saved.y)
        wanted = plain.backward(u, OutputGradients(dy, None), saved, operators)
        mine = u.clone()
        got = plain.backward(mine, OutputGradients(dy, None), saved, operators, in_place=True)
    assert got.u.data_ptr() == mine.data_ptr()
    for one, other in zip((got.u, *got.operators[:4], got.first), (wanted.u, *wanted.operators[:4], wanted.first)):
        assert torch.equal(one, other)


@pytest.mark.parametrize("length", [1, 1024, 1025, 1535, 1536, 1537, 3000])
def test_features_side_by_side_are_copied_to_lie_lengthwise(length):
    """By blocks beyond a length; with its gradient."""
    x = randn(2, length, 3).permute(2, 0, 1).requires_grad_()
    for found in (layout.lengthwise(x), layout.lengthwise(x.detach())):
        assert found.is_contiguous()
        assert torch.equal(found, x)
    weight = randn(3, 2, length)
    (gradient,) = torch.autograd.grad(layout.lengthwise(x), x, weight)
    assert torch.equal(gradient, weight)
    rows = plain.chunk_rows(x, 32)
    assert torch.equal(rows.view(3, 2, -1)[..., :length], x)
    assert not rows.view(3, 2, -1)[..., length:].any()
