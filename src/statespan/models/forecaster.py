"""The forecasting model (S4 paper, appendix D.3.5): the future is a masked end of the sequence.

Shapes: B batch, L length, D = d_model features, M = d_marks calendar features, K = d_output series.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_tensor
from statespan.models.base import Model
from statespan.models.config import COUNT, BackboneConfig, make_backbone
from statespan.models.encoder import Encoder
from statespan.nn.padding import Lengths, Padding, fill
from statespan.ops.fusion import unviewed
from statespan.ops.parallel.context import check_alone
from statespan.ops.parallel.packing import check_unpacked


@dataclass(frozen=True, kw_only=True)
class ForecasterConfig(BackboneConfig):
    """The fields of :class:`BackboneConfig`, and these.

    Args:
        d_input: Number of series given.
        d_output: Number of series K to forecast.
        horizon: Steps to forecast.
        d_marks: Calendar features M of each position; 0 for none.
        bidirectional: Let the layers look both ways; then there is no ``prefill`` and no ``step``.

    Example:
        >>> config = ForecasterConfig(d_input=3, d_output=1, horizon=24, d_model=8, d_state=4, n_layers=1)
        >>> Forecaster(config)(torch.zeros(2, 100, 3)).shape
        torch.Size([2, 24, 1])
    """

    d_input: int
    d_output: int
    horizon: int
    d_marks: int = field(default=0, metadata=COUNT)
    bidirectional: bool = False


class Forecaster(Model):
    """Forecasts series: it reads a sequence with a masked end and returns the values there.

    In the masked end a learned vector replaces the values, so the input there has no influence. Calendar features, if
    any, are given for the end too. Its state is that of the backbone.

    Example:
        >>> model = Forecaster(ForecasterConfig(d_input=1, d_output=1, horizon=24, d_model=16, n_layers=2)).eval()
        >>> model(torch.randn(3, 96 + 24, 1)).shape
        torch.Size([3, 24, 1])
        >>> _, state = model.prefill(torch.randn(3, 96, 1))
        >>> forecast, _ = model.prefill(torch.zeros(3, 24, 1), state, future=True)
        >>> forecast.shape
        torch.Size([3, 24, 1])
    """

    name = "forecaster"
    tasks = ("forecast",)
    config_class = ForecasterConfig

    def _build(self, config: ForecasterConfig, where: dict[str, Any]) -> None:
        D = config.d_model
        self.encoder = Encoder(D, d_input=config.d_input, vocabulary=None, **where)
        self.future = nn.Parameter(torch.randn(D, **where) * D**-0.5)
        self.marks = nn.Linear(config.d_marks, D, bias=False, **where) if config.d_marks else None
        self.backbone = make_backbone(config, bidirectional=config.bidirectional, **where)
        self.linear = nn.Linear(D, config.d_output, **where)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Re-initialise all parameters and buffers as the constructor does; the same seed gives the same values."""
        self.encoder.reset_parameters()
        nn.init.normal_(self.future).mul_(self.config.d_model**-0.5)
        for part in (self.marks, self.backbone, self.linear):
            if part is not None:
                part.reset_parameters()

    def forward(
        self, x: Tensor, *, marks: Tensor | None = None, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> Tensor:
        """The forecast for the last ``horizon`` positions.

        Args:
            x: (B, L, d_input), the past and then ``horizon`` positions whose values are not read.
            marks: Calendar features (B, L, M), if the model has any.
            lengths: True length of each sequence (B,), ``horizon`` … L, with the masked end; padding is ignored.
            dt_scale: Step of the data relative to that of training.

        Returns:
            (B, horizon, K).
        """
        check_alone("forward of a forecaster")
        check_unpacked("forward of a forecaster")
        x, marks, padding = self._input(x, marks, lengths)
        batch, length, _ = x.shape
        horizon, places = self.config.horizon, torch.arange(length, device=x.device)
        if padding is None:
            self._check_horizon(length)
            future = places >= length - horizon
            y = self.backbone(self._encode(x, marks, future[:, None]), dt_scale=dt_scale)[:, -horizon:]
        else:
            if padding.lengths.device.type == "cpu" and not torch.compiler.is_compiling() and batch:
                self._check_horizon(int(padding.lengths.min()))
            start = padding.lengths[:, None] - horizon
            y = self.backbone(self._encode(x, marks, (places >= start)[..., None]), lengths=padding, dt_scale=dt_scale)
            y = y[torch.arange(batch, device=x.device)[:, None], start + torch.arange(horizon, device=x.device)]
        y = self.linear(y)
        return unviewed(y) if isinstance(self.linear, nn.Linear) else y

    def prefill(
        self,
        x: Tensor,
        state: Any = None,
        *,
        marks: Tensor | None = None,
        lengths: Lengths = None,
        dt_scale: float = 1.0,
        future: bool = False,
    ) -> tuple[Tensor, Any]:
        """Read the past, or forecast the positions after it; see :class:`SequenceModule`.

        Args:
            x: (B, L, d_input).
            state: As returned by ``prefill``, ``step`` or ``initial_state``; None to start.
            marks: Calendar features (B, L, M), if the model has any.
            lengths: As in ``forward``; the state returned is the one after each sequence's own length.
            dt_scale: As in ``forward``.
            future: Forecast these positions; the values of x are not read.

        Returns:
            (B, L, K), which is the forecast where ``future`` and means nothing where not, and the new state.
        """
        x, marks, padding = self._input(x, marks, lengths)
        hidden = torch.full((1, 1), check_bool("future", future), device=x.device)
        y, after = self.backbone.prefill(self._encode(x, marks, hidden), state, lengths=padding, dt_scale=dt_scale)
        return fill(self.linear(y), padding), after

    def step(
        self, x: Tensor, state: Any, *, marks: Tensor | None = None, dt_scale: float = 1.0, future: bool = False
    ) -> tuple[Tensor, Any]:
        """Advance by one position. For many steps in a row, use :meth:`stepper`.

        Args:
            x: (B, d_input).
            state: It is not changed.
            marks: (B, M), if the model has any.
            dt_scale: As in ``forward``.
            future: As in ``prefill``.

        Returns:
            (B, K), and the new state.
        """
        return self.stepper(dt_scale)(x, state, marks, future)

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> Callable[..., tuple[Tensor, Any]]:
        """A function ``(x, state, marks=None, future=False)``; see :class:`SequenceModule`.

        ``future`` may also be a mask (B, 1).
        """
        backbone = self.backbone.stepper(dt_scale, in_place=in_place)

        def step(
            x: Tensor, state: Any, marks: Tensor | None = None, future: bool | Tensor = False
        ) -> tuple[Tensor, Any]:
            x, marks = self.encoder.check(x, "batch"), self._check_marks(marks, x.shape[0])
            if not isinstance(future, Tensor):
                future = torch.full((1,), check_bool("future", future), device=x.device)
            y, after = backbone(self._encode(x, marks, future), state)
            return self.linear(y), after

        return step

    def _encode(self, x: Tensor, marks: Tensor | None, future: Tensor) -> Tensor:
        """The features of samples (in the ``future`` the mask vector instead) plus those of the marks."""
        y = self.encoder(x.masked_fill(future, 0.0))
        y = torch.where(future, self.future.to(y.dtype), y)
        return y if self.marks is None else y + self.marks(marks)

    def _input(self, x: Tensor, marks: Tensor | None, lengths: Lengths) -> tuple[Tensor, Tensor | None, Padding | None]:
        x, padding = self.encoder.read(x, lengths)
        marks = self._check_marks(marks, *x.shape[:2])
        return x, None if marks is None else fill(marks, padding), padding

    def _check_marks(self, marks: Tensor | None, *leading: int) -> Tensor | None:
        if self.marks is None:
            if marks is not None:
                raise ValueError("marks must be None for a model with d_marks=0, got a tensor")
            return None
        return check_tensor("marks", marks, (*leading, self.config.d_marks), kind="float")

    def _check_horizon(self, length: int) -> None:
        if length < self.config.horizon:
            raise ValueError(f"each sequence must have at least horizon={self.config.horizon} positions, got {length}")
