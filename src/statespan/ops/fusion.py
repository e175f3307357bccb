"""Chooses the fused path of a layer or a gate.

A fused path does the work of several modules at once, so they are not called. It is taken only where that makes no
difference: a module that is hooked, parametrized, sharded, quantized or replaced is called.

Shapes: B batch, L length, K channels, D features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import glu
from torch.nn.modules import module as _torch

from statespan.ops import gelu_linear, linear_glu
from statespan.ops.glu.float32 import float32_linear, float32_linear_fits


def untouched(module: nn.Module, *classes: type[nn.Module]) -> bool:
    """Whether calling the module does exactly what its class does: no hooks, patches or parametrizations.

    False for a module that is hooked (also by hooks for all modules), wrapped, parametrized, sharded, quantized or of
    another class, and for one whose ``forward`` was replaced.
    """
    if type(module) not in classes or "forward" in module.__dict__ or _torch._has_any_global_hook():
        return False
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    return all(type(p) in (Tensor, nn.Parameter) for p in module._parameters.values() if p is not None)


def plain_linear(module: nn.Module) -> nn.Linear | None:
    """The module, if it is a linear layer with a bias that may be bypassed by a fused op."""
    if not isinstance(module, nn.Linear) or module.bias is None or not untouched(module, nn.Linear):
        return None
    return module


class GLU(nn.Sequential):
    """A linear layer to twice the features, one half of which gates the other: ``W₁x · sigmoid(W₂x)``.

    Example:
        >>> GLU(nn.Linear(8, 6))(torch.randn(5, 8)).shape
        torch.Size([5, 3])
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear, nn.GLU(-1))

    def forward(self, x: Tensor) -> Tensor:
        """Apply to x (positions, features)."""
        linear = self.linear()
        return super().forward(x) if linear is None else linear_glu(x, linear.weight, linear.bias)

    def linear(self) -> nn.Linear | None:
        """The linear layer, if both it and the gate may be bypassed by a fused op."""
        return plain_linear(self[0]) if len(self) == 2 and untouched(self[1], nn.GLU) else None


def activating_linear(
    x: Tensor, dropout: nn.Module, mix: nn.Module, kinds: tuple[type[nn.Module], ...]
) -> nn.Linear | None:
    """The mixing's linear layer if it also applies the activation before it, or None to activate in the engine.

    On a CPU the two together save a tensor in the backward pass. Nothing may stand between them, so dropout must keep
    everything, as these kinds of it do outside of training.
    """
    if not x.is_cpu or not _keeps_all(dropout, kinds):
        return None
    if isinstance(mix, GLU):
        return mix.linear() if untouched(mix, GLU) else None
    return plain_linear(mix)


def _keeps_all(dropout: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether dropout, of these kinds, does nothing and may be bypassed."""
    return untouched(dropout, *kinds) and not (dropout.training and dropout.p)


def gating_linear(
    x: Tensor, dropout: nn.Module, mix: nn.Module, kinds: tuple[type[nn.Module], ...]
) -> nn.Linear | None:
    """The linear layer of a GLU that directly follows the engine on a GPU and may be bypassed, or None."""
    if not x.is_cuda or not isinstance(mix, GLU) or not untouched(mix, GLU) or not _keeps_all(dropout, kinds):
        return None
    return mix.linear()


def mix_features(y: Tensor, dropout: nn.Module, mix: nn.Module, activating: nn.Linear | None = None) -> Tensor:
    """Dropout of (B, L, K·D) and mixing of (B·L, K·D) to (B, L, features), for an engine's y (B, L, K, D).

    Nothing else may refer to y. ``activating`` is what :func:`activating_linear` gave.
    """
    batch, length = y.shape[:2]
    # The engine leaves the length as the last axis in memory. Features by positions is a matrix that a product
    # takes without a copy.
    y = dropout(y.permute(2, 3, 0, 1).flatten(0, 1).permute(1, 2, 0)).flatten(0, 1)
    if activating is None:
        y = _mixed(y, mix)
    else:
        y = gelu_linear(y, activating.weight, activating.bias)
        y = glu(y, -1) if isinstance(mix, GLU) else y
    return as_sequences(y, batch, length) if _is_unshared(mix) else y.unflatten(0, (batch, length))


def _mixed(y: Tensor, mix: nn.Module) -> Tensor:
    linear = plain_linear(mix)
    if linear is None or not float32_linear_fits(y, linear.weight, linear.bias):
        return mix(y)
    return float32_linear(y, linear.weight, linear.bias, gated=False)


def _is_unshared(mix: nn.Module) -> bool:
    """Whether no backward pass needs the mixing's output (that of an unknown module may be needed)."""
    last = mix[-1] if isinstance(mix, nn.Sequential) and len(mix) else mix
    return isinstance(last, (nn.Linear, nn.GLU, nn.Identity))


def as_sequences(x: Tensor, batch: int, length: int) -> Tensor:
    """Reshape an unshared x (B·L, D) to (B, L, D), not a view for autograd, as in :func:`unviewed`."""
    return torch.ops.aten._unsafe_view(x, [batch, length, x.shape[-1]])


def unviewed(x: Tensor) -> Tensor:
    """An unshared x, as a tensor that is not a view for autograd.

    FSDP2 hooks the outputs of a module, and a change in place of a view would drop its hook.
    """
    return torch.ops.aten._unsafe_view(x, x.shape)


def working_dtype(x: Tensor, precision: torch.dtype) -> torch.dtype:
    """The dtype an SSM computes in: at least its own on a CPU; on a GPU that of autocast or of a 16-bit input."""
    if x.is_cuda:
        if torch.is_autocast_enabled("cuda"):
            return torch.get_autocast_dtype("cuda")
        if x.dtype in (torch.float16, torch.bfloat16):
            return x.dtype
    return torch.promote_types(x.dtype, precision)
