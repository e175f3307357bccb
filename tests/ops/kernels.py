"""One call of the kernels, with all its results and gradients, and the same by plain torch in float64."""

from typing import NamedTuple

import torch
from torch.nn.functional import gelu

from statespan.ops import plain
from statespan.ops._triton import launch
from statespan.ops.tiles import Tiles
from tests.ops.make import engine, multiplied
from tests.ssm.make import make

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALL = 1 << 20
# of the peak: what is computed, and the gradients; a GPU's float32 products are three of tf32
BOUNDS = {torch.float64: (1e-11, 1e-11), torch.float32: (4e-6, 2e-5)}
LOW = "low rank"  # a G that is left in its factors


class Case(NamedTuple):
    batch: int
    heads: int
    length: int
    d_state: int
    channels: int
    chunk: int
    tiles: Tiles
    use: str = ""

    def __str__(self):
        sizes = "x".join(map(str, self[:4]))
        segment = "all" if self.tiles.per_segment == ALL else self.tiles.per_segment
        return f"{sizes}-k{self.channels}-c{self.chunk}-{self.tiles.columns}by{segment}-{self.use or 'causal'}"


class Given(NamedTuple):
    u: torch.Tensor
    K: torch.Tensor
    E: torch.Tensor
    G: torch.Tensor
    W: torch.Tensor | None
    O: torch.Tensor  # noqa: E741
    first: torch.Tensor | None
    dy: torch.Tensor
    dlast: torch.Tensor


def within(x):
    """The same numbers as part of a larger tensor, NaN everywhere else."""
    H, B, L = x.shape
    around = x.new_full((H + 1, B + 2, L + 3), torch.nan)
    around[:H, 1:-1, :L] = x
    return around[:H, 1:-1, :L]


def given(case, kind, dtype):
    """Inputs of the kernels in this dtype, and the gradients that arrive from behind."""
    both = "both" in case.use
    ssm = make(
        "diagonal-trained" if kind == LOW else kind,
        case.d_state,
        "bilinear",
        H=case.heads,
        channels=case.channels * (2 if both else 1),
        dt_min=0.01,
    )
    K, E, G, O = engine(ssm, case.chunk, ahead=case.channels if both else 0)  # noqa: E741
    W = torch.randn(2, case.heads, case.chunk, case.d_state).mul(0.3 * (case.chunk * case.d_state) ** -0.5)
    wide = torch.promote_types(dtype, torch.float32)
    W = W.to(DEVICE, wide) if kind == LOW else None
    K, E, O = (x.to(DEVICE, wide) for x in (K, E, O))  # noqa: E741
    u = torch.randn(case.heads, case.batch, case.length)
    dy = torch.randn(case.channels * case.heads, case.batch, case.length)
    first, dlast = (torch.randn(case.heads, case.batch, case.d_state, dtype=torch.float64) for _ in range(2))
    return Given(
        within(u.to(DEVICE, dtype)), K, E, G.to(DEVICE), W, O, first.to(DEVICE) if "first" in case.use else None,
        within(dy.to(DEVICE, dtype)), dlast.to(DEVICE),
    )  # fmt: skip


def results(y, last, gradients):
    names = ("u", "K", "E", "G", "W", "O", "first")
    found = {"y": y, "last": last, **dict(zip(names, gradients))}
    return {name: value for name, value in found.items() if value is not None}


def by_kernels(case, x):
    both, fused = "both" in case.use, "gelu" in case.use
    g = launch.grid(x.u, x.E, x.G, x.W, case.channels, case.tiles)
    y, last, saved = launch.forward(
        g, x.u, x.K, x.E, x.G, x.W, x.O,
        both=both, first=x.first, save=True, last=True, gelu=fused, keep="keep" in case.use,
    )  # fmt: skip
    has_first = x.first is not None
    (*found, dO, dfirst), dW = launch.backward(
        g, x.u, x.dy, x.dlast, saved, x.K, x.E, x.G, x.W, x.O, both=both, first=has_first, gelu=fused
    )  # fmt: skip
    assert y.dtype == x.u.dtype
    return results(y, last, [*found, dW, dO, dfirst])


def by_autograd(case, x):
    """The same by plain torch in float64."""
    leaves = [None if t is None else t.detach().double().clone().requires_grad_() for t in x[:7]]
    u, K, E, G, W, O, first = leaves  # noqa: E741
    found = plain.forward(u, K, E, G if W is None else multiplied(G, W), O, first, both="both" in case.use)
    y = gelu(found.y) if "gelu" in case.use else found.y
    y = y.flatten(0, 1)
    inputs = [t for t in leaves if t is not None]
    pairs = [(y, x.dy.double()), (found.last, x.dlast)]
    through, arriving = zip(*[pair for pair in pairs if pair[0].requires_grad])
    each = iter(torch.autograd.grad(through, inputs, arriving, materialize_grads=True))
    gradients = [None if t is None else next(each) for t in leaves]
    return {name: value.detach() for name, value in results(y, found.last, gradients).items()}


def rounded(x, dtype):
    """As float64 numbers that this dtype has."""
    return x._replace(**{
        name: value.to(dtype).double()
        for name, value in zip(x._fields, x)
        if name not in ("G", "W") and value is not None
    })  # fmt: skip


def relative(got, wanted):
    return ((got.double() - wanted).norm() / wanted.norm()).item()


def check_16_bits(cases, kind, dtype):
    """No worse than 1.5 times what rounding the inputs and the outputs alone does to an exact computation.

    Both over several draws, as the sums of squares of a few numbers that gradients of G are vary a lot.
    """
    draws = 4 if DEVICE == "cuda" else 1  # interpreted it takes long, and the seed is fixed
    errors, roundings = {}, {}
    for case in [case for case in cases for _ in range(draws)]:
        exact = given(case, kind, torch.float64)
        wanted, once = by_autograd(case, exact), by_autograd(case, rounded(exact, dtype))
        x = exact._replace(u=within(exact.u.to(dtype)), dy=within(exact.dy.to(dtype)))
        W = None if x.W is None else x.W.float()
        got = by_kernels(case, x._replace(K=x.K.float(), E=x.E.float(), W=W, O=x.O.float()))
        for name, value in got.items():
            errors[name] = errors.get(name, 0) + relative(value, wanted[name]) ** 2
            roundings[name] = roundings.get(name, 0) + relative(once[name].to(dtype), wanted[name]) ** 2
    for name, error in errors.items():
        assert 0 < error <= 1.5**2 * roundings[name], name
