"""Norms over the features of a sequence.

Shapes: B batch, L length, D features.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from statespan._check import check_choice, check_int
from statespan.nn.dropout import TiedDropout
from statespan.nn.padding import Padding, fill
from statespan.ops.batch_norm import Moved, Norm, batch_fits, batch_norm, batch_norm_before
from statespan.ops.fusion import as_sequences, untouched
from statespan.ops.norm import Affine, ResidualSum, after_fits, norm_after, norm_before, norm_fits
from statespan.ops.parallel import SequenceParallel, active
from statespan.ops.parallel.packing import active_packing
from statespan.ops.parallel.ranks import gathered

NormName: TypeAlias = Literal["layer", "batch", "none"]
NORMS: tuple[str, ...] = get_args(NormName)


class ResidualNorm(nn.Module):
    """A norm before or after a layer with a residual around it.

    Example:
        >>> norm = LayerNorm(4)
        >>> isinstance(norm, ResidualNorm)
        True
        >>> x, z = norm.before(torch.randn(2, 10, 4), None, None)  # prenorm: x for the residual, z for the layer
        >>> norm.after(x, z, nn.Identity(), None).shape  # postnorm
        torch.Size([2, 10, 4])
    """

    def before(self, x: Tensor, padding: Padding | None, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
        """Return x for the residual, and x normalized (0 for padding) for a layer that computes in this dtype."""
        return x, fill(self(x, padding), padding)

    def after(self, x: Tensor, z: Tensor, dropout: nn.Module, padding: Padding | None) -> Tensor:
        """The normalized sum of x and z after dropout."""
        return self(x + dropout(z), padding)

    def check_streaming(self) -> None:
        """Reject streaming if the norm uses statistics of the whole batch."""


class BatchNorm(ResidualNorm):
    """Batch normalization of each feature over the batch and the length, from real positions only.

    In training it normalizes with the statistics of the batch, in at least float32, and moves the running ones towards
    them. In evaluation it uses the running ones and maps each position alone, so a model can run step by step.

    Args:
        d_model: Number of features D.
        eps: Added to the variance.
        momentum: Weight of a batch in the running statistics.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> norm = BatchNorm(4)
        >>> y = norm(3 + torch.randn(8, 100, 4))
        >>> bool(y.mean().abs() < 1e-5), bool((norm.running_mean > 0.2).all())
        (True, True)
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
        """Re-initialise the parameters and the running statistics."""
        for scale in (self.weight, self.running_var):
            nn.init.ones_(scale)
        for shift in (self.bias, self.running_mean):
            nn.init.zeros_(shift)

    def forward(self, x: Tensor, padding: Padding | None = None) -> Tensor:
        """Normalize x (B, L, D)."""
        if x.shape[0] * x.shape[1] == 0:
            return x
        if self.training and (shards := active()) is not None:
            return self._over_shards(x, padding, shards)
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
        self._follow(mean, var, count)
        y = (wide - mean) * (var + self.eps).rsqrt()
        return (y * self.weight + self.bias).to(x.dtype)

    def _follow(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Move the running statistics towards those of a batch with this many positions."""
        with torch.no_grad():
            count = count.double()
            share = self.momentum * (count > 1).double()  # one position has no variance to learn from
            unbiased = var * (count / (count - 1).clamp(min=1))
            self.running_mean.add_(share * (mean - self.running_mean))
            self.running_var.add_(share * (unbiased - self.running_var))

    def _over_shards(self, x: Tensor, padding: Padding | None, shards: SequenceParallel) -> Tensor:
        """With the statistics of the shards of all ranks, from the count, mean and squared deviations of each."""
        wide = fill(x, padding).to(torch.promote_types(x.dtype, torch.float32))
        own = wide.new_tensor(x.shape[0] * x.shape[1]) if padding is None else padding.lengths.sum().to(wide)
        center = wide.sum((0, 1)) / own.clamp(min=1)
        spread = fill(wide - center, padding).square().sum((0, 1))
        counts = shards.ranks.all_gather(own.double().view(1, 1))[:, :, 0]  # (R, 1)
        centers, spreads = gathered(torch.stack([center, spread]).double(), shards.ranks).unbind(1)  # (R, D)
        count = counts.sum().clamp(min=1)
        mean = (counts * centers).sum(0) / count
        var = (spreads + counts * (centers - mean).square()).sum(0) / count
        self._follow(mean.to(wide.dtype), var.to(wide.dtype), counts.sum())
        y = (wide - mean.to(wide.dtype)) * (var + self.eps).rsqrt().to(wide.dtype)
        return (y * self.weight + self.bias).to(x.dtype)

    def before(self, x: Tensor, padding: Padding | None, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
        """As in :class:`ResidualNorm`; training needs more than one position for its statistics."""
        several = x.shape[0] * x.shape[1] > 1 and active() is None
        if dtype is None or not (self.training and several and untouched(self, BatchNorm) and norm_fits(x, dtype)):
            return super().before(x, padding, dtype)
        x, y, moved = batch_norm_before(x, None if padding is None else padding.lengths, self._norm(), dtype)
        self._move(moved)
        return x, y

    def check_streaming(self) -> None:
        """Reject streaming with statistics of the whole batch."""
        if self.training:
            raise ValueError("prefill and step with norm='batch' need fixed statistics: call eval() first")

    def _norm(self) -> Norm:
        return Norm(self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps)

    def _move(self, moved: Moved) -> None:
        with torch.no_grad():
            self.running_mean.copy_(moved.mean)
            self.running_var.copy_(moved.var)


class LayerNorm(ResidualNorm, nn.LayerNorm):
    """Layer normalization of each position; padding has no effect on it.

    Example:
        >>> y = LayerNorm(4)(torch.randn(2, 10, 4))
        >>> bool(y.mean(-1).abs().max() < 1e-6)
        True
    """

    def forward(self, x: Tensor, padding: Padding | None = None) -> Tensor:
        """Normalize x (B, L, D)."""
        return nn.LayerNorm.forward(self, x)

    def before(self, x: Tensor, padding: Padding | None, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
        """As in :class:`ResidualNorm`."""
        if dtype is None or not untouched(self, LayerNorm) or not norm_fits(x, dtype):
            return super().before(x, padding, dtype)
        x, y = norm_before(x, Affine(self.weight, self.bias, self.eps), dtype)
        return x, fill(y, padding)

    def after(self, x: Tensor, z: Tensor, dropout: nn.Module, padding: Padding | None) -> Tensor:
        """As in :class:`ResidualNorm`."""
        if not untouched(self, LayerNorm) or not after_fits(x, z) or active_packing() is not None:
            return super().after(x, z, dropout, padding)
        scale = None
        if isinstance(dropout, TiedDropout) and untouched(dropout, TiedDropout):
            mask = dropout.mask(z)
            scale = None if mask is None else mask[:, 0]
        else:
            z = dropout(z)
        return norm_after(ResidualSum(x, z, scale), Affine(self.weight, self.bias, self.eps))


class NoNorm(ResidualNorm):
    """The identity, in place of a norm.

    Example:
        >>> x = torch.randn(2, 10, 4)
        >>> NoNorm()(x) is x
        True
    """

    def forward(self, x: Tensor, padding: Padding | None = None) -> Tensor:
        """Return x."""
        return x


def make_norm(
    name: NormName, d_model: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> ResidualNorm:
    """The norm of this name, called as ``norm(x, padding)``."""
    if check_choice("norm", name, NORMS) == "none":
        return NoNorm()
    return (LayerNorm if name == "layer" else BatchNorm)(d_model, device=device, dtype=dtype)
