"""Runs the kernels of the chunk engine: shapes in, tensors out. No autograd here.

:mod:`statespan.ops.ssm.chunks` does the same in plain torch.

Shapes: H heads, B batch, L length, N state size, c chunk length, K channels, V = K·H virtual heads. With ``both``, the
kernels and O have 2K channels, the last K of which are anti-causal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.gelu import backward as gelu_backward
from statespan.ops._triton.launcher import Region, empty, launch
from statespan.ops._triton.sums import PartialSums, diagonals_kernel
from statespan.ops.memory import shared_memory
from statespan.ops.ssm._triton.apart import outputs, run_gradients, summing
from statespan.ops.ssm._triton.joined import joined_backward_kernel
from statespan.ops.ssm._triton.products import products
from statespan.ops.ssm._triton.scan import backward_kernel, forward_kernel
from statespan.ops.ssm._triton.states import segments_kernel, states_kernel
from statespan.ops.ssm.arguments import ChunkOperators, ChunkOptions, OutputGradients, SavedChunks, Sequences
from statespan.ops.ssm.chunks import Gradients, chunk_rows
from statespan.ops.ssm.tiles import Tiles, choose_tiles

TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float64: tl.float64}


class LaunchPlan(NamedTuple):
    """The division of a tensor into tiles, segments and columns."""

    H: int
    V: int
    B: int
    L: int
    N: int
    c: int
    dense: bool
    factored: bool
    dtype: torch.dtype
    tiles: Tiles = Tiles()

    @property
    def chunks(self) -> int:
        return -(-self.L // self.c)

    @property
    def segments(self) -> int:
        return -(-self.chunks // self.tiles.per_segment)

    @property
    def adds(self) -> bool:
        """Whether the anti-causal pass writes its contribution to the output instead of its states.

        For large states that moves less, and a second program of the forward pass fits on a multiprocessor.
        """
        return self.factored and self.V == self.H

    @property
    def splits(self) -> bool:
        """Whether each of the passes takes several kernels; see :mod:`.apart`."""
        return self.tiles.apart and not self.factored

    @property
    def width(self) -> int:
        """The state size, padded."""
        return max(16, triton.next_power_of_2(self.N))

    @property
    def state(self) -> torch.dtype:
        """The dtype that the state is carried in."""
        return torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else torch.float64

    @property
    def acc(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def programs(self, heads: int) -> tuple[int, int]:
        return heads, -(-self.B * self.segments // self.tiles.columns)

    def sizes(self) -> tuple[int, ...]:
        """The common integer arguments of the kernels."""
        return (
            self.H, self.B, self.L, self.N, self.chunks, self.L // self.c, self.segments, self.tiles.per_segment,
        )  # fmt: skip

    def constants(self) -> dict[str, Any]:
        """The common compile-time arguments of the kernels."""
        # full chunks and segments need no mask for loads, full tiles none for stores
        even = self.L % self.c == 0 and self.chunks % self.tiles.per_segment == 0 and self.width == self.N
        full = self.B * self.segments % self.tiles.columns == 0
        return {
            "C": self.c,
            "Q": self.width,
            "BT": self.tiles.columns,
            "EVEN": even,
            "FULL": full,
            "DENSE": self.dense,
            "LOW": self.factored,
            "ACC": TYPES[self.acc],
            "STATE": TYPES[self.state],
            "PRECISION": "parts" if self.dtype == torch.float32 else "ieee",
        }


def launch_plan(u: Tensor, operators: ChunkOperators, *, both: bool = False, tiles: Tiles | None = None) -> LaunchPlan:
    """The plan for an input (H, B, L) and operators."""
    (H, B, L), (_, c, N) = u.shape, operators.E.shape
    dense, factored = operators.G.ndim == 3, operators.W is not None
    channels = operators.K.shape[0] // (2 if both else 1)
    plan = LaunchPlan(H, channels * H, B, L, N, c, dense, factored, u.dtype)
    return with_tiles(plan, u.device, both=both, tiles=tiles)


def with_tiles(plan: LaunchPlan, device: torch.device, *, both: bool, tiles: Tiles | None = None) -> LaunchPlan:
    """The plan with its tiles: these, or the best on this device."""
    if tiles is None:
        tiles = choose_tiles(
            heads=plan.V, batch=plan.B, length=plan.L, d_state=plan.N, chunk=plan.c, dense=plan.dense,
            factored=plan.factored, dtype=plan.dtype, memory=shared_memory(device), both=both,
        )  # fmt: skip
    all_chunks = 1 << max(0, -(-plan.L // plan.c) - 1).bit_length()
    tiles = tiles._replace(per_segment=min(tiles.per_segment, all_chunks))
    single = tiles.per_segment == all_chunks
    assert not plan.factored or single, "a scan over segments needs the power of a whole segment"
    return plan._replace(tiles=tiles)


def states(
    plan: LaunchPlan, x: Tensor, M: Tensor, operators: ChunkOperators, *, left: bool, save: bool, adjoint: bool = False,
    flip: bool = False, start: Tensor | None = None, inject: Tensor | None = None,
    out: tuple[Tensor, Tensor] | None = None, into: Tensor | None = None, last: Tensor | None = None,
    end: Tensor | None = None, scale: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """A recurrence alone: the state before each chunk (save) or before each segment, (heads, B, chunks|segments, N).

    Args:
        plan: Tiles, segments and columns.
        x: (heads, B, L), what drives it.
        M: (heads, c, N), how x enters the state.
        operators: Of which G and W, the power of Ā that one chunk applies.
        left: Run from right to left.
        adjoint: Apply Gᵀ.
        flip: Take M's rows in the opposite order.
        save: Every chunk's state, or only those between segments.
        start: (heads, B, N) at the beginning, or None for zeros.
        inject: (H, B, N) to be added where the whole chunks end, or None.
        out: O (heads, c, N), and where to write what the saved states give to the output: (heads, B, chunks, c).
        into: Where to write the saved states, or None for new memory.
        last: Where to write the state behind the whole chunks (H, B, N), or None.
        end: Where to write the state behind each segment (heads, B, segments, N) in a pass that saves, or None.
        scale: What to multiply x by, and where to write the product, both like x and contiguous; for a single segment.
    """
    heads, G, W = x.shape[0], operators.G, operators.W
    flags = {
        "LEFT": left, "ADJOINT": adjoint, "FLIP": flip, "INJECT": inject is not None,
        "num_warps": plan.tiles.warps, "num_stages": plan.tiles.stages,
    }  # fmt: skip

    def run(kept: Tensor, end: Tensor | None, first: Tensor | None, save: bool) -> None:
        O, y = out if out and save else (None, None)  # noqa: E741
        slope, scaled = scale or (None, None)
        tail = last if save else None
        launch(
            states_kernel, plan.programs(heads),
            x, kept, end, M, G, W, first, inject, O, y, tail, slope, scaled, *plan.sizes(), x.stride(0), x.stride(1),
            SAVE=save, FIRST=first is not None, END=end is not None, OUT=y is not None, LAST=tail is not None,
            SLOPE=scaled is not None, **flags, **plan.constants(),
        )  # fmt: skip

    first = start
    if plan.segments > 1:
        assert scale is None, "x is multiplied in a single pass"
        ends, first = (empty((heads, plan.B, plan.segments, plan.N), plan.state, x.device) for _ in range(2))
        run(ends, ends, None, False)
        constants = {
            k: v for k, v in plan.constants().items() if k not in ("C", "BT", "EVEN", "FULL", "LOW", "ACC", "PRECISION")
        }
        rows = 16
        launch(
            segments_kernel, (heads, -(-plan.B // rows)),
            ends, first, start, G, plan.H, plan.B, plan.N, plan.segments, plan.tiles.per_segment.bit_length() - 1,
            BT=rows, LEFT=left, ADJOINT=adjoint, START=start is not None, num_warps=4 if plan.N <= 64 else 8,
            **constants,
        )  # fmt: skip
    if not save:
        if first is None:
            first = x.new_zeros(heads, plan.B, 1, plan.N, dtype=plan.state)
        return first.view(heads, plan.B, -1, plan.N)
    kept = empty((heads, plan.B, plan.chunks, plan.N), x.dtype, x.device) if into is None else into
    run(kept, end, first, True)
    return kept


class Room(NamedTuple):
    """Where the forward pass writes."""

    y: Tensor
    """(V, B, L)."""
    states: Tensor
    """(H, B, chunks, N): the state before each chunk; these and the others are empty if they are not saved."""
    ahead: Tensor
    """The same of the anti-causal recurrence."""
    preactivation: Tensor
    """Like y."""


def room_for(plan: LaunchPlan, options: ChunkOptions) -> list[Region]:
    """The shapes of a :class:`Room`."""
    states, y = (plan.H, plan.B, plan.chunks, plan.N), (plan.V, plan.B, plan.L)
    kept = options.save and options.gelu and options.keep_preactivation
    wanted = (True, options.save, options.save and options.both, kept)
    shapes = (y, states, states, y)
    return [Region(shape if want else (0,), plan.dtype) for shape, want in zip(shapes, wanted)]


def forward(
    plan: LaunchPlan, inputs: Sequences, operators: ChunkOperators, options: ChunkOptions, *, room: Room | None = None
) -> tuple[Tensor, Tensor | None, SavedChunks]:
    """Return y (V, B, L), the state after all whole chunks (H, B, N) if requested, and what the backward pass needs."""
    (u, first), (K, E, G, O, W) = inputs, operators  # noqa: E741
    both, save = options.both, options.save
    room = room or Room(*(empty(*part, u.device) for part in room_for(plan, options)))
    if plan.splits:
        return forward_apart(plan, inputs, operators, options, room)
    y, kept, ahead, preactivation = room
    end = empty((plan.H, plan.B, plan.N), plan.state, u.device) if options.last else None
    if options.last and plan.c > plan.L:
        end = u.new_zeros(plan.H, plan.B, plan.N, dtype=plan.state) if first is None else first.to(plan.state).clone()
    (K, Kb), (O, Ob) = (K.chunk(2), O.chunk(2)) if both else ((K, K), (O, O))  # noqa: E741
    added = empty((plan.H, plan.B, plan.chunks, plan.c), plan.acc, u.device) if both and plan.adds else None
    if both:
        out, into = None if added is None else (Ob, added), ahead if save else None
        ahead = states(plan, u, E, operators, left=True, flip=True, save=True, out=out, into=into)
    halves = plan.c >= 32 and not both  # half a chunk is then long enough for the tensor cores
    start = first
    if plan.segments > 1:
        start = states(plan, u, E, operators, left=False, save=False, start=first)
    launch(
        forward_kernel, plan.programs(plan.V),
        u, y, preactivation, kept, K, Kb, E, G, W, O, Ob, ahead if added is None else added, start, end,
        *plan.sizes(), u.stride(0), u.stride(1), y.stride(0), y.stride(1),
        BOTH=both, ADDED=added is not None, HALVES=halves, SAVE=save, FIRST=start is not None,
        LAST=options.last, GELU=options.gelu, PRE=preactivation.numel() > 0,
        num_warps=plan.tiles.warps, num_stages=plan.tiles.stages, **plan.constants(),
    )  # fmt: skip
    return y, end, SavedChunks(u, kept, ahead, preactivation)


def _partial_gradients(plan: LaunchPlan, operators: ChunkOperators, like: Tensor, both: bool) -> PartialSums:
    """For the gradients of T, E, O and G; those of a G in factors have no room for T, E and O, which stay empty."""
    sizes = [0, 0, 0] if plan.factored else [plan.V * plan.c**2, plan.V * plan.c * plan.N, operators.O.numel()]
    sizes.append(plan.V * operators.G.numel() // plan.H)
    totals = [empty((size,), plan.acc, like.device) for size in sizes]
    programs = summing(plan)[1] if plan.splits else plan.programs(plan.V)[1]
    return PartialSums(totals, programs, is_split=both)


def backward(
    plan: LaunchPlan, arriving: OutputGradients, saved: SavedChunks, operators: ChunkOperators, *,
    options: ChunkOptions, spare: Tensor | None = None, dD: Tensor | None = None,
) -> Gradients:  # fmt: skip
    """All gradients in the precision of the accumulators, that of u in the dtype of u.

    With one causal channel u's may be written into ``spare``, which may be u itself: each tile is read before it is
    written. (With W it is needed afterwards.) ``dD`` is filled with the gradient of the skip.
    """
    (dy, dlast), (K, E, G, O, W), u, both, gelu = arriving, operators, saved.u, options.both, options.gelu  # noqa: E741
    if plan.splits:
        return backward_apart(plan, arriving, saved, operators, options=options, dD=dD)
    if saved.preactivation.numel():
        dy, gelu = gelu_backward(dy, saved.preactivation.view_as(dy)), False
    tiles = plan.tiles  # the segments of the forward pass, with another number of columns
    plan = plan._replace(tiles=tiles._replace(columns=tiles.backward_columns or tiles.columns))
    once = plan.segments == 1 and not both and not plan.factored
    assert once or not gelu, "only one walk through all outputs recomputes the pre-activation"
    alone, shares = plan.V == plan.H and not both and not plan.factored, _partial_gradients(plan, operators, u, both)
    du = spare if alone and spare is not None else empty((plan.V, plan.B, plan.L), u.dtype, u.device)
    dT, dE, dO, dG = shares.first
    dfirst = empty((plan.V, plan.B, plan.N), plan.state, u.device) if options.has_first else None
    K, Kb = K.chunk(2) if both else (K, K)
    summed: list[Tensor] = []  # of a G in factors: the gradients of E, O and W in each direction
    for ahead, O_half, kept in zip((False, True) if both else (False,), O.chunk(2) if both else (O,), saved[1:]):
        inject = dlast.to(plan.state).contiguous() if dlast is not None and plan.c <= plan.L and not ahead else None
        start = None
        if plan.segments > 1:
            start = states(plan, dy, O_half, operators, left=not ahead, adjoint=True, save=False, inject=inject)
        kernel, sums = backward_kernel, shares.first
        if not shares.is_joined:
            sums = dT, dE, dG, dO[len(dO) // 2 :] if ahead else dO
        else:
            rows, at_T, at_E, at_O, at_G = shares.places()
            kernel, sums = joined_backward_kernel, (rows, at_T, at_E, at_O + ahead * O.numel() // 2, at_G)
        adjoint = empty((plan.V, plan.B, plan.chunks, plan.N), u.dtype, u.device) if plan.factored else u
        launch(
            kernel, plan.programs(plan.V),
            u, dy, du, kept, K, Kb, E, G, W, O_half, start, inject, dfirst, *sums, shares.size, adjoint,
            *plan.sizes(), u.stride(0), u.stride(1), dy.stride(0), dy.stride(1), du.stride(0), du.stride(1),
            BOTH=both, AHEAD=ahead, FIRST=start is not None, INJECT=inject is not None,
            DFIRST=options.has_first and not ahead, GELU=gelu,
            num_warps=plan.tiles.backward_warps, num_stages=plan.tiles.backward_stages, **plan.constants(),
        )  # fmt: skip
        if plan.factored:
            assert W is not None
            summed.append(products(u, dy, kept, adjoint, W=W, ahead=ahead, acc=plan.acc))
    if dfirst is not None:
        dfirst = _over_channels(dfirst, plan.H)
        dfirst = dfirst + dlast if dlast is not None and plan.c > plan.L else dfirst
    (dT, dE, dO, dG), dW = shares.sum(), None
    if plan.factored:
        dT = _toeplitz(plan, u, dy)
        dE, _, *rest = summed[0] + summed[1] if both else summed[0]
        dO = torch.stack([each[1] for each in summed])
        dW = _over_channels(torch.stack(rest), plan.H, 1)
    dK = empty(operators.K.shape, plan.acc, u.device)
    launch(diagonals_kernel, (plan.V,), dT, dK, dD, C=plan.c, BOTH=both, SKIP=dD is not None, num_warps=4)
    dE, dG = (_over_channels(x.view(plan.V, *shape[1:]), plan.H) for x, shape in ((dE, E.shape), (dG, G.shape)))
    return Gradients(_over_channels(du, plan.H), ChunkOperators(dK, dE, dG, dO.view(O.shape), dW), dfirst)


def forward_apart(
    plan: LaunchPlan, inputs: Sequences, operators: ChunkOperators, options: ChunkOptions, room: Room
) -> tuple[Tensor, Tensor | None, SavedChunks]:
    """:func:`forward` by a kernel for the states and one for the outputs, which saves GELU's slope."""
    (u, first), O, both = inputs, operators.O, options.both  # noqa: E741
    y, kept, ahead, slope = room
    end = empty((plan.H, plan.B, plan.N), plan.state, u.device) if options.last else None
    if end is not None and plan.c > plan.L:
        end = torch.zeros_like(end) if first is None else first.to(plan.state).clone()
    into = kept if options.save else None
    before = states(plan, u, operators.E, operators, left=False, save=True, start=first, last=end, into=into)
    behind = ahead
    if both:
        into = ahead if options.save else None
        behind = states(plan, u, operators.E, operators, left=True, flip=True, save=True, into=into)
    rows = [(part, half) for part, half in zip((before, behind), O.chunk(2) if both else (O,))]
    outputs(plan, u, rows, kernel=operators.K, out=y, gelu=options.gelu, slope=slope if slope.numel() else None)
    return y, end, SavedChunks(u, kept, ahead, slope)


def backward_apart(
    plan: LaunchPlan, arriving: OutputGradients, saved: SavedChunks, operators: ChunkOperators, *,
    options: ChunkOptions, dD: Tensor | None,
) -> Gradients:  # fmt: skip
    """:func:`backward` by kernels for the adjoint states, for u's gradient and for those of the operators."""
    (dy, dlast), (_, E, G, O, _), u, both = arriving, operators, saved.u, options.both  # noqa: E741
    scale, slope = None, saved.preactivation
    assert slope.numel() or not options.gelu, "an activation's slope is saved, not recomputed"
    if slope.numel():
        slope = slope.view(dy.shape)
        if plan.segments > 1 or both:
            dy = dy * slope
        else:
            scale = slope, empty(dy.shape, dy.dtype, dy.device)
    shares = _partial_gradients(plan, operators, u, both)
    dT, dE, dO, dG = shares.first
    end = empty((plan.V, plan.B, plan.segments, plan.N), plan.state, u.device) if options.has_first else None
    inject = dlast.to(plan.state).contiguous() if dlast is not None and plan.c <= plan.L else None
    halves = O.chunk(2) if both else (O,)
    adjoints = [
        states(
            plan, dy, half, operators, left=not ahead, adjoint=True, save=True, inject=None if ahead else inject,
            end=None if ahead else end, scale=scale,
        )
        for half, ahead in zip(halves, (False, True))
    ]  # fmt: skip
    dy = dy if scale is None else scale[1]
    du = empty((plan.V, plan.B, plan.L), u.dtype, u.device)
    outputs(plan, dy, [(adjoint, E) for adjoint in adjoints], kernel=operators.K, out=du, transposed=True)
    for ahead, adjoint in enumerate(adjoints):
        out = dT, dE, dG, dO[len(dO) // 2 :] if ahead else dO
        run_gradients(plan, u, (dy, saved[1 + ahead], adjoint), out, ahead=bool(ahead), share=shares.size)
    dfirst = None if end is None else _over_channels(end[:, :, 0], plan.H)
    if dfirst is not None and dlast is not None and plan.c > plan.L:
        dfirst = dfirst + dlast
    dT, dE, dO, dG = shares.sum()
    dK = empty(operators.K.shape, plan.acc, u.device)
    launch(diagonals_kernel, (plan.V,), dT, dK, dD, C=plan.c, BOTH=both, SKIP=dD is not None, num_warps=4)
    dE, dG = (_over_channels(x.view(plan.V, *shape[1:]), plan.H) for x, shape in ((dE, E.shape), (dG, G.shape)))
    return Gradients(_over_channels(du, plan.H), ChunkOperators(dK, dE, dG, dO.view(O.shape), None), dfirst)


def _over_channels(x: Tensor, H: int, dim: int = 0) -> Tensor:
    """Sum over channels, the leading part of an axis of virtual heads."""
    return x.unflatten(dim, (-1, H)).sum(dim) if x.shape[dim] > H else x


def _toeplitz(plan: LaunchPlan, u: Tensor, dy: Tensor) -> Tensor:
    """The gradient of T, (V, c, c): ``dYᵀ U`` over the chunks of all sequences."""
    U, dY = chunk_rows(u, plan.c), chunk_rows(dy, plan.c)
    U = U.repeat(plan.V // plan.H, 1, 1) if plan.V > plan.H else U
    if u.dtype == plan.acc or not u.is_cuda:
        return dY.to(plan.acc).mT @ U.to(plan.acc)
    return torch.bmm(dY.mT, U, out_dtype=plan.acc)
