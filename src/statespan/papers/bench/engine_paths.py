"""The library's paths for applying an SSM to a sequence, for benchmarks that compare them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from statespan.ops import apply as apply_ssm
from statespan.ops import dispatch, fftconv, use_path
from statespan.ops.ssm.apply import build_operators, request_for, run_chunks
from statespan.ops.ssm.arguments import ChunkOptions
from statespan.ops.ssm.source import source_of
from statespan.ssm import Structure


def available(device: torch.device) -> tuple[str, ...]:
    """The paths of this kind of device."""
    return ("triton", "chunks", "fft") if device.type == "cuda" else ("chunks", "fft")


def apply(ssm: Structure, u: Tensor, path: str) -> Tensor:
    """The SSM's output (B, L, K, H) for u (B, L, H): build what the path needs, then apply it."""
    with use_path(path):
        return apply_ssm(ssm, u, dtype=_dtype(ssm, u, path)).to(u.dtype)


def built(ssm: Structure, u: Tensor, path: str) -> Callable[[Tensor], Tensor]:
    """The same for inputs like u, with everything that depends only on the parameters built beforehand."""
    dtype = _dtype(ssm, u, path)
    if path == "fft":
        kernel = ssm.kernel(u.shape[1]).to(dtype)
        return lambda u: fftconv(u.to(dtype), kernel).to(u.dtype)
    with use_path(path):
        request = request_for(ssm, u, dtype=dtype)
    operators, options = build_operators(request), ChunkOptions(path, request.working)
    return lambda u: run_chunks(u, None, operators, options)[0].to(u.dtype)


def _dtype(ssm: Structure, u: Tensor, path: str) -> torch.dtype:
    """The dtype to compute in: the kernels' own choice, except that FFTs have no half precision."""
    dtype = dispatch.input_dtype(source_of(ssm), u)
    return torch.promote_types(dtype, torch.float32) if path == "fft" else dtype
