"""ExpRNN and LipschitzRNN: recurrent networks whose state is their output.

Shapes: B batch, L length, D = d_model features, which are the hidden ones too.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from statespan._check import (
    check_bool,
    check_choice,
    check_dtype,
    check_int,
    check_number,
    check_same_dtype,
    check_tensor,
)
from statespan.nn.dropout import make_dropout
from statespan.nn.initial import assign, reset
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.precision import example_of, full_precision
from statespan.nn.sequence import SequenceLayer, StepFunction
from statespan.papers.baselines.scans import Driven, Flow, Rotation, flow, rotate

Angles: TypeAlias = Literal["cayley", "henaff"]
Scheme: TypeAlias = Literal["euler", "midpoint"]
DEGREE, SQUARINGS = 18, 8  # of the exponential: exact in float64 up to a norm of 2⁸


class SimpleRNN(SequenceLayer):
    """The base of recurrent layers whose output is their state: ``h_t = F(h_{t−1}, u_t)`` with a drive u = U x + b.

    The drive of all positions is one product; only F runs step by step, in at least float32.

    Args:
        d_model: Number of features D, of the input, the state and the output.
        input_map: Have a matrix U and a bias b; False where u = x, since an encoder is in front of the layer.
        dropout: Probability of dropping a feature of the input.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> layer, x = LipschitzRNN(8), torch.zeros(2, 50, 8)
        >>> y, state = layer.prefill(x)
        >>> isinstance(layer, SimpleRNN), torch.equal(y[:, -1], state)  # the output is the state
        (True, True)
    """

    needs_lengths = False

    def __init__(
        self,
        d_model: int,
        *,
        input_map: bool = True,
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = self.d_output = check_int("d_model", d_model, minimum=1)
        check_dtype("dtype", dtype)
        self.dropout = make_dropout(dropout, tie_dropout)
        self.map: nn.Module = nn.Identity()
        if check_bool("input_map", input_map):
            self.map = nn.Linear(d_model, d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply the layer to whole sequences x (B, L, D); see :class:`SequenceLayer`."""
        return self.prefill(x, lengths=lengths, dt_scale=dt_scale)[0]

    def prefill(
        self, x: Tensor, state: Tensor | None = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The same map from a state (B, D) to a state."""
        check_tensor("x", x, ("batch", "length", self.d_model), kind="float")
        check_same_dtype(x, example_of(self).dtype, "layer")
        check_number("dt_scale", dt_scale, above=0.0)
        padding = Padding.of(x, lengths)
        state = self.initial_state(x.shape[0]) if state is None else state
        check_tensor("state", state, (x.shape[0], self.d_model), kind="real")
        if x.numel() == 0:
            return x, state
        u = self.map(self.dropout(fill(x, padding)))
        with full_precision(x):
            hidden = self._scan(u, state, self.weights(dt_scale))
        last = hidden[:, -1]
        if padding is not None:
            position = (padding.lengths - 1).clamp(min=0)
            last = hidden[torch.arange(len(x), device=x.device), position]
            last = torch.where((padding.lengths == 0)[:, None], state, last)
        return fill(hidden.to(x.dtype), padding), last.to(state.dtype)

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """A function from x (B, D) and a state (B, D) to y and the new state, with the weights computed once."""
        weights = self.weights(check_number("dt_scale", dt_scale, above=0.0))

        def step(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            check_tensor("x", x, ("batch", self.d_model), kind="float")
            check_same_dtype(x, example_of(self).dtype, "layer")
            check_tensor("state", state, (x.shape[0], self.d_model), kind="real")
            u = self.map(self.dropout(x[:, None]))
            with full_precision(x):
                hidden = self._scan(u, state, weights)[:, 0]
            return hidden.to(x.dtype), hidden.to(state.dtype)

        return step

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> Tensor:
        """Zeros (B, D), float64 in a float64 layer and float32 in all others, whatever ``dtype`` is."""
        like = example_of(self)
        wide = torch.promote_types(like.dtype, torch.float32)
        return torch.zeros(check_int("batch", batch, minimum=0), self.d_model, dtype=wide, device=like.device)

    @abstractmethod
    def weights(self, dt_scale: float = 1.0) -> Any:
        """The weights of F as a named tuple, in at least float32."""

    @abstractmethod
    def scan(self, driven: Driven, weights: Any) -> Tensor:
        """The states (L, B, D)."""

    def extra_repr(self) -> str:
        """The sizes."""
        return f"d_model={self.d_model}"

    def _scan(self, u: Tensor, state: Tensor, weights: Any) -> Tensor:
        """The states (B, L, D) for drives u (B, L, D)."""
        dtype = torch.promote_types(example_of(self).dtype, torch.float32)
        drive = u.transpose(0, 1).to(dtype).contiguous()
        return self.scan(Driven(drive, state.to(dtype)), weights).transpose(0, 1)


class ExpRNN(SimpleRNN):
    """A recurrent network with an orthogonal matrix (Lezcano-Casado and Martínez-Rubio 2019).

    ``h_t = modrelu(exp(S) h_{t−1} + U x_t)`` with a skew-symmetric S, whose entries above the diagonal are trained.
    They belong to the parameter group "ssm": its learning rate ``ssm_lr`` should be a tenth of the others', as its
    authors recommend. The recurrence has no notion of time, so ``dt_scale`` has no effect.

    Args:
        d_model: Number of features D, of the input, the state and the output.
        init: "cayley" or "henaff": S rotates pairs of features by tan(a/2) for a uniform in (−π/2, 0), or by angles
            uniform in (−π, π).
        input_map: Have a matrix U (and a bias); False where u = x, since an encoder is in front of the layer.
        dropout: Probability of dropping a feature of the input.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> layer = ExpRNN(16)
        >>> y, state = layer.prefill(torch.randn(2, 100, 16))
        >>> y, state = layer.step(torch.randn(2, 16), state)
        >>> W, _ = layer.weights()
        >>> torch.allclose(W @ W.T, torch.eye(16), atol=1e-6)
        True
    """

    parameter_groups: ClassVar[dict[str, str]] = {"skew": "ssm", "bias": "no_decay"}

    def __init__(
        self,
        d_model: int,
        *,
        init: Angles = "cayley",
        input_map: bool = True,
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            d_model, input_map=input_map, dropout=dropout, tie_dropout=tie_dropout, device=device, dtype=dtype
        )
        self.init = check_choice("init", init, get_args(Angles))
        self.skew = nn.Parameter(torch.empty(d_model * (d_model - 1) // 2, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d_model, device=device, dtype=dtype))
        self._draw()

    def reset_parameters(self) -> None:
        """Re-initialise all parameters as the constructor does; the same seed gives the same values."""
        reset(self.map)
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        if self.skew.is_meta:
            return
        pairs = torch.rand(self.d_model // 2, dtype=torch.float64, device="cpu")
        angles = -(pairs * math.pi / 4).tan() if self.init == "cayley" else (2 * pairs - 1) * math.pi
        S = torch.zeros(self.d_model, self.d_model, dtype=torch.float64, device="cpu")
        first = 2 * torch.arange(self.d_model // 2, device="cpu")
        S[first, first + 1] = angles
        rows, columns = torch.triu_indices(self.d_model, self.d_model, 1, device="cpu")
        assign(self.skew, S[rows, columns])
        nn.init.uniform_(self.bias, -0.01, 0.01)

    def weights(self, dt_scale: float = 1.0) -> Rotation:
        """The orthogonal matrix and the bias of modrelu."""
        dtype = torch.promote_types(self.skew.dtype, torch.float32)
        rows, columns = torch.triu_indices(self.d_model, self.d_model, 1, device=self.skew.device)
        empty = torch.zeros(self.d_model, self.d_model, dtype=torch.float64, device=self.skew.device)
        upper = empty.index_put((rows, columns), self.skew.to(torch.float64))
        return Rotation(exponential(upper - upper.mT).to(dtype), self.bias.to(dtype))

    def scan(self, driven: Driven, weights: Rotation) -> Tensor:
        """The states (L, B, D)."""
        return rotate(driven, weights)


def exponential(S: Tensor) -> Tensor:
    """The exponential of a matrix by scaling, a Taylor polynomial and squaring.

    torch's own reads the norm on the host, which a CUDA graph cannot record.
    """
    norm = S.detach().abs().sum(-1).amax()
    halvings = norm.clamp(min=1.0).log2().ceil().clamp(max=SQUARINGS)
    X = S * 2.0**-halvings
    identity = torch.eye(S.shape[0], dtype=S.dtype, device=S.device)
    y = identity + X / DEGREE
    for n in range(DEGREE - 1, 0, -1):
        y = identity + X @ y / n
    for n in range(SQUARINGS):
        y = torch.where(n < halvings, y @ y, y)
    return y


class LipschitzRNN(SimpleRNN):
    """A recurrent network that follows a differential equation (Erichson et al. 2021).

    ``h' = A h + tanh(W h + U x + b)``, in steps of ε. A and W are ``(1 − β)(M + Mᵀ) + β(M − Mᵀ) − γI`` with a matrix M
    for each. For data with another step, ε is multiplied by ``dt_scale``.

    Args:
        d_model: Number of features D, of the input, the state and the output.
        beta: Share β of the skew-symmetric part, from 0.5 to 1.
        gamma: Damping γ.
        eps: Step ε.
        init_std: Standard deviation of M, times D; 32 in its authors' experiments on MNIST.
        scheme: "euler", or "midpoint" for the Runge-Kutta rule of second order.
        input_map: Have U and b; False where an encoder in front of the layer does it.
        dropout: Probability of dropping a feature of the input.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> layer = LipschitzRNN(16, scheme="midpoint")
        >>> y, state = layer.prefill(torch.randn(2, 100, 16))
        >>> y, state = layer.step(torch.randn(2, 16), state)
        >>> y.shape
        torch.Size([2, 16])
    """

    def __init__(
        self,
        d_model: int,
        *,
        beta: float = 0.8,
        gamma: float = 0.001,
        eps: float = 0.01,
        init_std: float = 32.0,
        scheme: Scheme = "euler",
        input_map: bool = True,
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            d_model, input_map=input_map, dropout=dropout, tie_dropout=tie_dropout, device=device, dtype=dtype
        )
        self.beta = check_number("beta", beta, above=0.0, below=1.0, closed=True)
        self.gamma = check_number("gamma", gamma, above=0.0, closed=True)
        self.eps = check_number("eps", eps, above=0.0)
        self.init_std = check_number("init_std", init_std, above=0.0)
        self.scheme = check_choice("scheme", scheme, get_args(Scheme))
        self.M_A = nn.Parameter(torch.empty(d_model, d_model, device=device, dtype=dtype))
        self.M_W = nn.Parameter(torch.empty(d_model, d_model, device=device, dtype=dtype))
        self._draw()

    def reset_parameters(self) -> None:
        """Re-initialise all parameters as the constructor does; the same seed gives the same values."""
        reset(self.map)
        self._draw()

    def _draw(self) -> None:
        for matrix in (self.M_A, self.M_W):
            nn.init.normal_(matrix, std=self.init_std / self.d_model)

    def weights(self, dt_scale: float = 1.0) -> Flow:
        """A, W and the step."""
        dtype = torch.promote_types(self.M_A.dtype, torch.float32)
        identity = torch.eye(self.d_model, dtype=dtype, device=self.M_A.device)
        A, W = (
            (1 - self.beta) * (M + M.mT) + self.beta * (M - M.mT) - self.gamma * identity
            for M in (self.M_A.to(dtype), self.M_W.to(dtype))
        )
        return Flow(A, W, self.eps * dt_scale, self.scheme == "midpoint")

    def scan(self, driven: Driven, weights: Flow) -> Tensor:
        """The states (L, B, D)."""
        return flow(driven, weights)

    def extra_repr(self) -> str:
        """The sizes and the options."""
        return f"d_model={self.d_model}, beta={self.beta}, gamma={self.gamma}, eps={self.eps}, scheme={self.scheme}"
