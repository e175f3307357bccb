"""The network of the estimators: filters that shorten long series, then SSM layers and a head.

Shapes: B batch, L length, C input channels, S = d_stem features of the stem, K outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_choice, check_int
from statespan.models import Classifier, ClassifierConfig, Regressor
from statespan.models.config import parse
from statespan.models.irregular import answer_with_gaps
from statespan.nn.options import SSMOptions
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.parameters import DiagonalParameters

FLOOR = 1e-3  # energies below this one count as silence
BODIES: dict[str, type[Any]] = {"classifier": Classifier, "regressor": Regressor}


@dataclass(frozen=True)
class NetworkConfig:
    """The config of a network, as plain values.

    Example:
        >>> config = NetworkConfig("classifier", d_input=3, stride=1, d_stem=8, options={"d_output": 2, "d_model": 8})
        >>> config.body_config().d_input
        3
    """

    body: str  # "classifier" or "regressor"
    d_input: int  # channels C, with those that say what is missing
    stride: int  # samples that one position of the body stands for; 1 for no stem
    d_stem: int  # features S of the stem
    options: dict[str, Any]  # the other fields of statespan.models.ClassifierConfig

    def __post_init__(self) -> None:
        check_choice("body", self.body, BODIES)
        for name in ("d_input", "stride", "d_stem"):
            check_int(name, getattr(self, name), minimum=1)

    def body_config(self) -> ClassifierConfig:
        """The config of the body."""
        return parse(ClassifierConfig, {**self.options, "d_input": self.d_stem if self.stride > 1 else self.d_input})


class Stem(nn.Module):
    """Continuous-time filters over windows of ``stride`` samples: patches that adapt to the sampling rate.

    Each feature of a window is a product of the samples in it, and in the one before, with the complex impulse response
    of an SSM. Half of the features are its real part, which tells the phase of a wave; the other half are the logarithm
    of its energy, which does not depend on the phase.

    A window lasts as long as ``stride`` samples of the training data at any ``dt_scale``: of data sampled half as often
    it has half the samples, which meet the same impulse response at twice the step. So the body sees the same steps of
    time at every rate. The convolution has a stride: its cost does not grow with the state.

    Example:
        >>> stem = Stem(1, 8, stride=4)
        >>> stem(torch.randn(2, 100, 1))[0].shape, stem(torch.randn(2, 50, 1), dt_scale=2.0)[0].shape
        (torch.Size([2, 25, 8]), torch.Size([2, 25, 8]))
    """

    def __init__(self, d_input: int, d_stem: int, *, stride: int) -> None:
        super().__init__()
        self.stride, self.d_stem = stride, d_stem
        # Zero-order hold keeps frequencies and decays where they are at every rate. Modes n have frequencies nπΔ: with
        # these steps the filters begin below half of the highest frequency, which half the samples still have.
        modes = min(16, max(4, stride))
        options = SSMOptions(
            d_stem, 2 * modes, kernels=2 * d_input, dt_min=0.5 / stride, dt_max=2.0 / stride, discretization="zoh"
        )
        self.ssm = DiagonalParameters(options, init="lin")
        self.bias = nn.Parameter(torch.zeros(d_stem))

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> tuple[Tensor, Tensor | None]:
        """Features (B, windows, S) of x (B, L, C), and the number of windows of each series or None."""
        padding = Padding.of(x, lengths)
        per_window = max(1, round(self.stride / dt_scale))
        ends = None if padding is None else padding.lengths
        x = fill(x, padding)
        if per_window != self.stride / dt_scale:  # the nearest rate of which a window has a whole number of samples
            factor = per_window * dt_scale / self.stride
            x, ends = resampled(x, factor), None if ends is None else torch.ceil(ends * factor - 1e-6).long()
        width = 2 * per_window
        kernel = self.ssm.structure(self.stride / per_window).kernel(width)  # (2C, S, width)
        kernel = torch.cat([part.transpose(0, 1) for part in kernel.chunk(2)]).flip(-1).to(x.dtype)  # (2S, C, width)
        known = nn.functional.pad(x.mT, (width - per_window, -x.shape[1] % per_window))
        real, imaginary = nn.functional.conv1d(known, kernel, stride=per_window).mT.chunk(2, -1)  # (B, windows, S)
        waves = self.d_stem - self.d_stem // 2
        energy = (real[..., waves:].square() + imaginary[..., waves:].square() + FLOOR).log() / 2
        y = torch.cat([nn.functional.gelu(real[..., :waves] + self.bias[:waves]), energy + self.bias[waves:]], -1)
        return y, None if ends is None else -(-ends // per_window)


def resampled(x: Tensor, factor: float) -> Tensor:
    """Resample x (B, L, C) to ``factor`` times as many samples by linear interpolation.

    Example:
        >>> resampled(torch.tensor([0.0, 2.0, 4.0]).view(1, 3, 1), 2.0).flatten().tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0, 4.0]
    """
    length = x.shape[1]
    count = max(1, math.ceil(length * factor - 1e-6))
    place = (torch.arange(count, device=x.device, dtype=torch.float64) / factor).clamp(max=length - 1)
    before = place.long()
    share = (place - before).to(x.dtype)[:, None]
    return x[:, before] * (1 - share) + x[:, (before + 1).clamp(max=length - 1)] * share


class Network(nn.Module):
    """The stem, if there is one, and the body.

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

    def forward(
        self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0, gaps: Tensor | None = None
    ) -> Tensor:
        """Class scores or values (B, K) of x (B, L, C); gaps (B, L) between samples need a network without a stem."""
        if gaps is not None:
            return answer_with_gaps(self.body, x, gaps, lengths=lengths)
        if self.stem is not None:
            x, lengths = self.stem(x, lengths=lengths, dt_scale=dt_scale)
            return self.body(x, lengths=lengths)
        return self.body(x, lengths=lengths, dt_scale=dt_scale)
