"""One call of the kernels, with all its results and gradients, and the same by plain torch in float64."""

from typing import NamedTuple

import torch
from torch.nn.functional import gelu

from statespan.ops.ssm import chunks as plain
from statespan.ops.ssm._triton import launch
from statespan.ops.ssm.arguments import ChunkOperators, ChunkOptions, OutputGradients, Sequences
from statespan.ops.ssm.tiles import Tiles
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
    O: torch.Tensor  # noqa: E741
    W: torch.Tensor | None
    first: torch.Tensor | None
    dy: torch.Tensor
    dlast: torch.Tensor

    @property
    def operators(self):
        return ChunkOperators(*self[1:6])


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
    K, E, G, O, _ = engine(ssm, case.chunk, ahead=case.channels if both else 0)  # noqa: E741
    W = torch.randn(2, case.heads, case.chunk, case.d_state).mul(0.3 * (case.chunk * case.d_state) ** -0.5)
    wide = torch.promote_types(dtype, torch.float32)
    W = W.to(DEVICE, wide) if kind == LOW else None
    K, E, O = (x.to(DEVICE, wide) for x in (K, E, O))  # noqa: E741
    u = torch.randn(case.heads, case.batch, case.length)
    dy = torch.randn(case.channels * case.heads, case.batch, case.length)
    first, dlast = (torch.randn(case.heads, case.batch, case.d_state, dtype=torch.float64) for _ in range(2))
    return Given(
        within(u.to(DEVICE, dtype)), K, E, G.to(DEVICE), O, W, first.to(DEVICE) if "first" in case.use else None,
        within(dy.to(DEVICE, dtype)), dlast.to(DEVICE),
    )  # fmt: skip


def results(y, last, gradients):
    names = ("u", "K", "E", "G", "O", "W", "first")
    found = {"y": y, "last": last, **dict(zip(names, gradients))}
    return {name: value for name, value in found.items() if value is not None}


def by_kernels(case, x):
    both, fused = "both" in case.use, "gelu" in case.use
    options = ChunkOptions("triton", x.u.dtype, both, fused, True, True, keep_preactivation="keep" in case.use)
    g = launch.launch_plan(x.u, x.operators, both=both, tiles=case.tiles)
    y, last, saved = launch.forward(g, Sequences(x.u, x.first), x.operators, options)
    options = options._replace(has_first=x.first is not None)
    found = launch.backward(g, OutputGradients(x.dy, x.dlast), saved, x.operators, options=options)
    assert y.dtype == x.u.dtype
    return results(y, last, [found.u, *found.operators, found.first])


def by_autograd(case, x):
    """The same by plain torch in float64."""
    leaves = [None if t is None else t.detach().double().clone().requires_grad_() for t in x[:7]]
    u, K, E, G, O, W, first = leaves  # noqa: E741
    operators = ChunkOperators(K, E, G if W is None else multiplied(G, W), O)
    found = plain.forward(u, operators, first, both="both" in case.use)
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
