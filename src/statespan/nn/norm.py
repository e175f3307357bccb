"""Norms over the features of a sequence.

Shapes: B batch, L length, D features.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from statespan._check import check_choice, check_int
from statespan.nn.dropout import TiedDropout
from statespan.nn.padding import Padding, fill
from statespan.nn.sequences import as_sequences
from statespan.nn.untouched import untouched
from statespan.ops.batch_norm import Moved, Norm, batch_fits, batch_norm, batch_norm_before
from statespan.ops.norm import Affine, Residual, after_fits, norm_after, norm_before, norm_fits

NORMS = ("layer", "batch", "none")


class BatchNorm(nn.Module):
    """Batch normalization of each feature over the batch and the length, from real positions only.

    In training it normalizes with the statistics of the batch and moves the running ones towards them. In evaluation
    it uses the running ones, and is then a map of each position alone: that is how a model with it can run step by
    step. Statistics of a batch are computed in at least float32.

    Args:
        d_model: Number of features D.
        eps: Added to the variance.
        momentum: Share of a batch in the running statistics.
        device: Where the parameters live.
        dtype: Their dtype.
    """

    parameter_groups: ClassVar[dict[str, str]] = {"weight": "no_decay", "bias": "no_decay"}
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        d_model: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_int("d_model", d_model, minimum=1)
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(d_model, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(d_model, device=device, dtype=dtype))
        self.register_buffer("running_mean", torch.zeros(d_model, device=device, dtype=dtype))
        self.register_buffer("running_var", torch.ones(d_model, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Initialise the parameters and the running statistics anew."""
        for one in (self.weight, self.running_var):
            nn.init.ones_(one)
        for zero in (self.bias, self.running_mean):
            nn.init.zeros_(zero)

    def forward(self, x: Tensor, padding: Padding | None = None) -> Tensor:
        """Normalize x (B, L, D)."""
        if x.shape[0] * x.shape[1] == 0:
            return x
        if self.training and batch_fits(x):
            y, moved = batch_norm(x, None if padding is None else padding.lengths, self._norm())
            self._move(moved)
            return y
        if not self.training or padding is None:
            y = nn.functional.batch_norm(
                x.flatten(0, 1), self.running_mean, self.running_var, self.weight, self.bias,
                self.training, self.momentum, self.eps,
            )  # fmt: skip
            return as_sequences(y, *x.shape[:2])
        count = padding.lengths.sum()
        wide = fill(x, padding).to(torch.promote_types(x.dtype, torch.float32))
        mean = wide.sum((0, 1)) / count.clamp(min=1)
        var = fill(wide - mean, padding).square().sum((0, 1)) / count.clamp(min=1)
        with torch.no_grad():
            share = self.momentum * (count > 1)  # one position has no variance to learn from
            unbiased = var * (count / (count - 1).clamp(min=1))
            self.running_mean.add_(share * (mean - self.running_mean))
            self.running_var.add_(share * (unbiased - self.running_var))
        y = (wide - mean) * (var + self.eps).rsqrt()
        return (y * self.weight + self.bias).to(x.dtype)

    def before(self, x: Tensor, padding: Padding | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """X for a residual, and x normalized, 0 for padding, for an SSM that computes in this dtype."""
        if not (self.training and untouched(self, BatchNorm) and norm_fits(x, dtype) and x.shape[0] * x.shape[1] > 1):
            return x, fill(self(x, padding), padding)
        x, y, moved = batch_norm_before(x, None if padding is None else padding.lengths, self._norm(), dtype)
        self._move(moved)
        return x, y

    def _norm(self) -> Norm:
        return Norm(self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps)

    def _move(self, moved: Moved) -> None:
        with torch.no_grad():
            self.running_mean.copy_(moved.mean)
            self.running_var.copy_(moved.var)


class LayerNorm(nn.LayerNorm):
    """Layer normalization of each position, for which padding makes no difference."""

    def forward(self, x: Tensor, padding: Padding | None = None) -> Tensor:
        """Normalize x (B, L, D)."""
        return super().forward(x)

    def before(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """X for a residual, and x normalized for an SSM that computes in this dtype."""
        if untouched(self, LayerNorm) and norm_fits(x, dtype):
            return norm_before(x, Affine(self.weight, self.bias, self.eps), dtype)
        return x, self(x)

    def after(self, x: Tensor, z: Tensor, dropout: nn.Module) -> Tensor:
        """The sum of x and of z after dropout, normalized."""
        if not (untouched(self, LayerNorm) and after_fits(x, z)):
            return self(x + dropout(z))
        scale = None
        if isinstance(dropout, TiedDropout) and untouched(dropout, TiedDropout):
            mask = dropout.mask(z)
            scale = None if mask is None else mask[:, 0]
        else:
            z = dropout(z)
        return norm_after(Residual(x, z, scale), Affine(self.weight, self.bias, self.eps))


class NoNorm(nn.Module):
    """Nothing, in the place of a norm."""

    def forward(self, x: Tensor, padding: Padding | None = None) -> Tensor:
        """Return x."""
        return x


def make_norm(name: str, d_model: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Module:
    """The norm of this name, called as ``norm(x, padding)``."""
    if check_choice("norm", name, NORMS) == "none":
        return NoNorm()
    return (LayerNorm if name == "layer" else BatchNorm)(d_model, device=device, dtype=dtype)
