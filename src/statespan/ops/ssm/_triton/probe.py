"""Tests whether the kernels run on a device: on a small problem, compared with plain torch."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from statespan.ops.ssm import chunks
from statespan.ops.ssm._triton import launch
from statespan.ops.ssm.arguments import ChunkOperators, ChunkOptions, Sequences


def probe(device: torch.device) -> bool:
    """True if a forward pass in bfloat16 runs and is correct; otherwise a warning gives the reason.

    The first call of a program may come from anywhere: autocast and the default dtype are not to matter.
    """
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            error = _error(device)
    except Exception as reason:  # whatever a compiler or driver may raise
        warnings.warn(f"statespan's Triton kernels do not run here; using plain torch: {reason!r}", stacklevel=2)
        return False
    if not error < 0.02:
        warnings.warn(f"statespan's Triton kernels are wrong here (error {error:.3g}); using plain torch", stacklevel=2)
        return False
    return True


def _error(device: torch.device) -> float:
    generator = torch.Generator(device).manual_seed(0)
    H, B, L, N, c = 2, 16, 100, 16, 32
    options: dict[str, Any] = {"generator": generator, "device": device, "dtype": torch.float32}
    u, K, E, O = (torch.randn(s, **options) for s in ((H, B, L), (1, H, c), (H, c, N), (1, H, c, N)))  # noqa: E741
    G = torch.rand(H, N, **options).double() / 2
    x = u.bfloat16()
    operators = ChunkOperators(K, E, G, O)
    y, _, _ = launch.forward(launch.launch_plan(x, operators), Sequences(x), operators, ChunkOptions("triton", x.dtype))
    wanted = chunks.forward(u, operators).y[0]
    return ((y.float() - wanted).norm() / wanted.norm()).item()
