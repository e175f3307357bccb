"""ODE-RNN: a GRU whose state follows a differential equation from sample to sample.

Shapes: B batch, L length, D = d_model features, which are the hidden ones too.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from statespan._check import check_choice, check_int, check_number
from statespan.papers.baselines.scans import Driven
from statespan.papers.baselines.simple_rnn import Scheme, SimpleRNN


class ODEWeights(NamedTuple):
    """The weights of a step.

    Example:
        >>> pair = torch.zeros(4, 4), torch.zeros(4)
        >>> weights = ODEWeights(hidden=(torch.zeros(12, 4), torch.zeros(12)), inner=pair, outer=pair, time=1.0)
        >>> weights._replace(time=2.0).time  # of data sampled half as often
        2.0
    """

    hidden: tuple[Tensor, Tensor]  # of the GRU, (3D, D) and (3D,)
    inner: tuple[Tensor, Tensor]  # of the equation's first linear map
    outer: tuple[Tensor, Tensor]  # of its second
    time: float  # from sample to sample


class ODERNN(SimpleRNN):
    """The ODE-RNN (Rubanova et al. 2019): ``h' = f(h)`` from sample to sample, then a GRU's update with the sample.

    f is a network with one hidden layer and tanh. It is integrated in one step of a fixed rule, so the layer costs the
    same for all signals, unlike the adaptive solvers of its authors. ``dt_scale`` multiplies the time between samples.

    Args:
        d_model: Number of features D, of the input, the state and the output.
        d_hidden: Hidden features of f; None for D.
        time: Time between two samples of the training data.
        scheme: "euler", or "midpoint" for the Runge-Kutta rule of second order.
        dropout: Probability of dropping a feature of the input.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> layer = ODERNN(16)
        >>> y, state = layer.prefill(torch.randn(2, 100, 16))
        >>> y, state = layer.step(torch.randn(2, 16), state)
        >>> y.shape
        torch.Size([2, 16])
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_hidden: int | None = None,
        time: float = 0.01,
        scheme: Scheme = "euler",
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, input_map=False, dropout=dropout, tie_dropout=tie_dropout, device=device, dtype=dtype)
        self.time = check_number("time", time, above=0.0)
        self.scheme = check_choice("scheme", scheme, get_args(Scheme))
        width = d_model if d_hidden is None else check_int("d_hidden", d_hidden, minimum=1)
        self.map = nn.Linear(d_model, 3 * d_model, device=device, dtype=dtype)  # of the GRU's reset, update and new
        self.hidden = nn.Linear(d_model, 3 * d_model, device=device, dtype=dtype)
        self.inner = nn.Linear(d_model, width, device=device, dtype=dtype)
        self.outer = nn.Linear(width, d_model, device=device, dtype=dtype)

    def weights(self, dt_scale: float = 1.0) -> ODEWeights:
        """The weights of a step, in at least float32."""
        dtype = torch.promote_types(self.hidden.weight.dtype, torch.float32)
        hidden, inner, outer = (
            (part.weight.to(dtype), part.bias.to(dtype)) for part in (self.hidden, self.inner, self.outer)
        )
        return ODEWeights(hidden, inner, outer, self.time * dt_scale)

    def scan(self, driven: Driven, weights: ODEWeights) -> Tensor:
        """The states (L, B, D), one after the other; the drive is that of the GRU's three parts (L, B, 3D)."""
        state, time, states = driven.start, weights.time, []

        def slope(h: Tensor) -> Tensor:
            return linear(linear(h, *weights.inner).tanh(), *weights.outer)

        for drive in driven.drive.unbind():
            change = slope(state)
            if self.scheme == "midpoint":
                change = slope(state + time / 2 * change)
            state = state + time * change
            reset, update, new = drive.chunk(3, 1)
            own_reset, own_update, own_new = linear(state, *weights.hidden).chunk(3, 1)
            candidate = (new + (reset + own_reset).sigmoid() * own_new).tanh()
            state = candidate + (update + own_update).sigmoid() * (state - candidate)
            states.append(state)
        return torch.stack(states)

    def extra_repr(self) -> str:
        """The sizes and the options."""
        return f"d_model={self.d_model}, time={self.time}, scheme={self.scheme}"
