"""Whether a module has to be called, or whether something faster may do its work."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _torch


def untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module would do what its class does with its parameters, and nothing else.

    False for a module that is hooked (also by hooks for all modules), wrapped, parametrized, sharded, quantized or of
    another class, and for one whose ``forward`` somebody has replaced: then it has to be called.

    Args:
        module: The module that would be bypassed.
        kind: The class whose work is done in its place.
    """
    if type(module) is not kind or "forward" in module.__dict__ or _torch._has_any_global_hook():
        return False
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    return all(type(p) in (Tensor, nn.Parameter) for p in module._parameters.values() if p is not None)


def example_of(module: nn.Module) -> Tensor:
    """A parameter, for its dtype and device; an empty float32 tensor where there is none, as in a quantized module."""
    return next(module.parameters(), torch.empty(0, dtype=torch.float32, device="cpu"))
