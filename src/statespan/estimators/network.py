"""The network behind the estimators: where series are long, filters and a mean over time; then SSM layers and a head.

Shapes: B batch, L length, C input channels, S = d_stem features of the stem, K outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_int
from statespan.models import Classifier, ClassifierConfig, Regressor
from statespan.models.config import parse
from statespan.nn import S4D
from statespan.nn.padding import Lengths, Padding, fill

BODIES: dict[str, type[Any]] = {"classifier": Classifier, "regressor": Regressor}


@dataclass(frozen=True)
class NetworkConfig:
    """What a network is made of, as plain values.

    Args:
        body: "classifier" or "regressor".
        d_input: Channels C, with those that say what is missing.
        stride: Samples that one position of the body stands for; 1 for no stem.
        d_stem: Features S of the stem.
        options: Fields of :class:`statespan.models.ClassifierConfig` for the body, but for ``d_input``.
    """

    body: str
    d_input: int
    stride: int
    d_stem: int
    options: dict[str, Any]

    def __post_init__(self) -> None:
        if self.body not in BODIES:
            raise ValueError(f"body must be one of {tuple(BODIES)}, got {self.body!r}")
        for name in ("d_input", "stride", "d_stem"):
            check_int(name, getattr(self, name), minimum=1)

    def body_config(self) -> ClassifierConfig:
        """The config of the body."""
        return parse(ClassifierConfig, {**self.options, "d_input": self.d_stem if self.stride > 1 else self.d_input})


class Stem(nn.Module):
    """A bank of SSM filters on the samples as they come, then the mean over windows of time.

    A window lasts as long as ``stride`` samples of the training data, at whatever rate the samples come: of data
    sampled half as often it holds half as many. So what follows sees the same steps of time at every rate.

    Args:
        d_input: Channels C.
        d_stem: Features S.
        stride: Samples of a window, at the rate of training.

    Example:
        >>> stem = Stem(1, 8, stride=4)
        >>> stem(torch.randn(2, 100, 1))[0].shape, stem(torch.randn(2, 50, 1), rate=2.0)[0].shape
        (torch.Size([2, 25, 8]), torch.Size([2, 25, 8]))
    """

    def __init__(self, d_input: int, d_stem: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.encoder = nn.Linear(d_input, d_stem)
        self.filters = S4D(
            d_stem, 16, init="lin", discretization="zoh", dt_min=0.25 / stride, dt_max=0.25, bidirectional=True
        )  # zero-order hold keeps frequencies where they are at every rate

    def forward(self, x: Tensor, *, lengths: Lengths = None, rate: float = 1.0) -> tuple[Tensor, Tensor | None, float]:
        """The features of the windows.

        Args:
            x: (B, L, C).
            lengths: True lengths (B,), or None.
            rate: Step of the data relative to that of training.

        Returns:
            Features (B, windows, S), the number of windows of each series or None, and the rate that is left for what
            follows: 1.0 unless the data is so coarse that a window has no whole sample.
        """
        padding = Padding.of(x, lengths)
        y = self.filters(fill(self.encoder(x), padding), rate=rate)
        if rate >= self.stride:
            return fill(y, padding), None if padding is None else padding.lengths, rate / self.stride
        windows = window_means(fill(y, padding), self.stride / rate, padding)
        if padding is None:
            return windows, None, 1.0
        return windows, torch.ceil(padding.lengths * (rate / self.stride) - 1e-9).long(), 1.0


def window_means(x: Tensor, width: float, padding: Padding | None) -> Tensor:
    """Means of x (B, L, S) over windows of ``width`` samples, which need not be whole; of real samples only.

    Example:
        >>> window_means(torch.arange(5.0).view(1, 5, 1), 2.0, None).flatten().tolist()
        [0.5, 2.5, 4.0]
    """
    batch, length, features = x.shape
    count = math.ceil(length / width - 1e-9)
    real = x.new_ones(1, length) if padding is None else padding.mask[..., 0].to(x.dtype)  # (B or 1, L)
    if width == int(width):
        step = int(width)
        gap = count * step - length
        total = nn.functional.pad(x, (0, 0, 0, gap)).view(batch, count, step, features).sum(2)
        number = nn.functional.pad(real, (0, gap)).view(len(real), count, step).sum(2)
    else:
        window = (torch.arange(length, device=x.device, dtype=torch.float64) / width + 1e-9).long()
        total = x.new_zeros(batch, count, features).index_add(1, window, x)
        number = real.new_zeros(len(real), count).index_add(1, window, real)
    return total / number.clamp(min=1.0)[..., None]


class Network(nn.Module):
    """The stem, where there is one, and the body.

    Args:
        config: What it is made of.

    Example:
        >>> options = {"d_output": 3, "d_model": 8, "n_layers": 1, "d_state": 8, "layer": "s4d", "bidirectional": True}
        >>> network = Network(NetworkConfig("classifier", d_input=1, stride=4, d_stem=4, options=options))
        >>> network(torch.randn(2, 100, 1), lengths=[100, 31]).shape
        torch.Size([2, 3])
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config.d_input, config.d_stem, stride=config.stride) if config.stride > 1 else None
        self.body = BODIES[config.body](config.body_config())

    def forward(self, x: Tensor, *, lengths: Lengths = None, rate: float = 1.0) -> Tensor:
        """The answers (B, K) for series x (B, L, C); see :meth:`statespan.models.Classifier.forward`."""
        if self.stem is not None:
            x, lengths, rate = self.stem(x, lengths=lengths, rate=rate)
        return self.body(x, lengths=lengths, rate=rate)
