"""Applies an SSM to whole sequences; the entry point of the engine.

Shapes: B batch, L length, H heads, N state size, K channels, c chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, pad

from statespan._check import check_tensor
from statespan.ops import dispatch
from statespan.ops.cauchy import cauchy_kernel
from statespan.ops.glu.activation import gelu as gelu_in_place
from statespan.ops.register import transformed
from statespan.ops.ssm import layout
from statespan.ops.ssm.arguments import (
    BuildOptions,
    ChunkOperators,
    ChunkOptions,
    ModeTensors,
    RecurrenceOptions,
    Sequences,
    WholeOptions,
)
from statespan.ops.ssm.causal import is_spoiled, without_spoiled
from statespan.ops.ssm.chunk_length import chunk_length
from statespan.ops.ssm.fftconv import fftconv
from statespan.ops.ssm.layout import ordered, packed
from statespan.ops.ssm.memo import remembered
from statespan.ops.ssm.registered.chunks import chunks
from statespan.ops.ssm.registered.layout import is_lengthwise, lengthwise
from statespan.ops.ssm.registered.modes import modes
from statespan.ops.ssm.registered.operators import build_diagonal, build_rank_one
from statespan.ops.ssm.registered.recurrence import recurrence
from statespan.ops.ssm.registered.whole import ssm_at_once
from statespan.ops.ssm.short import apply_short
from statespan.ops.ssm.source import SSMSource, source_of
from statespan.ops.ssm.tiles import SIXTEEN_BITS
from statespan.ssm import DPLR, Diagonal, Structure
from statespan.ssm.modal import DiagonalFactors
from statespan.ssm.structure import delayed


class Request(NamedTuple):
    """A caller's request, and the path that runs.

    Example:
        >>> from statespan import S4D
        >>> request = request_for(S4D(4, 8).ssm.source(), torch.zeros(2, 1000, 4), gelu=True)
        >>> request.ahead(channels=1), request.dtype
        (0, torch.float32)
    """

    source: SSMSource
    u: Tensor
    D: Tensor | None
    bidirectional: bool
    gelu: bool
    dtype: torch.dtype
    """Of the result."""
    path: str
    working: torch.dtype
    """What to compute in."""

    def ahead(self, channels: int) -> int:
        """The number of the SSM's anti-causal channels."""
        return channels // 2 if self.bidirectional else 0

    def finish(self, y: Tensor) -> Tensor:
        """Return y with the activation, in the requested dtype."""
        return (gelu(y) if self.gelu else y).to(self.dtype)


def request_for(
    ssm: Structure | SSMSource, u: Tensor, D: Tensor | None = None, *, bidirectional: bool = False, gelu: bool = False,
    dtype: torch.dtype | None = None,
) -> Request:  # fmt: skip
    """The request with the path that the dispatcher chooses; for the arguments see :func:`apply`."""
    source = source_of(ssm) if isinstance(ssm, Structure) else ssm
    dtype = dtype or dispatch.input_dtype(source, u)
    path = dispatch.choose_path(source, u, dtype)
    return Request(source, u, D, bidirectional, gelu, dtype, path, dispatch.path_dtype(path, dtype))


def apply(
    ssm: Structure | SSMSource, u: Tensor, D: Tensor | None = None, *, bidirectional: bool = False,
    activation: str | None = None, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Apply an SSM to whole sequences by the fastest path.

    On a CPU, outside of compiled code, a NaN or an infinity in u makes the causal outputs from its time on NaN and
    leaves those before as they are. Elsewhere the outputs from its chunk's start on are NaN; with an FFT all of them.

    Args:
        ssm: The SSM.
        u: (B, L, H), in any memory order; on a GPU fastest with the length as the last axis in memory.
        D: A skip (K, H), or None.
        bidirectional: The last half of the SSM's channels is anti-causal, starting at the next sample.
        activation: "gelu" or None.
        dtype: What to compute in; None for a 16-bit u on a GPU means its own, else the wider of u's and the SSM's.

    Returns:
        y (B, L, K, H).
    """
    request = request_for(ssm, u, D, bidirectional=bidirectional, gelu=activation is not None, dtype=dtype)
    y = _apply(request)
    if not bidirectional and is_spoiled(y) and (mended := without_spoiled(u)):
        return _apply(request._replace(u=mended.u)) + mended.nan
    return y


def _apply(request: Request) -> Tensor:
    source, u, _, bidirectional, fused, dtype, path, working = request
    if 0 in u.shape[:2]:
        channels = source.structure().channels
        return u.new_zeros(*u.shape[:2], channels - request.ahead(channels), u.shape[2], dtype=dtype)
    if (short := apply_short(request)) is not None:
        return request.finish(short)
    if path == "fft" or dispatch.sums_cauchy(source, u):
        return request.finish(_convolve(request._replace(working=dispatch.path_dtype("fft", dtype))))
    if dispatch.runs_stepwise(path, source, working):
        return request.finish(_run_recurrence(request, None, last=False)[0])
    if (found := at_once(request)) is not None:
        return ssm_at_once(u, found.modes, found.options).to(dtype)
    operators = remembered_operators(request)
    kernels, keep = fused and path == "triton", False
    if kernels:
        channels, _, chunk = operators.K.shape
        keep = not dispatch.walks_once(source, u, working, channels=channels, both=bidirectional, chunk=chunk)
    options = ChunkOptions(path, working, bidirectional, gelu=kernels, keep_preactivation=keep)
    y, _ = run_chunks(u, None, operators, options)
    return (gelu_in_place(y) if fused and not kernels else y).to(dtype)


class AtOnce(NamedTuple):
    """The arguments of the step that builds the operators and applies them.

    Example:
        >>> from statespan import S4D
        >>> modes = S4D(4, 8).ssm.modal(1.0).modes(None)
        >>> fields = dict.fromkeys(WholeOptions._fields, False) | {"chunk": 32, "ahead": 0, "dtype": torch.float32}
        >>> AtOnce(modes, WholeOptions(**fields)).options.chunk
        32
    """

    modes: ModeTensors
    options: WholeOptions


def at_once(request: Request) -> AtOnce | None:
    """How to run a request in one step, of which a GPU repeats the launches alone; None where there is none."""
    source, u, D, both, fused, _, path, working = request
    if path != "triton" or transformed() or 0 in u.shape[:2] or dispatch.runs_stepwise(path, source, working):
        return None
    modal = source.modal()
    if modal is None or modal.rule == "foh":
        return None
    factored = dispatch.keeps_factors(path, source, working)
    chunk, modes = chunk_length(path, source, working, u, factored=factored), modal.modes(D)
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (u, *modes))
    keep = fused and save and not dispatch.walks_once(
        source, u, working, channels=modes.C.shape[0], both=both, chunk=chunk
    )  # fmt: skip
    options = WholeOptions(
        chunk, request.ahead(modes.C.shape[0]), modal.rule, modal.real_part, modal.log_dt,
        working not in SIXTEEN_BITS, factored, working == torch.float32 and modes.P is None, working, fused, keep, save,
    )  # fmt: skip
    return AtOnce(modes, options)


def apply_from(
    ssm: Structure | SSMSource, u: Tensor, state: Tensor | None, D: Tensor | None = None, *,
    activation: str | None = None, dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same from a state to a state, never by an FFT.

    Args:
        ssm: The SSM.
        u: (B, L, H).
        state: (B, H, N), or None for zeros.
        D: As in :func:`apply`, as are the rest.
        activation: "gelu" or None.
        dtype: What to compute in.

    Returns:
        y (B, L, K, H), and the state after the last sample in the dtype of ``state`` (float64 for None).
    """
    request = request_for(ssm, u, D, gelu=activation is not None, dtype=dtype)
    if request.path == "fft":
        request = request._replace(path="chunks")
    y, after = _apply_from(request, state)
    if is_spoiled(y) and (mended := without_spoiled(u)):
        y = _apply_from(request._replace(u=mended.u), state)[0] + mended.nan
    return y, after


def _apply_from(request: Request, state: Tensor | None) -> tuple[Tensor, Tensor]:
    source, u, path, working = request.source, request.u, request.path, request.working
    structure = source.structure()
    batch, length, heads = check_tensor("u", u, ("batch", "length", structure.heads), kind="float").shape
    if state is None:
        state = structure.initial_state(batch)
    check_tensor("state", state, (batch, heads, source.d_state), kind="real")
    if 0 in u.shape[:2]:
        return u.new_zeros(batch, length, structure.channels, heads, dtype=request.dtype), state
    if dispatch.runs_stepwise(path, source, working):
        y, last = _run_recurrence(request, state.double().transpose(0, 1), last=True)
        return request.finish(y), last.transpose(0, 1).to(state.dtype)
    operators = remembered_operators(request)
    dense = operators.G.ndim != 2  # the order of the state: see `ordered`
    first = ordered(state.double(), dense).transpose(0, 1).contiguous()
    y, last = run_chunks(u, first, operators, ChunkOptions(path, working, last=True))
    after = packed(last.transpose(0, 1), dense)
    if rest := length % operators.E.shape[1]:  # the samples behind the last whole chunk
        tail = torch.einsum("brh,hrn->bhn", u[:, length - rest :].double(), operators.E[:, -rest:].double())
        after = structure.advance(after, rest) + packed(tail, dense)
    return request.finish(y), after.to(state.dtype)


def _convolve(request: Request) -> Tensor:
    u, D = request.u.to(request.working), request.D

    def make() -> Tensor:
        modal = request.source.modal() if dispatch.sums_cauchy(request.source, u) else None
        if modal is not None:
            return cauchy_kernel(modal, u.shape[1], u.dtype)
        structure = request.source.structure()
        return structure.kernel(u.shape[1], ahead=request.ahead(structure.channels)).to(u.dtype)

    kernels = remembered(request, ("kernel", u.shape[1]), make)
    y = fftconv(u, *kernels.chunk(2)) if request.bidirectional else fftconv(u, kernels)
    return y if D is None else y + D.to(u.dtype) * u[:, :, None]


def remembered_operators(request: Request) -> ChunkOperators:
    """The same as :func:`build_operators`, from memory if a layer was last called with this set-up."""
    source, u, dtype, path = request.source, request.u, request.working, request.path
    if source.memo is None or path != "chunks":
        return build_operators(request)
    chunk = chunk_length(path, source, dtype, u, factored=False)
    return remembered(request, ("chunks", chunk), lambda: build_operators(request))


def build_operators(request: Request) -> ChunkOperators:
    """The operators, with the skip in K, in the engine's state layout."""
    source, D, path, dtype = request.source, request.D, request.path, request.working
    factored = dispatch.keeps_factors(path, source, dtype)
    chunk = chunk_length(path, source, dtype, request.u, factored=factored)
    modal = source.modal() if path == "triton" else None
    if modal is not None:
        channels, precise, linear = modal.parameters.C.shape[0], dtype not in SIXTEEN_BITS, modal.rule == "foh"
        ahead = request.ahead(channels)
        rounded = dtype == torch.float32 and not linear and modal.parameters.P is None
        options = BuildOptions(
            chunk, channels if linear else ahead, modal.rule, modal.real_part, modal.log_dt, precise, factored, rounded
        )
        built = ChunkOperators(*modes(modal.modes(None if linear else D), options))
        if linear:
            return _with_skip(_held_linearly(built, source.structure(), ahead), D, ahead)._replace(W=None)
        return built if factored else built._replace(W=None)
    structure = source.structure()
    ahead, wide = request.ahead(structure.channels), torch.promote_types(dtype, torch.float32)
    if path == "chunks" and source.power in ("diagonal", "rank one") and structure.dt.is_cpu:
        linear = structure.discretization == "foh"
        lists = build_from_lists(structure, chunk, structure.channels if linear else ahead, wide)
        built = ChunkOperators(*lists[:4])
        return _with_skip(_held_linearly(built, structure, ahead) if linear else built, D, ahead)
    K, E, G, O = structure.operators(chunk, ahead=ahead, dtype=torch.float64)  # noqa: E741
    if D is not None:
        K = K + pad(D.double()[..., None], (0, chunk - 1, 0, 0, 0, ahead))
    E, O = ordered(E.mT, source.dense), ordered(O, source.dense)  # noqa: E741
    G = G if source.dense else ordered(G, False)
    return ChunkOperators(K.to(wide), E.to(wide).contiguous(), G.contiguous(), O.to(wide).contiguous())


def _with_skip(operators: ChunkOperators, D: Tensor | None, ahead: int) -> ChunkOperators:
    """Operators with the skip of the causal channels in the first value of their kernels."""
    if D is None:
        return operators
    K = operators.K
    return operators._replace(K=K + pad(D.to(K.dtype)[..., None], (0, K.shape[-1] - 1, 0, 0, 0, ahead)))


def _held_linearly(operators: ChunkOperators, structure: Structure, ahead: int) -> ChunkOperators:
    """The operators of a first-order hold from those whose channels all look ahead.

    A state that is read before its sample is one that is read from the other side: row i of O is C Āⁱ instead of
    C Ā^(c-1-i), and a channel that looks ahead starts at the next sample.
    """
    K, O, causal = operators.K, operators.O, structure.channels - ahead  # noqa: E741
    assert isinstance(structure, Diagonal)
    O = torch.cat([O[:causal].flip(2), O[causal:]])  # noqa: E741
    return operators._replace(K=delayed(K, structure.feed(), ahead), O=O)


def build_from_lists(structure: Structure, chunk: int, ahead: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """K, E, G, O and more, with explicit gradients: autograd would take several times as long."""
    if isinstance(structure, DPLR):
        return build_rank_one(structure.factors(), chunk, ahead, dtype)
    assert isinstance(structure, Diagonal)
    factors = DiagonalFactors(*(torch.view_as_real(x.resolve_conj()) for x in structure.discrete()))
    return build_diagonal(factors, chunk, ahead, dtype)


def _run_recurrence(request: Request, first: Tensor | None, *, last: bool) -> tuple[Tensor, Tensor]:
    modal = request.source.modal()
    assert modal is not None
    assert modal.parameters.P is not None
    ahead = request.ahead(modal.parameters.C.shape[0])
    options = RecurrenceOptions(ahead, modal.real_part, modal.log_dt, last, request.working)
    y, end = recurrence(Sequences(request.u.permute(2, 0, 1), first), modal.modes(request.D), options)
    return y.permute(2, 3, 0, 1), end


def run_chunks(
    u: Tensor, first: Tensor | None, operators: ChunkOperators, options: ChunkOptions
) -> tuple[Tensor, Tensor]:
    """Return y (B, L, K, H), and the state after all whole chunks (H, B, N) if requested; u is (B, L, H)."""
    x, dtype = u.permute(2, 0, 1), options.dtype
    if torch.compiler.is_compiling():
        x = x.to(dtype)  # which a compiler fuses into what comes before
    owns_input = options.path == "triton" and not is_lengthwise(x, dtype)
    if owns_input:
        x = lengthwise(x, dtype)
    elif options.path == "chunks" and not torch.compiler.is_compiling():
        copy = layout.lengthwise(x.to(dtype))
        owns_input = copy is not x
        x = copy
    save = transformed() or (
        torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *operators, first))
    )
    y, end, *_ = chunks(Sequences(x, first), operators, options._replace(save=save, owns_input=owns_input))
    return y.permute(2, 3, 0, 1), end
