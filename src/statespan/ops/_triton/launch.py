"""Running the kernels: shapes in, tensors out. No autograd here.

Shapes: H heads, B batch, L length, N state size, c chunk length, K channels, V = K·H virtual heads. With ``both``, the
kernels and O have 2K channels, the last K of which look ahead. W (2, H, c, N) are the factors of a low-rank part
of G, or None.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.gelu import backward as gelu_backward
from statespan.ops._triton.products import products
from statespan.ops._triton.scan import backward_kernel, forward_kernel
from statespan.ops._triton.states import segments_kernel, states_kernel
from statespan.ops._triton.sums import diagonals_kernel, sum_shares
from statespan.ops.memory import shared_memory
from statespan.ops.plain import Gradients, chunk_rows
from statespan.ops.tiles import Tiles, choose

TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float64: tl.float64}


class Saved(NamedTuple):
    """What the backward pass needs from the forward pass."""

    states: Tensor
    """(H, B, chunks, N): the state before each chunk."""
    ahead: Tensor
    """The same of the recurrence from the right; empty without one."""
    pre: Tensor
    """(V, B, L): what is in front of the activation, where it was kept; empty otherwise."""


class Grid(NamedTuple):
    """How one tensor is cut up."""

    H: int
    V: int
    B: int
    L: int
    N: int
    c: int
    dense: bool
    low: bool
    dtype: torch.dtype
    tiles: Tiles

    @property
    def chunks(self) -> int:
        return -(-self.L // self.c)

    @property
    def segments(self) -> int:
        return -(-self.chunks // self.tiles.per_segment)

    @property
    def even(self) -> bool:
        """Whether all chunks and segments are whole, so that no load needs a mask."""
        return self.L % self.c == 0 and self.chunks % self.tiles.per_segment == 0 and self.width == self.N

    @property
    def full(self) -> bool:
        """Whether all tiles are, so that no store does either."""
        return self.B * self.segments % self.tiles.columns == 0

    @property
    def halves(self) -> bool:
        """Whether half a chunk is long enough for the matrix units."""
        return self.c >= 32

    @property
    def adds(self) -> bool:
        """Whether the pass ahead leaves what its states give to the output, and not only the states.

        Of large ones that is less to move, and a second program of the forward pass has room on a multiprocessor.
        """
        return self.low and self.V == self.H

    @property
    def width(self) -> int:
        """The state size, padded."""
        return max(16, triton.next_power_of_2(self.N))

    @property
    def state(self) -> torch.dtype:
        """The precision the state is carried in."""
        return torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else torch.float64

    @property
    def acc(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def backward(self) -> Grid:
        """The plan of the backward pass: the same segments, with its own number of columns."""
        columns = self.tiles.backward_columns or self.tiles.columns
        return self._replace(tiles=self.tiles._replace(columns=columns))

    def programs(self, heads: int) -> tuple[int, int]:
        return heads, -(-self.B * self.segments // self.tiles.columns)

    def sizes(self) -> tuple[int, ...]:
        """The kernels' common integers."""
        return (
            self.H, self.B, self.L, self.N, self.chunks, self.L // self.c, self.segments, self.tiles.per_segment,
        )  # fmt: skip

    def constants(self) -> dict[str, Any]:
        """The kernels' common compile-time arguments."""
        return {
            "C": self.c,
            "Q": self.width,
            "BT": self.tiles.columns,
            "EVEN": self.even,
            "FULL": self.full,
            "DENSE": self.dense,
            "LOW": self.low,
            "ACC": TYPES[self.acc],
            "STATE": TYPES[self.state],
            "PRECISION": "tf32x3" if self.dtype == torch.float32 else "ieee",
        }


def grid(
    u: Tensor, E: Tensor, G: Tensor, W: Tensor | None, channels: int, tiles: Tiles | None = None, *, both: bool = False
) -> Grid:
    """The plan for an input (H, B, L) and operators."""
    (H, B, L), (_, c, N) = u.shape, E.shape
    dense, low = G.ndim == 3, W is not None
    if tiles is None:
        tiles = choose(channels * H, B, L, N, c, dense, low, u.dtype, shared_memory(u.device), both)
    all_chunks = 1 << max(0, -(-L // c) - 1).bit_length()
    tiles = tiles._replace(per_segment=min(tiles.per_segment, all_chunks))
    assert not low or tiles.per_segment == all_chunks, "a scan over segments needs the power of a whole segment"
    return Grid(H, channels * H, B, L, N, c, dense, low, u.dtype, tiles)


def states(
    g: Grid, x: Tensor, M: Tensor, G: Tensor, W: Tensor | None, *, left: bool, adjoint: bool, flip: bool,
    save: bool, start: Tensor | None = None, inject: Tensor | None = None, out: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """A recurrence alone: the state before each chunk (save) or before each segment, (heads, B, chunks|segments, N).

    Args:
        g: The plan.
        x: (heads, B, L), what drives it.
        M: (heads, c, N), how x enters the state.
        G: The power of Ā that one chunk applies.
        W: The factors of its low-rank part.
        left: Run from right to left.
        adjoint: Apply Gᵀ.
        flip: Take M's rows in the opposite order.
        save: Every chunk's state, or only those between segments.
        start: (heads, B, N) at the beginning, or None for zeros.
        inject: (H, B, N) to be added where the whole chunks end, or None.
        out: O (heads, c, N), and where to write what the saved states give to the output: (heads, B, chunks, c).
    """
    heads = x.shape[0]
    flags = {
        "LEFT": left, "ADJOINT": adjoint, "FLIP": flip, "INJECT": inject is not None,
        "num_warps": g.tiles.warps, "num_stages": g.tiles.stages,
    }  # fmt: skip

    def run(kept: Tensor, end: Tensor, first: Tensor | None, save: bool) -> None:
        O, y = out if out and save else (None, None)  # noqa: E741
        states_kernel[g.programs(heads)](
            x, kept, end, M, G, W, first, inject, O, y, *g.sizes(), x.stride(0), x.stride(1),
            SAVE=save, FIRST=first is not None, END=not save, OUT=y is not None, **flags, **g.constants(),
        )  # fmt: skip

    first = start
    if g.segments > 1:
        end = x.new_empty(heads, g.B, g.segments, g.N, dtype=g.state)
        run(end, end, None, False)
        first = torch.empty_like(end)
        power, doublings = G, g.tiles.per_segment.bit_length() - 1
        if g.dense:
            power = G.to(g.state)
            for _ in range(doublings):
                power = power @ power
        constants = {
            k: v for k, v in g.constants().items() if k not in ("C", "BT", "EVEN", "FULL", "LOW", "ACC", "PRECISION")
        }
        rows = 16
        segments_kernel[(heads, -(-g.B // rows))](
            end, first, start, power, g.H, g.B, g.N, g.segments, doublings,
            BT=rows, LEFT=left, ADJOINT=adjoint, START=start is not None, num_warps=4, **constants,
        )  # fmt: skip
    if not save:
        return x.new_zeros(heads, g.B, 1, g.N, dtype=g.state) if first is None else first.view(heads, g.B, -1, g.N)
    kept = x.new_empty(heads, g.B, g.chunks, g.N)
    run(kept, kept, first, True)
    return kept


def forward(
    g: Grid, u: Tensor, K: Tensor, E: Tensor, G: Tensor, W: Tensor | None, O: Tensor, *, both: bool,  # noqa: E741
    first: Tensor | None, save: bool, last: bool, gelu: bool, keep: bool = False,
) -> tuple[Tensor, Tensor | None, Saved | None]:  # fmt: skip
    """Y (V, B, L), the state after all whole chunks (H, B, N) where asked, and what the backward pass needs.

    ``keep`` saves what is in front of the activation; otherwise the backward pass computes it again.
    """
    y = u.new_empty(g.V, g.B, g.L)
    kept = u.new_empty(g.H, g.B, g.chunks, g.N) if save else u.new_empty(0)
    end = u.new_empty(g.H, g.B, g.N, dtype=g.state) if last else None
    if last and g.c > g.L:
        end = u.new_zeros(g.H, g.B, g.N, dtype=g.state) if first is None else first.to(g.state).clone()
    ahead, pre = u.new_empty(0), u.new_empty(0)
    if save and gelu and keep:
        pre = torch.empty_like(y)
    (K, Kb), (O, Ob) = (K.chunk(2), O.chunk(2)) if both else ((K, K), (O, O))  # noqa: E741
    added = u.new_empty(g.H, g.B, g.chunks, g.c, dtype=g.acc) if both and g.adds else None
    if both:
        out = None if added is None else (Ob, added)
        ahead = states(g, u, E, G, W, left=True, adjoint=False, flip=True, save=True, out=out)
    start = first
    if g.segments > 1:
        start = states(g, u, E, G, W, left=False, adjoint=False, flip=False, save=False, start=first)
    forward_kernel[g.programs(g.V)](
        u, y, pre, kept, K, Kb, E, G, W, O, Ob, ahead if added is None else added, start, end,
        *g.sizes(), u.stride(0), u.stride(1), y.stride(0), y.stride(1),
        BOTH=both, ADDED=added is not None, HALVES=g.halves and not both, SAVE=save, FIRST=start is not None,
        LAST=last, GELU=gelu, PRE=pre.numel() > 0,
        num_warps=g.tiles.warps, num_stages=g.tiles.stages, **g.constants(),
    )  # fmt: skip
    return y, end, Saved(kept, ahead, pre) if save else None


def backward(
    g: Grid, u: Tensor, dy: Tensor, dlast: Tensor | None, saved: Saved, K: Tensor, E: Tensor, G: Tensor,
    W: Tensor | None, O: Tensor, *, both: bool, first: bool, gelu: bool, spare: Tensor | None = None,  # noqa: E741
) -> tuple[Gradients, Tensor | None]:  # fmt: skip
    """Every gradient, in the precision of the accumulators; u's in the dtype of u. W's comes apart.

    With one channel that looks back u's may be written into ``spare``, which may be u itself: each tile is read before
    it is written. (With W it is needed afterwards.)
    """
    if saved.pre.numel():
        dy, gelu = gelu_backward(dy, saved.pre.view_as(dy)), False
    g = g.backward()
    once = g.segments == 1 and not both and not g.low
    assert once or not gelu, "only one walk through all outputs computes again what is in front of the activation"
    channels, tiles = g.V // g.H, g.programs(g.V)[1]
    alone = channels == 1 and not both and not g.low
    du = spare if alone and spare is not None else u.new_empty(g.V, g.B, g.L)
    ways = 2 if both else 1
    # each tile's share of the gradients of T, E, O and G, side by side, so that one kernel sums them all
    sizes = [0, 0, 0] if g.low else [g.V * g.c * g.c, g.V * g.c * g.N, ways * g.V * g.c * g.N]
    sizes.append(g.V * G[0].numel())
    dT, dE, dO, dG = totals = [u.new_empty(size, dtype=g.acc) for size in sizes]
    if tiles > 1:
        shares = u.new_empty(tiles, sum(sizes), dtype=g.acc)
        dT, dE, dO, dG = shares[0].split(sizes)
    dfirst = torch.empty(g.V, g.B, g.N, dtype=g.state, device=u.device) if first else None
    K, Kb = K.chunk(2) if both else (K, K)
    found: list[Tensor] = []  # of a large state: the gradients of E, O and W in each direction
    for way, (O_, kept) in enumerate(zip(O.chunk(ways), saved)):
        ahead = way == 1
        inject = dlast.to(g.state).contiguous() if dlast is not None and g.c <= g.L and not ahead else None
        start = None
        if g.segments > 1:
            start = states(g, dy, O_, G, W, left=not ahead, adjoint=True, flip=False, save=False, inject=inject)
        adjoint = u.new_empty(g.V, g.B, g.chunks, g.N) if g.low else u
        backward_kernel[g.programs(g.V)](
            u, dy, du, kept, K, Kb, E, G, W, O_, start, inject, dfirst,
            dT, dE, dG, dO[way * (len(dO) // ways) :], sum(sizes), adjoint,
            *g.sizes(), u.stride(0), u.stride(1), dy.stride(0), dy.stride(1), du.stride(0), du.stride(1),
            BOTH=both, AHEAD=ahead, FIRST=start is not None, INJECT=inject is not None, DFIRST=first and not ahead,
            GELU=gelu,
            num_warps=g.tiles.backward_warps, num_stages=g.tiles.backward_stages, **g.constants(),
        )  # fmt: skip
        if g.low:
            assert W is not None
            found.append(products(u, dy, kept, adjoint, W, ahead=ahead, acc=g.acc))
    if tiles > 1:
        sum_shares(shares, totals)
        dT, dE, dO, dG = totals
    dW = None
    if g.low:
        dT = _toeplitz(g, u, dy)
        dE, _, *rest = found[0] + found[1] if both else found[0]
        dO = torch.stack([each[1] for each in found])
        dW = _over_channels(torch.stack(rest), g.H, 1)
    dK = dT.new_empty(ways * channels, g.H, g.c)
    diagonals_kernel[(g.V,)](dT, dK, C=g.c, BOTH=both, num_warps=4)
    if dfirst is not None:
        dfirst = _over_channels(dfirst, g.H)
        if dlast is not None and g.c > g.L:
            dfirst = dfirst + dlast
    gradients = Gradients(
        _over_channels(du, g.H),
        dK,
        _over_channels(dE.view(g.V, g.c, g.N), g.H),
        _over_channels(dG.view(g.V, *G.shape[1:]), g.H),
        dO.view(-1, g.H, g.c, g.N),
        dfirst,
    )
    return gradients, dW


def _over_channels(x: Tensor, H: int, dim: int = 0) -> Tensor:
    """The sum over channels, which an axis of virtual heads has in front of its H heads."""
    return x.unflatten(dim, (-1, H)).sum(dim) if x.shape[dim] > H else x


def _toeplitz(g: Grid, u: Tensor, dy: Tensor) -> Tensor:
    """The gradient of T, (V, c, c): ``dYᵀ U`` over the chunks of all sequences."""
    U, dY = chunk_rows(u, g.c), chunk_rows(dy, g.c)
    U = U.repeat(g.V // g.H, 1, 1) if g.V > g.H else U
    if u.dtype == g.acc or not u.is_cuda:
        return dY.to(g.acc).mT @ U.to(g.acc)
    return torch.bmm(dY.mT, U, out_dtype=g.acc)
