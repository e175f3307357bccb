"""Positional encodings, for layers that do not distinguish positions by themselves, such as attention.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from statespan._check import check_int, check_number, check_tensor
from statespan.nn.initial import assign
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.sequence import SequenceLayer, StepFunction

PositionName: TypeAlias = Literal["none", "sinusoidal"]
LONGEST = 10_000.0  # of the wavelengths, over 2π, as in the first Transformer


class SinusoidalPositions(SequenceLayer):
    """Adds the positional encoding of the first Transformer (Vaswani et al. 2017, section 3.5) to the features.

    Features 2i and 2i + 1 get ``sin(t · 10000^(−2i/D))`` and the cosine. The position t counts samples of the training
    data, so that sample number n of data with another step is at ``t = n · dt_scale``. There are no parameters.

    Args:
        d_model: Number of features D.
        device: Device of the numbers i.

    Example:
        >>> layer = SinusoidalPositions(4)
        >>> y, state = layer.prefill(torch.zeros(1, 3, 4))
        >>> y[0, 1]
        tensor([0.8415, 0.5403, 0.0100, 0.9999])
        >>> state  # the position of the next sample of each sequence
        tensor([3.], dtype=torch.float64)
    """

    needs_lengths = False
    pairs: Tensor

    def __init__(self, d_model: int, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.d_model = self.d_output = check_int("d_model", d_model, minimum=1)
        # integers, so that no change of dtype rounds them; saved, so that loading puts them on the device
        self.register_buffer("pairs", torch.arange((self.d_model + 1) // 2, device=device))

    def reset_parameters(self) -> None:
        """Restore the numbers i."""
        assign(self.pairs, torch.arange(self.pairs.shape[0]))

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Add the encodings to x (B, L, D); see :class:`SequenceLayer`."""
        padding = self._check(x, lengths, dt_scale)
        times = torch.arange(x.shape[1], dtype=torch.float64, device=x.device) * dt_scale
        return fill(x + self.encode(times).to(x.dtype), padding)

    def prefill(
        self, x: Tensor, state: Tensor | None = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The same map from the positions (B,) of the first samples to those after the last ones."""
        padding = self._check(x, lengths, dt_scale)
        batch, length, _ = x.shape
        state = torch.zeros(batch, dtype=torch.float64, device=x.device) if state is None else state
        check_tensor("state", state, (batch,), kind="real")
        times = state[:, None] + torch.arange(length, dtype=torch.float64, device=x.device) * dt_scale
        count = length if padding is None else padding.lengths
        return fill(x + self.encode(times).to(x.dtype), padding), state + count * dt_scale

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """A function from x (B, D) and the positions (B,) to the sum and the next positions."""
        check_number("dt_scale", dt_scale, above=0.0)

        def step(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            check_tensor("x", x, ("batch", self.d_model), kind="float")
            check_tensor("state", state, (x.shape[0],), kind="real")
            return x + self.encode(state).to(x.dtype), state + dt_scale

        return step

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> Tensor:
        """Position 0 of each sequence; float64, whatever the dtype, since float32 cannot count beyond 2²⁴."""
        return torch.zeros(check_int("batch", batch, minimum=0), dtype=torch.float64, device=self.pairs.device)

    def encode(self, times: Tensor) -> Tensor:
        """The encodings (…, D) of positions (…), float64."""
        frequencies = LONGEST ** (-2 * self.pairs.to(torch.float64) / self.d_model)
        angles = times.to(torch.float64)[..., None] * frequencies
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., : self.d_model]

    def extra_repr(self) -> str:
        """The sizes."""
        return f"d_model={self.d_model}"

    def _check(self, x: Tensor, lengths: Lengths, dt_scale: float) -> Padding | None:
        check_tensor("x", x, ("batch", "length", self.d_model), kind="float")
        check_number("dt_scale", dt_scale, above=0.0)
        return Padding.of(x, lengths)
