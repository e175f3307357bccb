"""Operators built in plain torch, and their gradients, against the structures' dense powers and autograd."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

from statespan.ops import apply, use_path
from statespan.ops.ssm import chunk_length
from statespan.ops.ssm.apply import build_from_lists
from statespan.ops.ssm.layout import ordered
from statespan.ops.ssm.source import SSMSource
from statespan.ssm import DPLR, Diagonal
from tests.ops.make import assert_near, poison
from tests.ssm.make import make

pytestmark = pytest.mark.share(3)

KINDS = ["diagonal-trained", "dplr-trained"]
kinds = pytest.mark.parametrize("kind", KINDS)
chunks = pytest.mark.parametrize("chunk", [1, 2, 5, 16, 34, 48])  # 34 = 17 · 2 and 48 = 6 · 8 double their lists
aheads = pytest.mark.parametrize("ahead", [0, 1, 2])
NAMES = "KEGO"


def leaves(kind, *, N=6, H=3, rule="bilinear"):
    """The parameters of a structure with two channels, to be differentiated by."""
    ssm = make(kind, N, rule, H=H, channels=2)
    names = ("A", "P", "B", "C", "dt") if isinstance(ssm, DPLR) else ("A", "B", "C", "dt")
    return type(ssm), [getattr(ssm, name).detach().clone().requires_grad_() for name in names]


def bilinear(cls, values):
    names = ("A", "P", "B", "C", "dt") if cls is DPLR else ("A", "B", "C", "dt")
    return cls(**dict(zip(names, values)), discretization="bilinear")


def by_lists(cls, values, chunk, ahead, dtype=torch.float64):
    return build_from_lists(bilinear(cls, values), chunk, ahead, dtype)[:4]


def by_powers(cls, values, chunk, ahead):
    """The truth, in the order of the engine."""
    K, E, G, O = bilinear(cls, values).operators(chunk, ahead=ahead, dtype=torch.float64)  # noqa: E741
    dense = G.ndim == 3
    return K, ordered(E.mT, dense), G if dense else ordered(G, dense), ordered(O, dense)


@aheads
@chunks
@kinds
def test_against_dense_powers(kind, chunk, ahead, monkeypatch):
    """Forward, and every gradient, also where not all operators are used."""
    cls, values = leaves(kind)
    wanted = by_powers(cls, values, chunk, ahead)
    poison(monkeypatch)
    got = by_lists(cls, values, chunk, ahead)
    weights = [torch.randn_like(x) for x in wanted]
    for name, one, other in zip(NAMES, got, wanted, strict=True):
        assert_near(one, other, 1e-13, name)
    for used in (slice(0, 4), slice(1, 3)):
        slopes = torch.autograd.grad(wanted[used], values, weights[used], retain_graph=True, materialize_grads=True)
        found = torch.autograd.grad(got[used], values, weights[used], retain_graph=True, materialize_grads=True)
        for one, other in zip(found, slopes, strict=True):
            assert_near(one, other, 1e-12, f"gradient through {NAMES[used]}")


@kinds
def test_in_float32(kind):
    """Computed in float64 and rounded; backward as good as the gradients that come in."""
    cls, values = leaves(kind, N=16)
    wanted, got = by_powers(cls, values, 64, 1), by_lists(cls, values, 64, 1, torch.float32)
    weights = [torch.randn_like(x) for x in got]
    assert [x.dtype for x in got] == [torch.float32, torch.float32, torch.float64, torch.float32]
    for name, one, other in zip(NAMES, got, wanted, strict=True):
        assert_near(one, other, 1e-7, name)
    slopes = torch.autograd.grad(wanted, values, [w.double() for w in weights])
    for one, other in zip(torch.autograd.grad(got, values, weights), slopes, strict=True):
        assert_near(one, other, 2e-6)


@pytest.mark.parametrize(("chunk", "ahead"), [(1, 0), (3, 1), (18, 2)])
@kinds
def test_against_finite_differences(kind, chunk, ahead):
    cls, values = leaves(kind, N=2, H=1)
    assert gradcheck(lambda *v: by_lists(cls, v, chunk, ahead), values, atol=1e-6, rtol=1e-6)


@kinds
def test_as_operators_of_torch(kind):
    """Schema, fake tensors, and that autograd and tracers see the gradient."""
    cls, values = leaves(kind, N=4, H=2)
    with torch.no_grad():
        ssm = bilinear(cls, values)
        factors = ssm.factors() if cls is DPLR else [torch.view_as_real(x.resolve_conj()) for x in ssm.discrete()]
        factors = [x.clone() for x in factors]
    name = "rank_one" if cls is DPLR else "diagonal"
    operator = getattr(torch.ops.statespan, name).default
    opcheck(operator, (*[x.clone().requires_grad_() for x in factors], 20, 1, torch.float32))
    found = operator(*factors, 20, 1, torch.float32)
    slopes = [torch.randn_like(x) for x in found[:4]]
    opcheck(getattr(torch.ops.statespan, f"{name}_backward").default, (*factors, *found, *slopes, 1))


@pytest.mark.parametrize("cls", [Diagonal, DPLR])
def test_growing_without_bounds_stays_finite(cls):
    """Three times as much after each step is more than float32 holds after 128, but no reason to be not a number."""
    A = torch.tensor([[300.0 + 1j, -1.0 + 2j]], dtype=torch.complex128)
    one = torch.ones(1, 2, dtype=torch.complex128)
    low_rank = [1e-3 * one[None]] if cls is DPLR else []
    ssm = bilinear(cls, [A, *low_rank, one, one[None].to(torch.complex64), torch.tensor([0.01])])
    K, E, G, O, *_ = build_from_lists(ssm, 256, 0, torch.float32)  # noqa: E741
    assert G.abs().max() > 1e100
    for x in (K, E, O):
        assert torch.isfinite(x).all()
        assert x.abs().max() > 1e29


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("chunk", [16, 48, 256])
@pytest.mark.parametrize("kind", [*KINDS, "dense-trained"])
def test_any_chunk_gives_the_same(kind, chunk, bidirectional, monkeypatch):
    """The length of a chunk is a matter of speed alone."""
    ssm = make(kind, 8, "bilinear", H=2, channels=2)
    u = torch.randn(2, 300, 2, dtype=torch.float64)
    with use_path("fft"):
        wanted = apply(ssm, u, bidirectional=bidirectional)
    monkeypatch.setattr(chunk_length, "chunk_on_cpu", lambda *_: chunk)
    with use_path("chunks"):
        assert_near(apply(ssm, u, bidirectional=bidirectional), wanted, 1e-12)


@pytest.mark.parametrize(
    ("batch", "length", "d_state", "chunks"),
    [
        (1, 1, 64, (2, 2, 2)),  # for diagonal, rank-one and dense SSMs
        (1, 100, 64, (16, 16, 16)),
        (1, 1024, 64, (16, 32, 16)),
        (4, 16384, 64, (128, 128, 128)),
        (4, 16384, 256, (128, 256, 128)),
        (50, 784, 64, (112, 112, 112)),  # 7 · 112, with nothing to fill up
        (1, 2**20, 16, (128, 32, 128)),
    ],
)
def test_the_chunk_follows_the_work(batch, length, d_state, chunks):
    for power, wanted in zip(("diagonal", "rank one", "dense"), chunks, strict=True):
        source = SSMSource(lambda: None, lambda: None, d_state, power, torch.float32)
        u = torch.empty(batch, length, 1, device="meta")
        assert chunk_length.chunk_on_cpu(source, *u.shape[:2]) == wanted, power
        assert chunk_length.chunk_length("chunks", source, torch.float32, u, factored=False) == 64  # not a CPU
