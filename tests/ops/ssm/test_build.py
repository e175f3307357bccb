"""Operators built from parameters by the kernels, and their gradients, against the structures and autograd."""

from typing import NamedTuple

import pytest
import torch

from statespan.nn.real_part import REAL_PARTS, real_part
from statespan.ops.ssm.arguments import BuildOptions, BuiltLists, ChunkOperators, ModeTensors
from statespan.ops.ssm.layout import ordered
from statespan.ssm import DPLR
from tests.ops.make import NAMES, assert_near, multiplied, poison, structure_of
from tests.ssm.brute import structure_kernel

pytest.importorskip("triton")

from statespan.ops.ssm._triton import build

pytestmark = pytest.mark.share(5)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = {True: 1e-10, False: 1e-5}  # inside in float64, or in float32 for operators that are rounded to 16 bits
ROUNDING = {True: 0.0, False: 4.0}  # times what rounding the parameters to float32 does, where that is more


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


def parameters(case, real, rank, log_dt=True):
    """Random ones, P of this rank; the first mode hardly turns and hardly decays, where formulas cancel."""

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
    return [x.requires_grad_() for x in ([*values, 0.5 * randn(rank, S, M, 2)] if rank else values)]


def by_torch(case, leaves, rule, real, log_dt=True):
    """K, E, G and O in the engine's order."""
    ssm = structure_of(leaves, real, rule=rule, log_dt=log_dt)
    K, E, G, O = ssm.operators(case.chunk, ahead=case.ahead)  # noqa: E741
    dense = isinstance(ssm, DPLR)
    return [K, ordered(E.mT, dense), G if dense else ordered(G, False), ordered(O, dense)]


def by_definition(case, leaves, real):
    """The same of a low-rank SSM by dense complex matrices over all conjugate pairs, one product after the other."""
    dt, decay, freq, *pairs = leaves
    copies, c = case.heads // case.sets, case.chunk

    def full(x):
        return torch.cat([x, x.conj()], -1)

    A = full(torch.complex(real_part(real, decay), freq)).repeat(copies, 1)
    B, C, P = (full(torch.view_as_complex(x)) for x in pairs)
    A = torch.diag_embed(A) - torch.einsum("rhn,rhm->hnm", P, P.conj()).repeat(copies, 1, 1)
    B, dt, identity = B.repeat(copies, 1), dt.exp()[:, None, None], torch.eye(2 * case.modes, dtype=A.dtype)
    left = identity - dt * A / 2
    Abar, Bbar = torch.linalg.solve(left, identity + dt * A / 2), torch.linalg.solve(left, dt * B[..., None])
    powers = [identity.expand(case.heads, -1, -1)]
    for _ in range(c):
        powers.append(powers[-1] @ Abar)
    columns = torch.stack([(power @ Bbar)[..., 0] for power in powers[:c]], 1)
    rows = torch.stack([torch.einsum("khn,hnm->khm", C, power) for power in powers], 2)
    # a packed state (x, y) stands for (x + iy, x - iy)
    half = torch.eye(case.modes, dtype=A.dtype)
    unpack = torch.cat([torch.cat([half, 1j * half], 1), torch.cat([half, -1j * half], 1)])
    pack, causal = torch.linalg.inv(unpack), case.channels - case.ahead
    O = torch.cat([rows[:causal, :, 1:], rows[causal:, :, :c].flip(2)])  # noqa: E741
    K = torch.einsum("khjn,hn->khj", rows[:, :, :c], Bbar[..., 0])
    return [x.real for x in (K, columns.flip(1) @ pack.mT, pack @ powers[c] @ unpack, O @ unpack)]


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
    check(case, parameters(case, real, 0), rule, real, precise)


@pytest.mark.parametrize("rank", [1, 2])
@pairs(SHORT)
def test_low_rank(case, real, precise, rank):
    check(case, parameters(case, real, rank), "bilinear", real, precise)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("case", SHORT, ids=str)
def test_low_rank_by_definition(case, rank):
    """The operators and every gradient of dense matrices, whose kernel is that of the brute force."""
    leaves = parameters(case, "exp", rank)
    wanted = by_definition(case, leaves, "exp")
    got, backward = by_kernels(case, leaves, None, "bilinear", "exp", True)
    for name, one, other in zip("KEGO", got, wanted, strict=True):
        assert_near(one, other, BOUND[True], name)
    arriving = [torch.randn_like(x) for x in wanted]
    gradients = torch.autograd.grad(wanted, leaves, arriving)
    for name, one, other in zip(NAMES, backward(arriving), gradients, strict=True):
        assert_near(one, other, BOUND[True], f"gradient of {name}")
    kernel = structure_kernel(structure_of(leaves, "exp"), case.chunk)
    assert_near(wanted[0], torch.from_numpy(kernel), BOUND[True], "the definition")


@pytest.mark.parametrize("second", ["nothing", "parallel", "nearly parallel"])
@precisions
def test_two_terms_that_are_one(precise, second):
    """As of the heads with LegS in a mixture with LegT, whose second term is 0; and two terms that are hardly two."""
    case = SHORT[1]._replace(modes=5)
    leaves = parameters(case, "exp", 2)
    with torch.no_grad():
        P = leaves[-1]
        P[0] *= 4
        P[1] = 0 if second == "nothing" else P[0]
        P[1] += 1e-4 * torch.randn_like(P[0]) * (second == "nearly parallel")
    got, backward = by_kernels(case, leaves, None, "bilinear", "exp", precise)
    wanted = by_torch(case, leaves, "bilinear", "exp")
    arriving = [torch.randn_like(x) for x in wanted]
    for name, one, other in zip("KEGO", got, wanted, strict=True):
        assert_near(one, other, BOUND[precise], name)
    gradients = torch.autograd.grad(wanted, leaves, arriving)
    for name, one, other in zip(NAMES, backward(arriving), gradients, strict=True):
        assert_near(one, other, BOUND[precise], f"gradient of {name}")


@pairs(CASES)
def test_first_order_hold(case, real, precise):
    """The kernels build every channel as if it looked ahead; ``build_operators`` turns those that do not."""
    case = case._replace(ahead=case.channels, skip=False)
    check(case, parameters(case, real, 0), "foh", real, precise)


@precisions
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("case", SHORT, ids=str)
def test_low_rank_in_factors(case, rank, precise):
    """G as d^c and the factors of the rest; every gradient as through the multiplied G, in the other order of state."""
    leaves = parameters(case, "exp", rank)
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


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_step_sizes_themselves(rank):
    """As of a structure: Δ instead of its logarithm."""
    leaves = parameters(SHORT[0], "none", rank, log_dt=False)
    check(SHORT[0], leaves, "bilinear", "none", True, log_dt=False)


@pytest.mark.parametrize(("rule", "rank"), [("zoh", 0), ("bilinear", 0), ("bilinear", 1), ("bilinear", 2)])
def test_growing_modes_are_capped(rule, rank):
    """Re ΔA of the first mode is beyond 1, where it stays, and so without a gradient; the second grows below it."""
    case = Case(1, 1, 2, 1, 0, 4, False)
    values = parameters(case, "none", rank)
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


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_same_bits_every_time(rank):
    leaves = parameters(SHORT[0], "exp", rank)
    runs = []
    for _ in range(2):
        found, backward = by_kernels(SHORT[0], leaves, None, "bilinear", "exp", False)
        torch.manual_seed(0)
        runs.append([*found, *backward([torch.randn(x.shape) for x in found])])
    for one, other in zip(*runs, strict=True):
        assert (one == other).all()
