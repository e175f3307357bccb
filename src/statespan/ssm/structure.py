"""The interface of every structured SSM, whatever its state matrix.

A structure is a snapshot of continuous parameters; each method is one view of the discrete map
``x_k = Ā x_{k-1} + B̄ u_k``, ``y_k = C x_k``; with a first-order hold ``y_k = C x_{k-1} + F u_k``. All views agree to
rounding.

Shapes, here and in every structure: B batch, L length, H heads, N state size, M = N/2 kept complex modes, K channels.
Inputs are (B, L, H), outputs (B, L, K, H), states (B, H, N) real: for complex modes the M real parts, then the M
imaginary parts. Results come in the precision of C; the set-up, the recurrence and (by default) the state are float64,
because a rounding error of the state matrix is repeated at every step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from statespan._check import check_int, check_number, check_tensor
from statespan.ssm.packed import Transition


class Operators(NamedTuple):
    """The chunk view: with u a chunk of c inputs and s the state before it, ``y = T u + O s``, ``s' = G s + E u``.

    A channel that looks ahead reads the state s of the recurrence that runs from the right, just behind the chunk:
    there ``y = Tᵀ⁺ u + O s`` with ``Tᵀ⁺[i, j] = K[j-i-1]`` for j > i.

    Example:
        >>> from statespan.ssm import Dense
        >>> one = torch.ones(1, 1, 1)
        >>> ssm = Dense(-2 / 3 * one, one[0], one, dt=torch.ones(1))
        >>> operators = ssm.operators(chunk=2)  # Ā = 1/2
        >>> operators.G, operators.T.shape
        (tensor([[[0.2500]]]), torch.Size([1, 1, 2, 2]))
    """

    K: Tensor
    """(K, H, c): the first c values of :meth:`Structure.kernel`, which fill the Toeplitz matrix T."""
    E: Tensor
    """(H, N, c): ``E[:, j] = Ā^{c-1-j} B̄``."""
    G: Tensor
    """``Ā^c``: (H, N, N), or (H, N) for a diagonal structure (real parts, then imaginary parts)."""
    O: Tensor  # noqa: E741
    """(K, H, c, N): ``O[i] = C Ā^{i+1}`` (first-order hold: C Āⁱ); ``C Ā^{c-1-i}`` if a channel looks ahead."""

    @property
    def T(self) -> Tensor:
        """(K, H, c, c): ``T[i, j] = C Ā^{i-j} B̄`` for i ≥ j, else 0."""
        return toeplitz(self.K)


class Recurrence(NamedTuple):
    """The discrete map on packed states, float64.

    Example:
        >>> from statespan.ssm import Dense
        >>> one = torch.ones(1, 1, 1)
        >>> recurrence = Dense(-2 / 3 * one, one[0], one, dt=torch.ones(1)).recurrence()
        >>> recurrence.transition.matrix().shape, recurrence.B
        (torch.Size([1, 1, 1]), tensor([[0.7500]], dtype=torch.float64))
    """

    transition: Transition
    """x ↦ Ā x."""
    B: Tensor
    """B̄, (H, N)."""
    C: Tensor
    """(K, H, N)."""
    F: Tensor | None = None
    """(K, H) with a first-order hold, whose outputs read the state before the sample: ``y_k = C x_{k-1} + F u_k``."""


class Structure(ABC):
    """A structured SSM with parameters A, B, C, dt.

    Example:
        >>> from statespan.ssm import Diagonal, inits
        >>> A, B = inits.diagonal("lin", 4)
        >>> ssm = Diagonal(A[None], B[None], torch.ones(1, 1, 2, dtype=torch.complex128), torch.tensor([0.1]))
        >>> isinstance(ssm, Structure)
        True
        >>> y, state = ssm.scan(torch.ones(2, 5, 1))
        >>> torch.allclose(y[0, :, 0, 0], ssm.kernel(5)[0, 0].cumsum(0))
        True
    """

    A: Tensor
    B: Tensor
    C: Tensor
    dt: Tensor
    discretization: str
    d_state: int

    @abstractmethod
    def with_dt_scale(self, dt_scale: float) -> Structure:
        """The same system at another sampling rate: every step size multiplied by ``dt_scale``."""

    @abstractmethod
    def recurrence(self) -> Recurrence:
        """Ā, B̄ and C on packed states."""

    @abstractmethod
    def kernel(self, length: int, *, ahead: int = 0) -> Tensor:
        """The convolution kernel ``C Ā^l B̄``, l = 0 … length-1, shape (K, H, length).

        With a first-order hold, the channels that look back have ``F, C B̄, C Ā B̄, …``: the next sample, at which a
        kernel that looks ahead starts, is where they are one step in.

        Args:
            length: How many values, at least 1.
            ahead: How many of the channels, counted from the last, look ahead.
        """

    @abstractmethod
    def operators(self, chunk: int, *, ahead: int = 0, dtype: torch.dtype | None = None) -> Operators:
        """The matrices of the chunk view.

        Args:
            chunk: The length c of a chunk.
            ahead: How many of the channels, counted from the last, look ahead.
            dtype: Of the results; None for C's precision.
        """

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the recurrence. For many steps in a row, use :meth:`stepper`.

        Args:
            u: (B, H).
            state: (B, H, N); it is not changed.

        Returns:
            y of shape (B, K, H) and the new state, in the dtype of ``state``.
        """
        return self.stepper()(u, state)

    def stepper(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """A function ``(u_t, state) -> (y_t, state)`` like :meth:`step` with the set-up done once."""
        transition, B, C, F = self.recurrence()

        def step(u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            check_tensor("u", u, ("batch", self.heads), kind="real")
            self._check_state(state, u.shape[0])
            wide, before = u.double(), state.double()
            x = transition.apply(before) + B * wide[..., None]
            y = torch.einsum("khn,bhn->bkh", C, x if F is None else before)
            y = y if F is None else y + F * wide[:, None]
            return y.to(self.dtype), x.to(state.dtype)

        return step

    def scan(self, u: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The recurrence, step by step: slow and obviously right.

        Args:
            u: (B, L, H), L ≥ 0.
            state: (B, H, N), or None for zeros.

        Returns:
            y of shape (B, L, K, H) and the state after the last step.
        """
        self._check_input(u)
        state = self.initial_state(u.shape[0]) if state is None else self._check_state(state, u.shape[0])
        step, outputs = self.stepper(), []
        for u_t in u.unbind(1):
            y, state = step(u_t, state)
            outputs.append(y)
        if not outputs:
            return u.new_zeros(u.shape[0], 0, self.channels, self.heads, dtype=self.dtype), state
        return torch.stack(outputs, 1), state

    def states(self, u: Tensor, state: Tensor | None = None) -> Tensor:
        """All states at once, by a parallel prefix sum in log₂ L rounds. N times the memory of the input.

        Args:
            u: (B, L, H), L ≥ 0.
            state: The state before the first sample (B, H, N), or None for zeros.

        Returns:
            x_0 … x_{L-1}, (B, L, H, N).
        """
        self._check_input(u)
        power, B, *_ = self.recurrence()
        x = B * u.double()[..., None]
        if state is not None and u.shape[1]:
            before = power.apply(self._check_state(state, u.shape[0]).double())
            x = torch.cat([x[:, :1] + before[:, None], x[:, 1:]], 1)
        shift = 1
        while shift < u.shape[1]:  # x_k holds the sum of the last `shift` inputs, each carried forward to k
            x = torch.cat([x[:, :shift], x[:, shift:] + power.apply(x[:, :-shift])], 1)
            shift, power = 2 * shift, power.squared()
        return x.to(self.dtype)

    def advance(self, state: Tensor, steps: int | Tensor) -> Tensor:
        """States after further steps without input, ``Ā^steps x``, by repeated squaring.

        Args:
            state: (B, H, N).
            steps: A number ≥ 0, or one for each sequence (B,).

        Returns:
            States (B, H, N) in the dtype of ``state``.
        """
        batch = self._check_state(state, state.shape[0]).shape[0]
        largest = _largest(steps, batch)
        x, power = state.double(), self.recurrence().transition
        for bit in range(largest.bit_length()):
            if isinstance(steps, Tensor):
                x = torch.where(((steps >> bit) & 1).bool()[:, None, None], power.apply(x), x)
            elif (steps >> bit) & 1:
                x = power.apply(x)
            if largest >> (bit + 1):
                power = power.squared()
        return x.to(state.dtype)

    def initial_state(self, batch: int, *, dtype: torch.dtype = torch.float64) -> Tensor:
        """The zero state (B, H, N). float64 keeps the recurrence exact; float32 halves its memory."""
        return zero_state(batch, self.heads, self.d_state, dtype=dtype, device=self.dt.device)

    @property
    def heads(self) -> int:
        """H."""
        return self.dt.shape[0]

    @property
    def channels(self) -> int:
        """K, the number of outputs of each head."""
        return self.C.shape[0]

    def check_ahead(self, ahead: int) -> int:
        """Check the number of anti-causal channels; returns the number of causal ones."""
        if check_int("ahead", ahead, minimum=0) > self.channels:
            raise ValueError(f"ahead must be at most the number of channels, {self.channels}, got {ahead}")
        return self.channels - ahead

    @property
    def dtype(self) -> torch.dtype:
        """The real dtype of the results: that of C."""
        return self.C.real.dtype

    def _scaled_dt(self, dt_scale: float) -> Tensor:
        return self.dt.double() * check_number("dt_scale", dt_scale, above=0.0)

    def _check_input(self, u: Tensor) -> None:
        check_tensor("u", u, ("batch", "length", self.heads), kind="real")

    def _check_state(self, state: Tensor, batch: int) -> Tensor:
        return check_tensor("state", state, (batch, self.heads, self.d_state), kind="real")


def delayed(kernel: Tensor, F: Tensor | None, ahead: int) -> Tensor:
    """Kernels ``C Ā^l B̄`` (K, H, c) as those of a first-order hold: F (K, H) first, then all a sample later.

    The last ``ahead`` channels stay as they are, as all do without F.
    """
    if F is None:
        return kernel
    behind = kernel.shape[0] - ahead
    later = torch.cat([F[:behind, :, None].to(kernel.dtype), kernel[:behind, :, :-1]], -1)
    return torch.cat([later, kernel[behind:]])


def zero_state(batch: int, heads: int, d_state: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros (B, H, N) in float32 or float64."""
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    return torch.zeros(check_int("batch", batch, minimum=0), heads, d_state, dtype=dtype, device=device)


def toeplitz(kernel: Tensor) -> Tensor:
    """Lower triangular Toeplitz matrices (..., c, c) with first column ``kernel`` (..., c)."""
    c = kernel.shape[-1]
    # its transpose is made of whole pieces of the padded kernel, which are quick to copy
    return torch.nn.functional.pad(kernel, (c - 1, 0)).unfold(-1, c, 1).flip(-2).mT


def _largest(steps: int | Tensor, batch: int) -> int:
    """The largest of the step counts, which must be whole numbers ≥ 0."""
    if not isinstance(steps, Tensor):
        return check_int("steps", steps, minimum=0)
    if steps.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"steps must be whole numbers (torch.int64 or torch.int32), got {steps.dtype}")
    if steps.shape != (batch,):
        raise ValueError(f"steps must have shape ({batch},), got {tuple(steps.shape)}")
    if batch and steps.min() < 0:
        raise ValueError(f"steps must be >= 0, got {steps.tolist()}")
    return int(steps.max()) if batch else 0
