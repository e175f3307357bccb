"""CKConv: convolutions whose kernel is a small network of the lag (Romero et al. 2022), and their residual block.

Shapes: B batch, L length, D = d_model features, N = kernel_length lags, K taps of the sampled kernel, S = K − 1 past
samples, H = d_hidden hidden features of the kernel's network.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_dtype, check_int, check_number, check_same_dtype, check_tensor
from statespan.nn.dropout import make_dropout
from statespan.nn.initial import Initialised
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.precision import example_of, full_precision
from statespan.nn.sequence import SequenceLayer, StepFunction
from statespan.ops.ssm.fftconv import fast_length


class NormedLinear(nn.Module):
    """A linear map whose matrix is ``g v / |v|`` for each output (weight normalization), drawn uniformly in ±bound.

    With one input v is a number, whose length is all there is to train; then the matrix is v, without g.

    Example:
        >>> linear = NormedLinear(4, 3, bound=0.5)
        >>> linear(torch.zeros(2, 4)).shape, torch.allclose(linear.g, linear.v.norm(dim=1))
        (torch.Size([2, 3]), True)
    """

    g: nn.Parameter | None

    def __init__(self, d_input: int, d_output: int, bound: float, **where: Any) -> None:
        super().__init__()
        self.bound = bound
        self.v = nn.Parameter(torch.empty(d_output, d_input, **where))
        self.g = nn.Parameter(torch.empty(d_output, **where)) if d_input > 1 else None
        self.bias = nn.Parameter(torch.empty(d_output, **where))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters as the constructor does."""
        nn.init.uniform_(self.v, -self.bound, self.bound)
        if self.g is not None:
            self.g.copy_(self.v.norm(dim=1))
        nn.init.uniform_(self.bias, -1.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """The map of x (…, d_input), in the dtype of x."""
        weight = self.v.to(x.dtype)
        if self.g is not None:
            weight = weight * (self.g.to(x.dtype) / weight.norm(dim=1))[:, None]
        return nn.functional.linear(x, weight, self.bias.to(x.dtype))


class CKConv(Initialised):
    """A causal convolution from D to D features with a kernel for each pair, a SIREN of the lag.

    The kernel at lag τ is ``W₃ sin(ω₀ (W₂ sin(ω₀ (W₁ p + b₁)) + b₂)) + b₃`` at the relative position p of τ, from −1 to
    1 for τ from 0 to N − 1 samples of the training data; beyond it is 0. At another step ``dt_scale`` the same function
    is sampled at other lags and multiplied by the step, so that sums stay integrals.

    Args:
        d_model: Number of features D.
        kernel_length: Lags N of the kernel at the training data's rate; in the paper the length of the sequences.
        omega_0: Frequency ω₀.
        d_hidden: Hidden features H.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> CKConv(4, 100)(torch.randn(2, 50, 4)).shape
        torch.Size([2, 50, 4])
    """

    def __init__(
        self,
        d_model: int,
        kernel_length: int,
        *,
        omega_0: float = 30.0,
        d_hidden: int = 32,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = check_int("d_model", d_model, minimum=1)
        self.kernel_length = check_int("kernel_length", kernel_length, minimum=2)
        self.omega_0 = check_number("omega_0", omega_0, above=0.0)
        H = check_int("d_hidden", d_hidden, minimum=1)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        bound = math.sqrt(6 / H) / omega_0
        sizes = [(1, H, 1.0), (H, H, bound), (H, d_model * d_model, bound)]
        self.layers = nn.ModuleList(NormedLinear(*size, **where) for size in sizes)
        self.bias = nn.Parameter(torch.zeros(d_model, **where))

    def reset_parameters(self) -> None:
        """Re-initialise all parameters as the constructor does; the same seed gives the same values."""
        super().reset_parameters()
        nn.init.zeros_(self.bias)

    def taps(self, dt_scale: float) -> int:
        """The number K of lags of the kernel at a step."""
        return math.floor((self.kernel_length - 1) / dt_scale + 1e-9) + 1

    def kernel(self, taps: int, dt_scale: float = 1.0) -> Tensor:
        """The kernel (taps, D, D) at the first lags, from features of the input to those of the output."""
        like = example_of(self)
        dtype = torch.promote_types(like.dtype, torch.float32)
        lags = torch.arange(taps, dtype=torch.float64, device=like.device) * dt_scale
        y = (2 * lags / (self.kernel_length - 1) - 1).to(dtype)[:, None]
        first, second, last = self.layers
        y = (self.omega_0 * second((self.omega_0 * first(y)).sin())).sin()
        return dt_scale * last(y).unflatten(-1, (self.d_model, self.d_model))

    def forward(self, x: Tensor, *, dt_scale: float = 1.0) -> Tensor:
        """The convolution of x (B, L, D), L ≥ 1, with what was before it taken as 0; in the dtype of the kernel."""
        length = x.shape[1]
        kernel = self.kernel(min(length, self.taps(dt_scale)), dt_scale)
        n = fast_length(length + kernel.shape[0])
        spectrum = torch.fft.rfft(x.to(kernel.dtype), n=n, dim=1).transpose(0, 1)  # (n/2 + 1, B, D)
        product = spectrum @ torch.fft.rfft(kernel, n=n, dim=0)
        y = torch.fft.irfft(product.transpose(0, 1), n=n, dim=1)[:, :length]
        return y + self.bias.to(y.dtype)


class CKBlock(SequenceLayer):
    """The residual block of CKCNN: twice a :class:`CKConv`, a norm, ReLU and dropout; the sum with the input; ReLU.

    It has its own residual, so a model of such blocks has ``residual=False``. It is causal. Norms are over the features
    of a position; those of the authors' code are over all positions too, which neither a causal layer nor one that
    ignores padding can have. Its state holds the past inputs of both convolutions, (B, S, D) each.

    Args:
        d_model: Number of features D.
        kernel_length: Lags N of the kernels at the training data's rate; in the paper the length of the sequences.
        omega_0: Frequency ω₀ of the kernels' networks.
        d_hidden: Their hidden features H.
        dropout: Probability of dropping a feature after each ReLU.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> layer = CKBlock(4, kernel_length=100)
        >>> y, state = layer.prefill(torch.randn(2, 50, 4))
        >>> y, state = layer.step(torch.randn(2, 4), state)
        >>> y.shape, state[0].shape
        (torch.Size([2, 4]), torch.Size([2, 99, 4]))
    """

    needs_lengths = False

    def __init__(
        self,
        d_model: int,
        *,
        kernel_length: int = 1024,
        omega_0: float = 30.0,
        d_hidden: int = 32,
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = self.d_output = check_int("d_model", d_model, minimum=1)
        check_dtype("dtype", dtype)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.convolutions = nn.ModuleList(
            CKConv(d_model, kernel_length, omega_0=omega_0, d_hidden=d_hidden, **where) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(d_model, **where) for _ in range(2))
        self.dropout = make_dropout(dropout, tie_dropout)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply the block to whole sequences x (B, L, D); see :class:`SequenceLayer`."""
        padding = self._check(x, lengths, dt_scale)
        if x.numel() == 0:
            return x
        x = y = fill(x, padding)
        for number, convolution in enumerate(self.convolutions):
            with full_precision(x):
                y = self._bend(number, convolution(y, dt_scale=dt_scale).to(x.dtype))
        return fill((x + y).relu(), padding)

    def prefill(
        self, x: Tensor, state: Any = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The same map from a state, two tensors (B, S, D), to a state; S may be that of another ``dt_scale``."""
        padding = self._check(x, lengths, dt_scale)
        state = self.initial_state(x.shape[0]) if state is None else self._check_state(state, x.shape[0])
        x = y = fill(x, padding)
        after = []
        for number, (convolution, past) in enumerate(zip(self.convolutions, state)):
            whole = torch.cat([self._past(past, dt_scale).to(y.dtype), y], 1)  # (B, S + L, D)
            after.append(_last(whole, y.shape[1], padding))
            if x.numel():
                with full_precision(x):
                    y = convolution(whole, dt_scale=dt_scale)[:, whole.shape[1] - x.shape[1] :]
                    y = self._bend(number, y.to(x.dtype))
        return fill((x + y).relu(), padding), (after[0], after[1])

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """A function from x (B, D) and a state to y and the new state, with the kernels sampled once."""
        check_number("dt_scale", dt_scale, above=0.0)
        parts: Any = self.convolutions
        kernels = [part.kernel(part.taps(dt_scale), dt_scale).flip(0).flatten(0, 1) for part in parts]  # (K · D, D)

        def step(x: Tensor, state: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            check_tensor("x", x, ("batch", self.d_model), kind="float")
            check_same_dtype(x, example_of(self).dtype, "layer")
            self._check_state(state, x.shape[0])
            y, after = x, []
            for number, (part, kernel, past) in enumerate(zip(parts, kernels, state)):
                whole = torch.cat([self._past(past, dt_scale).to(y.dtype), y[:, None]], 1)
                after.append(whole[:, 1:])
                with full_precision(x):
                    y = whole.flatten(1).to(kernel.dtype) @ kernel + part.bias.to(kernel.dtype)
                    y = self._bend(number, y.to(x.dtype)[:, None])[:, 0]
            return (x + y).relu(), (after[0], after[1])

        return step

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> tuple[Tensor, Tensor]:
        """Two pasts of zeros, in the dtype of the layer, whatever ``dtype`` is."""
        like = example_of(self)
        size = check_int("batch", batch, minimum=0), self._kernel_length - 1, self.d_model
        zeros = torch.zeros(size, dtype=like.dtype, device=like.device)
        return zeros, zeros.clone()

    def extra_repr(self) -> str:
        """The sizes."""
        return f"d_model={self.d_model}, kernel_length={self._kernel_length}"

    @property
    def _kernel_length(self) -> int:
        first: Any = self.convolutions[0]
        return int(first.kernel_length)

    def _bend(self, number: int, y: Tensor) -> Tensor:
        return self.dropout(self.norms[number](y).relu())

    def _past(self, past: Tensor, dt_scale: float) -> Tensor:
        """The past samples that the kernel reads at this step, with zeros before the first."""
        first: Any = self.convolutions[0]
        wanted = first.taps(dt_scale) - 1
        return nn.functional.pad(past, (0, 0, wanted - past.shape[1], 0))

    def _check(self, x: Tensor, lengths: Lengths, dt_scale: float) -> Padding | None:
        check_tensor("x", x, ("batch", "length", self.d_model), kind="float")
        check_same_dtype(x, example_of(self).dtype, "layer")
        check_number("dt_scale", dt_scale, above=0.0)
        return Padding.of(x, lengths)

    def _check_state(self, state: Any, batch: int) -> Any:
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            raise TypeError(f"state must be a pair of tensors, the pasts, got {type(state).__name__}")
        for past in state:
            check_tensor("state", past, (batch, "samples", self.d_model), kind="float")
        return state


def _last(whole: Tensor, length: int, padding: Padding | None) -> Tensor:
    """The last S samples of (B, S + L, D) up to each sequence's own length."""
    size = whole.shape[1] - length
    if padding is None:
        return whole[:, length:]
    source = padding.lengths[:, None] + torch.arange(size, device=whole.device)
    return whole.gather(1, source[..., None].expand(-1, -1, whole.shape[2]))
