"""Which implementation runs: the one place that decides.

Paths:
    "triton"  kernels on a GPU (or interpreted, where TRITON_INTERPRET=1): the chunk engine's; those of the recurrence
              for large rank-one SSMs in full precision
    "chunks"  the chunk engine in plain torch
    "fft"     the whole kernel and an FFT convolution

``use_path`` and the environment variable STATESPAN_PATH force one; "auto" takes the fastest that works. A path that
needs a compiler is believed only once it has run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu as gelu_of
from torch.nn.functional import pad

from statespan._check import check_choice, check_tensor
from statespan.ops import plain
from statespan.ops.activation import gelu as activated
from statespan.ops.causal import is_spoiled, without_spoiled
from statespan.ops.chunk_length import chunk_length
from statespan.ops.chunked import ordered, packed
from statespan.ops.fftconv import fftconv
from statespan.ops.library import chunks, modes
from statespan.ops.lists import build_diagonal, build_rank_one
from statespan.ops.memory import shared_memory
from statespan.ops.order import is_lengthwise, lengthwise
from statespan.ops.recurrence import recurrence
from statespan.ops.register import transformed
from statespan.ops.source import Source, source_of
from statespan.ops.tiles import SMALL, choose, fits, recomputes
from statespan.ssm import DPLR, Diagonal, Structure

PATHS = ("auto", "triton", "chunks", "fft")
_ENVIRONMENT = os.environ.get("STATESPAN_PATH") or "auto"
LONG = 64
"""From this length on, chunks in plain torch are faster than the FFT on a CPU."""
LONG_ELSEWHERE = 4096
"""The same on a GPU without kernels, where it saves memory rather than time."""
_forced: str | None = None
_probed: dict[int, bool] = {}


@contextmanager
def use_path(path: str) -> Iterator[None]:
    """Force one implementation for everything in the block, in this process.

    Args:
        path: "auto", "triton", "chunks" or "fft".

    Example:
        >>> from statespan import S4D
        >>> layer, x = S4D(4, 8), torch.randn(1, 100, 4)
        >>> with use_path("fft"):
        ...     y = layer(x)
        >>> torch.allclose(y, layer(x), atol=1e-5)
        True
    """
    global _forced
    before, _forced = _forced, check_choice("path", path, PATHS)
    try:
        yield
    finally:
        _forced = before


def forced_path() -> str:
    """What ``use_path``, or else the environment at import, asks for."""
    return _forced if _forced is not None else check_choice("STATESPAN_PATH", _ENVIRONMENT, PATHS)


def choose_path(source: Source, u: Tensor, dtype: torch.dtype) -> str:
    """The path for this SSM and input, computed in this dtype."""
    path = forced_path()
    if path != "auto":
        return path
    if torch.compiler.is_compiling():  # a traced graph has to serve any length, which rules out the FFT
        return "triton" if u.is_cuda and _fits(source, dtype, u.device) else "chunks"
    if source.convolve:
        return "fft"
    if u.is_cuda and _fits(source, dtype, u.device) and triton_works(u.device.index):
        return "triton"
    return "chunks" if u.shape[1] >= (LONG_ELSEWHERE if u.is_cuda else LONG) else "fft"


def _fits(source: Source, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels have this dtype and their tiles fit into the memory of a multiprocessor."""
    return fits(source.d_state, source.power, dtype, shared_memory(device))


def _large(path: str, source: Source) -> bool:
    """Whether the kernels meet a rank-one SSM whose dense G is more work than its factors."""
    return path == "triton" and source.power == "rank one" and source.d_state > 64


def _factored(path: str, source: Source, dtype: torch.dtype) -> bool:
    """Whether such a G stays in its factors."""
    return _large(path, source) and dtype in (torch.float16, torch.bfloat16)


def _stepped(path: str, source: Source, dtype: torch.dtype) -> bool:
    """Whether to go step by step instead: in full precision the factors are too large for the chip."""
    return _large(path, source) and not _factored(path, source, dtype)


def triton_works(device: int) -> bool:
    """Whether Triton compiles for this GPU and the result is right: it is tried, once.

    A tracer cannot try it, and need not: torch.compile itself needs Triton on a GPU.
    """
    if device not in _probed:
        try:
            from statespan.ops._triton.probe import probe
        except ImportError:
            _probed[device] = False
        else:
            gpu = torch.device("cuda", device)
            _probed[device] = _roomy(gpu) and probe(gpu)
    return _probed[device]


def _roomy(device: torch.device) -> bool:
    """Whether it is a GPU that Triton is made for: older ones have less memory on the chip."""
    return shared_memory(device) >= SMALL


def kernels_run(x: Tensor) -> bool:
    """Whether what stands beside the engine (a norm, a gate, a step) meets kernels where x is."""
    if transformed():
        return False
    path = forced_path()
    if path != "auto":
        return path == "triton"
    if torch.compiler.is_compiling():
        return x.is_cuda and _roomy(x.device)
    return x.is_cuda and triton_works(x.device.index)


def apply(
    ssm: Structure | Source, u: Tensor, D: Tensor | None = None, *, bidirectional: bool = False,
    activation: str | None = None, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Apply an SSM to whole sequences by the fastest path.

    On a CPU, outside of compiled code, a NaN or an infinity in u makes the causal outputs from its time on NaN and
    leaves those before as they are. Elsewhere the outputs from its chunk's start on are NaN, by an FFT all of them.

    Args:
        ssm: The SSM.
        u: (B, L, H), in any memory order; on a GPU fastest with the length as the last axis in memory.
        D: A skip (K, H), or None.
        bidirectional: The last half of the SSM's channels look ahead, starting at the next sample.
        activation: "gelu" or None.
        dtype: What to compute in; None for a 16-bit u on a GPU means its own, else the wider of u's and the SSM's.

    Returns:
        y (B, L, K, H).
    """
    source = source_of(ssm) if isinstance(ssm, Structure) else ssm
    dtype = dtype or _dtype(source, u)
    y = _apply(source, u, D, bidirectional, activation, dtype)
    if not bidirectional and is_spoiled(y) and (mended := without_spoiled(u)):
        return _apply(source, mended.u, D, bidirectional, activation, dtype) + mended.nan
    return y


def _apply(
    source: Source, u: Tensor, D: Tensor | None, bidirectional: bool, activation: str | None, dtype: torch.dtype
) -> Tensor:
    path = choose_path(source, u, dtype)
    if 0 in u.shape[:2]:
        channels = source.structure().channels
        return u.new_zeros(*u.shape[:2], channels // 2 if bidirectional else channels, u.shape[2], dtype=dtype)
    work = _working(path, dtype)
    if path == "fft":
        return _by_fft(source, u.to(work), D, bidirectional, activation).to(dtype)
    if _stepped(path, source, work):
        y, _ = _steps(source, u, D, None, bidirectional, False, work)
        return (gelu_of(y) if activation is not None else y).to(dtype)
    operators = _operators(path, source, D, bidirectional, work, u)
    fused, keep = activation is not None and path == "triton", False
    if fused:
        channels, _, chunk = operators.K.shape
        keep = not _walks_once(source, u, channels, bidirectional, work, chunk)
    y, _ = _chunks(path, operators, u, None, bidirectional, fused, False, work, keep=keep)
    return (activated(y) if activation is not None and not fused else y).to(dtype)


def apply_from(
    ssm: Structure | Source, u: Tensor, state: Tensor | None, D: Tensor | None = None, *,
    activation: str | None = None, dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same from a state and to a state, never by an FFT.

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
    source = source_of(ssm) if isinstance(ssm, Structure) else ssm
    dtype = dtype or _dtype(source, u)
    y, after = _apply_from(source, u, state, D, activation, dtype)
    if is_spoiled(y) and (mended := without_spoiled(u)):
        y = _apply_from(source, mended.u, state, D, activation, dtype)[0] + mended.nan
    return y, after


def _apply_from(
    source: Source, u: Tensor, state: Tensor | None, D: Tensor | None, activation: str | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    structure = source.structure()
    path = choose_path(source, u, dtype)
    path = "chunks" if path == "fft" else path
    batch, length, heads = check_tensor("u", u, ("batch", "length", structure.heads), kind="float").shape
    if state is None:
        state = structure.initial_state(batch)
    check_tensor("state", state, (batch, heads, source.d_state), kind="real")
    if 0 in u.shape[:2]:
        return u.new_zeros(batch, length, structure.channels, heads, dtype=dtype), state
    work = _working(path, dtype)
    if _stepped(path, source, work):
        y, last = _steps(source, u, D, state.double().transpose(0, 1), False, True, work)
        return (gelu_of(y) if activation is not None else y).to(dtype), last.transpose(0, 1).to(state.dtype)
    operators = _operators(path, source, D, False, work, u)
    near = operators.G.ndim == 2  # the order of the state: see `ordered`
    first = ordered(state.double(), not near).transpose(0, 1).contiguous()
    y, last = _chunks(path, operators, u, first, False, False, True, work)
    after = packed(last.transpose(0, 1), not near)
    if rest := length % operators.E.shape[1]:  # the samples behind the last whole chunk
        tail = torch.einsum("brh,hrn->bhn", u[:, length - rest :].double(), operators.E[:, -rest:].double())
        after = structure.advance(after, rest) + packed(tail, not near)
    return (gelu_of(y) if activation is not None else y).to(dtype), after.to(state.dtype)


def _dtype(source: Source, u: Tensor) -> torch.dtype:
    if u.is_cuda and u.dtype in (torch.float16, torch.bfloat16):
        return u.dtype
    return torch.promote_types(u.dtype, source.dtype)


def _working(path: str, dtype: torch.dtype) -> torch.dtype:
    """Only the kernels compute in 16 bits."""
    return dtype if path == "triton" else torch.promote_types(dtype, torch.float32)


def _walks_once(source: Source, u: Tensor, channels: int, both: bool, dtype: torch.dtype, chunk: int) -> bool:
    """Whether the kernels go through each sequence in one walk, which can compute again what an activation had.

    A traced graph that has to serve any size cannot count on it.
    """
    (B, L, H), memory = u.shape, shared_memory(u.device)
    unknown = torch.compiler.is_exporting() or isinstance(B * L, torch.SymInt)
    if both or unknown or _factored("triton", source, dtype) or not recomputes(source.d_state, dtype, memory):
        return False
    tiles = choose(channels * H, B, L, source.d_state, chunk, source.dense, False, dtype, memory)
    return tiles.per_segment * chunk >= L


def _by_fft(source: Source, u: Tensor, D: Tensor | None, both: bool, activation: str | None) -> Tensor:
    kernels = source.structure().kernel(u.shape[1]).to(u.dtype)
    y = fftconv(u, *kernels.chunk(2)) if both else fftconv(u, kernels)
    if D is not None:
        y = y + D.to(u.dtype) * u[:, :, None]
    return gelu_of(y) if activation is not None else y


class Built(NamedTuple):
    """Operators as the engine takes them: K with the skip in it, in its order of the state."""

    K: Tensor
    E: Tensor
    """(H, c, N)."""
    G: Tensor
    O: Tensor  # noqa: E741
    W: Tensor | None
    """The factors of a low-rank part of G, where they stay apart."""


def _operators(path: str, source: Source, D: Tensor | None, both: bool, dtype: torch.dtype, u: Tensor) -> Built:
    """For inputs like u."""
    chunk = chunk_length(path, source, dtype, u, factored=_factored(path, source, dtype))
    modal = source.modal() if path == "triton" else None
    if modal is not None:
        ahead = modal.C.shape[0] // 2 if both else 0
        skip = None if D is None else D.contiguous()
        factored = _factored(path, source, dtype)
        K, E, G, O, W = modes(  # noqa: E741
            modal.step_sizes(),
            *modal[1:5],
            skip,
            modal.P,
            chunk,
            ahead,
            modal.rule,
            modal.real_part,
            modal.log_dt,
            dtype not in (torch.float16, torch.bfloat16),
            factored,
        )
        return Built(K, E, G, O, W if factored else None)
    structure = source.structure()
    ahead = structure.channels // 2 if both else 0
    wide = torch.promote_types(dtype, torch.float32)
    if path == "chunks" and source.power != "dense" and structure.dt.is_cpu:
        K, E, G, O, *_ = _lists(structure, chunk, ahead, wide)  # noqa: E741
        if D is not None:
            K = K + pad(D.to(wide)[..., None], (0, chunk - 1, 0, 0, 0, ahead))
        return Built(K, E, G, O, None)
    K, E, G, O = structure.operators(chunk, ahead=ahead, dtype=torch.float64)  # noqa: E741
    if D is not None:
        K = K + pad(D.double()[..., None], (0, chunk - 1, 0, 0, 0, ahead))
    E, O = ordered(E.mT, source.dense), ordered(O, source.dense)  # noqa: E741
    G = G if source.dense else ordered(G, False)
    return Built(K.to(wide), E.to(wide).contiguous(), G.contiguous(), O.to(wide).contiguous(), None)


def _lists(structure: Structure, chunk: int, ahead: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """K, E, G and O, and more, with gradients written out: autograd would take several times as long."""
    if isinstance(structure, DPLR):
        return build_rank_one(*structure.factors(), chunk, ahead, dtype)
    assert isinstance(structure, Diagonal)
    factors = (torch.view_as_real(x.resolve_conj()) for x in structure.discrete())
    return build_diagonal(*factors, chunk, ahead, dtype)


def _steps(
    source: Source, u: Tensor, D: Tensor | None, first: Tensor | None, both: bool, last: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    modal = source.modal()
    assert modal is not None
    assert modal.P is not None
    ahead = modal.C.shape[0] // 2 if both else 0
    skip = None if D is None else D.contiguous()
    y, end = recurrence(
        u.permute(2, 0, 1),
        modal.step_sizes(),
        *modal[1:6],
        skip,
        first,
        ahead,
        modal.real_part,
        modal.log_dt,
        last,
        dtype,
    )
    return y.permute(2, 3, 0, 1), end


def _chunks(
    path: str, built: Built, u: Tensor, first: Tensor | None, both: bool, gelu: bool, last: bool,
    dtype: torch.dtype, keep: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x = u.permute(2, 0, 1)
    if torch.compiler.is_compiling():
        x = x.to(dtype)  # which a compiler makes part of what comes before
    own = path == "triton" and not is_lengthwise(x, dtype)
    if own:
        x = lengthwise(x, dtype)
    elif path == "chunks" and not torch.compiler.is_compiling():
        copy = plain.lengthwise(x.to(dtype))
        x, own = copy, copy is not x
    save = transformed() or (
        torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *built, first))
    )
    y, end, *_ = chunks(x, *built[:4], first, both, gelu, save, last, path, dtype, built.W, own, keep)
    return y.permute(2, 3, 0, 1), end
