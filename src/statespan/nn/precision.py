"""The precision that modules compute in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

import torch
from torch import Tensor, nn


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Disable autocast (the meta device has none) where 16 bits are not enough."""
    if torch.compiler.is_compiling():
        return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
    return _WithoutAutocast(x.device.type) if not x.is_meta and torch.is_autocast_enabled(x.device.type) else _UNCHANGED


class _WithoutAutocast(AbstractContextManager[None]):
    """The same as torch's own, whose checks take longer than the launch of a kernel."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __enter__(self) -> None:
        torch.set_autocast_enabled(self.device, False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.set_autocast_enabled(self.device, True)


_UNCHANGED: AbstractContextManager[None] = nullcontext()


def example_of(module: nn.Module) -> Tensor:
    """A parameter, for its dtype and device; an empty float32 tensor if there is none, as in a quantized module."""
    return next(module.parameters(), torch.empty(0, dtype=torch.float32, device="cpu"))


def complex_of(pairs: Tensor) -> Tensor:
    """Complex numbers from a trailing axis of 2 with any stride."""
    return torch.complex(*wide(pairs).unbind(-1))


def wide(x: Tensor) -> Tensor:
    """At least float32, even if FSDP2 has cast the parameters."""
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.promote_types(x.dtype, torch.float32))
