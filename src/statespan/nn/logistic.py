"""A discretised mixture of logistic distributions over the values of a pixel (Salimans et al. 2017).

Shapes: D = d_model features, K values, Q components; "…" any leading sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from statespan._check import check_int
from statespan.nn.initial import Initialised, assign

SCALES = (-7.0, 7.0)
"""Range of log scale, where the values span 2: from a tenth of one of 256 values to flat."""


class _Components(nn.Linear):
    """A linear map whose initial bias spreads the components over all values."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Re-initialise weight and bias."""
        super().reset_parameters()
        components = self.out_features // 3
        weight = torch.zeros(components)
        mean = (2 * torch.arange(components) + 1) / components - 1
        scale = torch.full((components,), -1.0) - torch.tensor(float(components)).log()
        assign(self.bias, torch.cat([weight, mean, scale]))


class LogisticMixture(Initialised):
    """Log-probabilities of K ordered values from features, with 3 numbers per component instead of one per value.

    The values are evenly spaced in [-1, 1]. A component has a weight, a mean and a scale; a value gets its mass between
    the midpoints to the neighbouring values, and the first and the last one also get the tail.

    Args:
        d_model: Number of features D.
        values: Number of values K.
        components: Number of components Q.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> mixture = LogisticMixture(8, 256)
        >>> features, values = torch.randn(2, 50, 8), torch.randint(256, (2, 50))
        >>> mixture(features).shape, mixture.losses(features, values).shape
        (torch.Size([2, 50, 256]), torch.Size([2, 50]))
    """

    def __init__(
        self,
        d_model: int,
        values: int,
        components: int = 10,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.values = check_int("values", values, minimum=2)
        self.components = check_int("components", components, minimum=1)
        self.linear = _Components(d_model, 3 * components, device=device, dtype=dtype)

    def forward(self, features: Tensor) -> Tensor:
        """The log-probabilities (…, K) of all values, from features (…, D); at least float32."""
        weight, mean, scale = self._parts(features)
        at = torch.arange(self.values, device=features.device)
        return self._log_probs(weight[..., None, :], mean[..., None, :], scale[..., None, :], at)

    def losses(self, features: Tensor, y: Tensor) -> Tensor:
        """``-log_probs`` of values y (…)."""
        return -self._log_probs(*self._parts(features), y)

    def _parts(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights, means and log scales, each (…, Q)."""
        y = self.linear(features)
        weight, mean, scale = y.to(torch.promote_types(y.dtype, torch.float32)).chunk(3, -1)
        return weight.log_softmax(-1), mean, scale.clamp(*SCALES)

    def _log_probs(self, weight: Tensor, mean: Tensor, scale: Tensor, y: Tensor) -> Tensor:
        """Log-probabilities of values y for each component (last axis).

        The mass between a < b is ``σ(b) - σ(a) = σ(b) σ(-a) (1 - exp(a - b))``; the logarithm of each factor is exact.
        """
        half = 1.0 / (self.values - 1)
        offset = (2 * half * y.to(mean.dtype) - 1.0)[..., None] - mean
        sharpness = (-scale).exp()
        below = -softplus(-(offset + half) * sharpness)  # log σ, of which onnxruntime would round σ
        above = -softplus((offset - half) * sharpness)
        inside = below + above + (-torch.expm1(-2 * half * sharpness)).log()
        place = y[..., None]
        log_mass = torch.where(place == 0, below, torch.where(place == self.values - 1, above, inside))
        return (weight + log_mass).logsumexp(-1)
