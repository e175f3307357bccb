"""Decides which implementation runs; nothing else does.

Paths:
    "triton"  kernels on a GPU (or interpreted, where TRITON_INTERPRET=1): the chunk engine's, or for large low-rank
              SSMs in full precision those of the recurrence, or those of the Cauchy sums for a layer that asks for them
    "chunks"  the chunk engine in plain torch
    "fft"     the whole kernel and an FFT convolution

``use_path`` and the environment variable STATESPAN_PATH force one; "auto" takes the fastest that works. The kernels are
chosen only after they have run on the device once and were right.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from statespan._check import check_choice
from statespan.ops.memory import shared_memory
from statespan.ops.register import exporting, is_known, transformed
from statespan.ops.ssm.source import SSMSource
from statespan.ops.ssm.tiles import SIXTEEN_BITS, SMALL, fits, is_single_pass, recomputes

PATHS = ("auto", "triton", "chunks", "fft")
_ENVIRONMENT = os.environ.get("STATESPAN_PATH") or "auto"
LONG = 64
"""From this length on, chunks in plain torch are faster than the FFT on a CPU."""
SHORT = 64
"""Up to this length, in eager code on a CPU, the series of :mod:`statespan.ops.ssm.short` is faster than both."""
LONG_ELSEWHERE = 4096
"""The same on a GPU without kernels, where it saves memory rather than time."""
_forced: str | None = None
_probed: dict[int, bool] = {}


@contextmanager
def use_path(path: str) -> Iterator[None]:
    """Force one implementation for everything in the block, in this process.

    Args:
        path: "auto", "triton" (on a GPU), "chunks" or "fft".

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
    """The path that ``use_path``, or else the environment at import, requests."""
    return _forced if _forced is not None else check_choice("STATESPAN_PATH", _ENVIRONMENT, PATHS)


def check_kernels(path: str, x: Tensor) -> None:
    """Reject the path "triton" where its kernels cannot run; a tracer, whose tensors are on no device, may go on."""
    if path != "triton" or torch.compiler.is_compiling():
        return
    others = 'use "auto", "chunks" or "fft"'
    if not _has_triton():
        raise ValueError(f'path "triton" needs the package triton, which is not installed; {others}')
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            f'path "triton" needs x on a CUDA device, got {x.device}; {others}, or set TRITON_INTERPRET=1 before '
            "Python starts to interpret the kernels, slowly"
        )


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def choose_path(source: SSMSource, u: Tensor, dtype: torch.dtype) -> str:
    """The path for this SSM and input, computed in this dtype."""
    path = forced_path()
    if path != "auto":
        check_kernels(path, u)
        return path
    if torch.compiler.is_compiling():  # a traced graph has to serve any length, which rules out the FFT
        return "triton" if u.is_cuda and _fits(source, dtype, u.device) else "chunks"
    if source.convolve:
        return "fft"
    if u.is_cuda and _fits(source, dtype, u.device) and triton_works(u.device.index):
        return "triton"
    return "chunks" if u.shape[1] >= (LONG_ELSEWHERE if u.is_cuda else LONG) else "fft"


def _fits(source: SSMSource, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels support this dtype and their tiles fit into the memory of a multiprocessor."""
    return fits(source.d_state, source.power, dtype, shared_memory(device))


def _is_large(path: str, source: SSMSource) -> bool:
    """Whether the kernels would apply a low-rank SSM whose dense G costs more than its factors."""
    return path == "triton" and source.power in ("rank one", "low rank") and source.d_state > 64


def keeps_factors(path: str, source: SSMSource, dtype: torch.dtype) -> bool:
    """Whether such a G is kept as factors, for which there are kernels of rank one alone."""
    return _is_large(path, source) and source.power == "rank one" and dtype in SIXTEEN_BITS


def runs_stepwise(path: str, source: SSMSource, dtype: torch.dtype) -> bool:
    """Whether to run the recurrence instead, because in full precision the factors exceed on-chip memory."""
    return _is_large(path, source) and dtype not in SIXTEEN_BITS


def sums_cauchy(source: SSMSource, u: Tensor) -> bool:
    """Whether kernels compute the convolution kernel of this SSM by Cauchy sums, which rules out an unknown length."""
    rank_one = source.convolve and source.power == "rank one"
    return rank_one and not torch.compiler.is_compiling() and kernels_run(u)


def runs_as_series(path: str, source: SSMSource, u: Tensor) -> bool:
    """Whether a short sequence in eager code on a CPU is applied by its kernel's series, if the SSM has one.

    Nothing may trace, transform or compile the code, or carry tangents forward: the series has its own gradient.
    """
    if torch.compiler.is_compiling():  # first: a tracer would guard against the length
        return False
    if not u.is_cpu or not 0 < u.shape[1] <= SHORT or source.convolve or path == "triton" or forced_path() != "auto":
        return False
    if type(u) not in (Tensor, nn.Parameter) or transformed():
        return False
    return torch._C._get_tracing_state() is None and forward_ad._current_level < 0


def input_dtype(source: SSMSource, u: Tensor) -> torch.dtype:
    """The default dtype to compute in."""
    if u.is_cuda and u.dtype in SIXTEEN_BITS:
        return u.dtype
    return torch.promote_types(u.dtype, source.dtype)


def path_dtype(path: str, dtype: torch.dtype) -> torch.dtype:
    """Only the kernels compute in 16 bits."""
    return dtype if path == "triton" else torch.promote_types(dtype, torch.float32)


def walks_once(source: SSMSource, u: Tensor, dtype: torch.dtype, *, channels: int, both: bool, chunk: int) -> bool:
    """Whether the kernels make a single pass over each sequence, so that it can recompute the pre-activation.

    A traced graph that has to serve any size cannot count on it.
    """
    (B, L, H), memory = u.shape, shared_memory(u.device)
    unknown = exporting() or not is_known(B * L)
    if both or unknown or keeps_factors("triton", source, dtype) or not recomputes(source.d_state, dtype, memory):
        return False
    return is_single_pass(
        heads=channels * H, batch=B, length=L, d_state=source.d_state, chunk=chunk, dense=source.dense, factored=False,
        dtype=dtype, memory=memory,
    )  # fmt: skip


def triton_works(device: int) -> bool:
    """Whether Triton compiles for this GPU and gives correct results; tested once.

    A tracer cannot try it and need not: torch.compile itself needs Triton on a GPU.
    """
    if device not in _probed:
        try:
            from statespan.ops.ssm._triton.probe import probe
        except ImportError:
            _probed[device] = False
        else:
            gpu = torch.device("cuda", device)
            _probed[device] = shared_memory(gpu) >= SMALL and probe(gpu)  # older ones have too little
    return _probed[device]


def kernels_run(x: Tensor) -> bool:
    """Whether the ops beside the engine (a norm, a gate, a step) run kernels on the device of x."""
    if transformed():
        return False
    path = forced_path()
    if path != "auto":
        check_kernels(path, x)
        return path == "triton"
    if torch.compiler.is_compiling():
        return x.is_cuda and shared_memory(x.device) >= SMALL
    return x.is_cuda and triton_works(x.device.index)
