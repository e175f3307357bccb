"""Operators built from parameters by the kernels, and their gradients, against the structures and autograd."""

from typing import NamedTuple

import pytest
import torch

from statespan.nn.real_part import REAL_PARTS, real_part
from statespan.ops.ssm.arguments import BuildOptions, BuiltLists, ChunkOperators, ModeTensors
from statespan.ops.ssm.layout import ordered
from statespan.ssm import DPLR, Diagonal
from tests.ops.make import assert_near, multiplied, poison

pytest.importorskip("triton")

from statespan.ops.ssm._triton import build

pytestmark = pytest.mark.share(5)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = {True: 1e-10, False: 1e-5}  # inside in float64, or in float32 for operators that are rounded to 16 bits
ROUNDING = {True: 0.0, False: 4.0}  # times what rounding the parameters to float32 does, where that is more
NAMES = ("dt", "decay", "freq", "B", "C", "P")


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


class Case(NamedTuple):
    heads: int
    sets: int
    modes: int
    channels: int
    ahead: int
    chunk: int
    skip: bool

    def __str__(self):
        return "-".join(map(str, self))


CASES = [Case(2, 2, 3, 1, 0, 16, False), Case(4, 2, 5, 3, 1, 16, True), Case(2, 1, 17, 2, 2, 32, False)]
SHORT = [Case(2, 1, 3, 2, 1, 8, True), Case(2, 2, 17, 1, 0, 4, False), Case(1, 1, 2, 2, 2, 4, False)]  # stepped through
precisions = pytest.mark.parametrize("precise", [True, False], ids=["float64", "float32"])


def pairs(cases):
    """Every case with every real part, of which every second one in float32: all pairs of the three are there."""
    each = [(case, real, (i + j) % 2 == 0) for i, case in enumerate(cases) for j, real in enumerate(REAL_PARTS)]
    names = [f"{case}-{real}-{'float64' if precise else 'float32'}" for case, real, precise in each]
    return pytest.mark.parametrize(("case", "real", "precise"), each, ids=names)


def parameters(case, real, low_rank, log_dt=True):
    """Random ones; the first mode hardly turns and hardly decays, where formulas cancel."""

    def randn(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    H, S, M, K, _ahead, _chunk, _skip = case
    dt = torch.rand(H, dtype=torch.float64) * 0.1 + 1e-3
    decay, freq = randn(S, M), 10 * randn(S, M)
    freq[0, 0] = 1e-5
    decay[:, -1] = decay[:, -1].abs()  # so that at least one has a slope under relu
    if real == "none":
        decay = -decay.abs()
        decay[0, 0] = -1e-6
    values = [dt.log() if log_dt else dt, decay, freq, randn(S, M, 2), randn(K, H, M, 2)]
    return [x.requires_grad_() for x in ([*values, 0.5 * randn(S, M, 2)] if low_rank else values)]


def by_torch(case, leaves, rule, real, log_dt=True):
    """K, E, G and O in the engine's order."""
    dt, decay, freq, B, C, *P = leaves
    copies = case.heads // case.sets
    A = torch.complex(real_part(real, decay), freq).repeat(copies, 1)
    B, C, *P = (torch.view_as_complex(x) for x in (B, C, *P))
    B, dt = B.repeat(copies, 1), dt.exp() if log_dt else dt
    if P:
        ssm = DPLR(A, P[0].repeat(copies, 1)[None], B, C, dt=dt, discretization=rule)
        K, E, G, O = ssm.operators(case.chunk, ahead=case.ahead)  # noqa: E741
        return [K, E.mT, G, O]
    K, E, G, O = Diagonal(A, B, C, dt, discretization=rule).operators(case.chunk, ahead=case.ahead)  # noqa: E741
    return [K, ordered(E.mT, False), ordered(G, False), ordered(O, False)]


def by_kernels(case, leaves, D, rule, real, precise, log_dt=True, factored=False):
    """The same, and a function that takes their gradients to those of the parameters."""
    values = [x.detach().to(DEVICE) for x in leaves]
    D = None if D is None else D.to(DEVICE)
    modes = ModeTensors(*values[:5], D, values[5] if len(values) > 5 else None)
    options = BuildOptions(case.chunk, case.ahead, rule, real, log_dt, precise, factored)
    found = build.forward(modes, options)
    lists = BuiltLists(found.E, found.O, found.W)

    def backward(gradients):
        given = [x.to(DEVICE, found[0].dtype) for x in gradients]
        gradients = build.backward(ChunkOperators(*given), modes, lists, options)
        return [x for x in gradients if x is not None]

    return found if factored else found[:4], backward


def check(case, leaves, rule, real, precise, log_dt=True):
    skip = torch.randn(case.channels - case.ahead, case.heads, dtype=torch.float64) if case.skip else None
    got, backward = by_kernels(case, leaves, skip, rule, real, precise, log_dt)
    wanted = by_torch(case, leaves, rule, real, log_dt)
    arriving = [torch.randn_like(x) for x in wanted]
    gradients = torch.autograd.grad(wanted, leaves, arriving)
    if skip is not None:
        wanted[0] = wanted[0].detach().clone()
        wanted[0][: case.channels - case.ahead, :, 0] += skip
    for name, one, other in zip("KEGO", got, wanted, strict=True):
        assert one.dtype == (torch.float64 if precise else torch.float32)
        assert one.is_contiguous()
        assert_near(one, other, BOUND[precise], name)
    rounded = [x.detach().float().double().requires_grad_() for x in leaves]
    nearby = torch.autograd.grad(by_torch(case, rounded, rule, real, log_dt), rounded, arriving)
    for name, one, other, near in zip(NAMES, backward(arriving), gradients, nearby):
        sensitivity = (near - other).abs().max().item() / other.abs().max().item()
        assert_near(one, other, max(BOUND[precise], ROUNDING[precise] * sensitivity), f"gradient of {name}")


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pairs(CASES)
def test_diagonal(case, real, rule, precise):
    check(case, parameters(case, real, False), rule, real, precise)


@pairs(SHORT)
def test_rank_one(case, real, precise):
    check(case, parameters(case, real, True), "bilinear", real, precise)


@pairs(CASES)
def test_first_order_hold(case, real, precise):
    """The kernels build every channel as if it looked ahead; ``build_operators`` turns those that do not."""
    case = case._replace(ahead=case.channels, skip=False)
    check(case, parameters(case, real, False), "foh", real, precise)


@precisions
@pytest.mark.parametrize("case", SHORT, ids=str)
def test_rank_one_in_factors(case, precise):
    """G as d^c and the factors of the rest; every gradient as through the multiplied G, in the other order of state."""
    leaves = parameters(case, "exp", True)
    (K, E, G, O, W), backward = by_kernels(case, leaves, None, "bilinear", "exp", precise, factored=True)  # noqa: E741
    wanted = by_torch(case, leaves, "bilinear", "exp")
    dense = multiplied(G.double(), W.double())
    near = torch.arange(2 * case.modes).view(2, -1).T.flatten()  # where the neighbours are in the structures' order
    wanted = [wanted[0], wanted[1][..., near], wanted[2][:, near][..., near], wanted[3][..., near]]
    for name, one, other in zip("KEGO", (K, E, dense, O), wanted, strict=True):
        assert_near(one, other, BOUND[precise], name)
    arriving = [torch.randn_like(x) for x in wanted]
    gradients = torch.autograd.grad(wanted, leaves, arriving)
    dG = arriving[2].to(DEVICE)
    a, b = dG[:, 0::2, 0::2].diagonal(dim1=1, dim2=2), dG[:, 1::2, 1::2].diagonal(dim1=1, dim2=2)
    c, d = dG[:, 1::2, 0::2].diagonal(dim1=1, dim2=2), dG[:, 0::2, 1::2].diagonal(dim1=1, dim2=2)
    from_G = torch.stack([a + b, c - d], -1).flatten(-2)
    from_W = torch.stack([W[1].double() @ dG.mT, W[0].double() @ dG])
    found = backward([arriving[0], arriving[1], from_G, arriving[3], from_W])
    for name, one, other in zip(NAMES, found, gradients, strict=True):
        assert_near(one, other, max(BOUND[precise], 1e-4 * (not precise)), f"gradient of {name}")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rounded_lists(case):
    """K, E and O as float32 numbers next to those of float64, G unchanged, and gradients that arrive in float32."""
    leaves = parameters(case, "exp", False)
    modes = ModeTensors(*(x.detach().to(DEVICE) for x in leaves))
    options = BuildOptions(case.chunk, case.ahead, "bilinear", "exp", True, True)
    exact, rounded = (build.forward(modes, options._replace(rounded=r)) for r in (False, True))
    for name in "KEO":
        assert torch.equal(getattr(rounded, name), getattr(exact, name).float()), name
    assert torch.equal(rounded.G, exact.G)
    assert exact.G.dtype == torch.float64
    arriving = ChunkOperators(*(torch.randn_like(x) for x in rounded[:4]))
    wider = ChunkOperators(*(x.double() for x in arriving[:4]))
    lists = BuiltLists(exact.E, exact.O, exact.E)
    got = build.backward(arriving, modes, lists, options._replace(rounded=True))
    wanted = build.backward(wider, modes, lists, options)
    for name in NAMES[: len(leaves)]:
        assert_near(getattr(got, name), getattr(wanted, name), 1e-6, f"gradient of {name}")


@pytest.mark.parametrize("low_rank", [False, True])
def test_step_sizes_themselves(low_rank):
    """As of a structure: Δ instead of its logarithm."""
    leaves = parameters(SHORT[0], "none", low_rank, log_dt=False)
    check(SHORT[0], leaves, "bilinear", "none", True, log_dt=False)


@pytest.mark.parametrize(("rule", "low_rank"), [("zoh", False), ("bilinear", False), ("bilinear", True)])
def test_growing_modes_are_capped(rule, low_rank):
    """Re ΔA of the first mode is beyond 1, where it stays, and so without a gradient; the second grows below it."""
    case = Case(1, 1, 2, 1, 0, 4, False)
    values = parameters(case, "none", low_rank)
    with torch.no_grad():
        values[0].fill_(-3.0)
        values[1].copy_(torch.tensor([[40.0, 0.5]]))
    got, backward = by_kernels(case, values, None, rule, "none", True)
    wanted = by_torch(case, values, rule, "none")
    arriving = [torch.randn_like(x) for x in wanted]
    for name, one, other in zip("KEGO", got, wanted, strict=True):
        assert_near(one, other, 1e-10, name)
    found, gradients = backward(arriving), torch.autograd.grad(wanted, values, arriving)
    for name, one, other in zip(NAMES, found, gradients, strict=False):
        assert_near(one, other, 1e-10, name)
    assert found[1][0, 0] == 0
    assert found[1][0, 1] != 0


@pytest.mark.parametrize("low_rank", [False, True])
def test_same_bits_every_time(low_rank):
    leaves = parameters(SHORT[0], "exp", low_rank)
    runs = []
    for _ in range(2):
        found, backward = by_kernels(SHORT[0], leaves, None, "bilinear", "exp", False)
        torch.manual_seed(0)
        runs.append([*found, *backward([torch.randn(x.shape) for x in found])])
    for one, other in zip(*runs, strict=True):
        assert (one == other).all()
