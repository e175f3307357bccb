"""Whether the kernels really run on a device: they are run, on a small problem, and compared with plain torch."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from statespan.ops import plain
from statespan.ops._triton import launch


def probe(device: torch.device) -> bool:
    """True if a forward pass in bfloat16 runs and is right; otherwise a warning says why it is not used."""
    try:
        generator = torch.Generator(device).manual_seed(0)
        H, B, L, N, c = 2, 16, 100, 16, 32
        options: dict[str, Any] = {"generator": generator, "device": device}
        u, K, E, O = (torch.randn(s, **options) for s in ((H, B, L), (1, H, c), (H, c, N), (1, H, c, N)))  # noqa: E741
        G = torch.rand(H, N, dtype=torch.float64, **options) / 2
        x = u.bfloat16()
        y, _, _ = launch.forward(
            launch.grid(x, E, G, None, 1),
            x,
            K,
            E,
            G,
            None,
            O,
            both=False,
            first=None,
            save=False,
            last=False,
            gelu=False,
        )
        wanted = plain.forward(u, K, E, G, O).y[0]
        error = ((y.float() - wanted).norm() / wanted.norm()).item()
    except Exception as reason:  # whatever a compiler or driver may raise
        warnings.warn(f"statespan's Triton kernels do not run here, using plain torch: {reason!r}", stacklevel=2)
        return False
    if not error < 0.02:
        warnings.warn(f"statespan's Triton kernels are wrong here (error {error:.3g}), using plain torch", stacklevel=2)
        return False
    return True
