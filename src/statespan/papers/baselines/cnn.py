"""What the convolutional baselines share: their config, the checks of their input, and parts of residual networks.

None of them has a recurrence or a step size: ``dt_scale`` is accepted, so that they are evaluated like any model on
data of another sampling rate, and has no effect on them.

Shapes: B batch, L length, C channels, K = d_output classes. Inside, features are (B, C, L).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from statespan._check import check_number, check_same_dtype, check_tensor
from statespan.models import Model, ModelConfig
from statespan.nn.padding import Lengths
from statespan.nn.precision import example_of

ImageNorm: TypeAlias = Literal["batch", "layer"]
_CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d}
_BATCH_NORMS: dict[int, Any] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d}


@dataclass(frozen=True, kw_only=True)
class CnnConfig(ModelConfig):
    """The fields of all convolutional baselines.

    Args:
        d_input: Features of a sample.
        d_output: Number of classes K.
        d_model: Channels of the first stage.
        dropout: Probability of dropping a feature.

    Example:
        >>> config = CnnConfig(d_input=1, d_output=10)
        >>> config.d_model, config.least_weights()
        (64, 4096)
    """

    d_input: int
    d_output: int
    d_model: int = 64
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        check_number("dropout", self.dropout, above=0.0, below=1.0, closed=True)

    def least_weights(self) -> int:
        """One convolution of the first stage."""
        return self.d_model**2


class Cnn(Model):
    """Class scores of whole sequences of one length by a convolutional network.

    Sequences are not padded: a network with batch normalization and pooling cannot ignore padding.

    Example:
        >>> from statespan.papers.baselines.convnet import ConvNet, ConvNetConfig
        >>> model = ConvNet(ConvNetConfig(d_input=1, d_output=10, d_model=4, n_blocks=1))
        >>> isinstance(model, Cnn), model(torch.zeros(2, 1000, 1)).shape
        (True, torch.Size([2, 10]))
    """

    tasks = ("classification",)
    config_class = CnnConfig
    config: CnnConfig

    @abstractmethod
    def scores(self, x: Tensor) -> Tensor:
        """The class scores (B, K) of x (B, C, L), which was checked."""

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """The class scores of whole sequences.

        Args:
            x: Samples (B, L, d_input).
            lengths: Must be None.
            dt_scale: Accepted, and without effect: a convolution has no step size to adapt.

        Returns:
            Class scores (B, K).
        """
        check_number("dt_scale", dt_scale, above=0.0)
        if lengths is not None:
            raise ValueError(f"lengths must be None, as the model {self.name!r} cannot ignore padding, got lengths")
        check_tensor("x", x, ("batch", "length", self.config.d_input), kind="float")
        check_same_dtype(x, example_of(self).dtype, "model")
        if not x.shape[1]:
            raise ValueError(f"x must have at least one position, got shape {tuple(x.shape)}")
        return self.scores(x.mT)

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> Any:
        """Raise a TypeError: there is no recurrence."""
        raise self._no_recurrence("initial_state")

    def reset_parameters(self) -> None:
        """Re-initialise all parameters and buffers as the constructor does."""
        super().reset_parameters()
        self.initialise()

    def initialise(self) -> None:
        """What a network changes of torch's default initialization; nothing by default."""


class PoolHead(nn.Module):
    """Maximum and mean over all positions, batch normalization, dropout and a linear map: (B, C, L) to (B, K).

    Example:
        >>> PoolHead(8, 10, dropout=0.5)(torch.zeros(2, 8, 50)).shape
        torch.Size([2, 10])
    """

    def __init__(self, width: int, d_output: int, *, dropout: float, **where: Any) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2 * width, **where)
        self.dropout = nn.Dropout(dropout)
        self.map = nn.Linear(2 * width, d_output, **where)

    def forward(self, x: Tensor) -> Tensor:
        """The class scores."""
        return self.map(self.dropout(self.norm(torch.cat([x.amax(-1), x.mean(-1)], 1))))


def convolution(
    d_input: int, d_output: int, kernel: int, *, dims: int = 1, stride: int = 1, bias: bool = False, **where: Any
) -> nn.Module:
    """A convolution with an odd kernel, padded so that a stride of 1 keeps the length."""
    make = _CONVOLUTIONS[dims]
    return make(d_input, d_output, kernel, stride=stride, padding=kernel // 2, bias=bias, **where)


def channel_norm(width: int, *, dims: int = 1, norm: ImageNorm = "batch", **where: Any) -> nn.Module:
    """Batch normalization, or layer normalization over channels and positions (a group norm with one group)."""
    return _BATCH_NORMS[dims](width, **where) if norm == "batch" else nn.GroupNorm(1, width, **where)


class BasicBlock(nn.Module):
    """Two convolutions of width 3 with a residual around them (He et al., CVPR 2016), in one or two dimensions.

    Where the stride or the number of channels changes, a convolution of width 1 and a norm are in the residual's way.

    Example:
        >>> BasicBlock(4, 8, stride=2)(torch.zeros(2, 4, 50)).shape
        torch.Size([2, 8, 25])
    """

    def __init__(
        self, d_input: int, width: int, *, dims: int = 1, stride: int = 1, norm: ImageNorm = "batch", **where: Any
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"dims": dims, **where}
        self.first = convolution(d_input, width, 3, stride=stride, **options)
        self.first_norm = channel_norm(width, norm=norm, **options)
        self.second = convolution(width, width, 3, **options)
        self.second_norm = channel_norm(width, norm=norm, **options)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or d_input != width:
            self.around = nn.Sequential(
                convolution(d_input, width, 1, stride=stride, **options), channel_norm(width, norm=norm, **options)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, d_input, …) to (B, width, …)."""
        y = self.first_norm(self.first(x)).relu()
        return (self.second_norm(self.second(y)) + self.around(x)).relu()


@torch.no_grad()
def kaiming(network: nn.Module) -> None:
    """Initialise the weights of all convolutions and linear maps with Kaiming's normal distribution, in their order."""
    for module in network.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
