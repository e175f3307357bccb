"""A package that adds torch's GRU as a layer, with all uses: whole sequences, blocks and steps.

Its pyproject.toml says

    [project.entry-points."statespan.layers"]
    my-gru = "gru_layer:GRU"

and then any recipe can use it:

    statespan train digits-s4d model.layer=my-gru "model.ssm={hidden: 48}"
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from statespan.nn import SequenceLayer
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.sequence import StepFunction


class GRU(SequenceLayer):
    """A gated recurrent unit and a linear map back to the features.

    Args:
        d_model: Number of features D.
        hidden: Size H of the state; d_model if not given.
        device: Device of the parameters.
        dtype: Their dtype.
    """

    needs_lengths = False  # it never looks ahead, so what follows a sequence does not matter

    def __init__(
        self,
        d_model: int,
        *,
        hidden: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = self.d_output = d_model
        self.hidden = hidden or d_model
        self.gru = nn.GRU(d_model, self.hidden, batch_first=True, device=device, dtype=dtype)
        self.out = nn.Linear(self.hidden, d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Whole sequences x (B, L, D)."""
        return self.prefill(x, lengths=lengths, dt_scale=dt_scale)[0]

    def prefill(
        self, x: Tensor, state: Tensor | None = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """From a state (B, H) to the state after each sequence."""
        _check(dt_scale)
        state = self.initial_state(len(x)) if state is None else state
        if x.shape[1] == 0:
            return x, state
        y, last = self.gru(x, state[None].contiguous())  # (B, L, H)
        padding = Padding.of(x, lengths)
        if padding is None:
            return self.out(y), last[0]
        states = torch.cat([state[:, None], y], 1)  # before each sample, and after the last
        after = states[torch.arange(len(x), device=x.device), padding.lengths]
        return fill(self.out(y), padding), after

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """A function from x (B, D) and a state (B, H) to y and the new state."""
        _check(dt_scale)

        def step(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            y, after = self.prefill(x[:, None], state)
            return y[:, 0], after

        return step

    def initial_state(self, batch: int, *, dtype: Any = None) -> Tensor:
        """Zeros (B, H) of the parameters' dtype."""
        return self.out.weight.new_zeros(batch, self.hidden)


def _check(dt_scale: float) -> None:
    if dt_scale != 1.0:
        raise ValueError(f"dt_scale must be 1 for a GRU, which has no step size, got {dt_scale}")
