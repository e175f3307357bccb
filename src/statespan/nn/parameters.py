"""The trainable parameters of an SSM, and the structure they stand for.

Parameters are real tensors (complex values as a trailing axis of 2) and never drop below float32, whatever a model is
cast to: rounding A or Δ to bfloat16 changes the kernel by several percent.

Shapes: H heads, S independent SSMs (head h uses SSM h mod S), N state size, M = N/2, K kernels per head, R rank.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_choice, check_dtype, check_int, check_number
from statespan.nn.real_part import REAL_PARTS, inverse_real_part, real_part
from statespan.ops.source import Modal, Source
from statespan.ssm import DPLR, Dense, Diagonal, Structure, inits
from statespan.ssm.discretize import RULES


@dataclass(frozen=True)
class SSMOptions:
    """What all SSM parameters share.

    Args:
        d_model: Heads H.
        d_state: State size N.
        kernels: Kernels K of each head: channels, times 2 if bidirectional.
        n_ssm: Independent SSMs S, which must divide d_model; None for one per head.
        dt_min: Smallest initial step size.
        dt_max: Largest initial step size.
        discretization: "bilinear" or "zoh".
        train_A: Whether A (and P) are trained.
        train_B: Whether B is trained.
    """

    d_model: int
    d_state: int
    kernels: int
    n_ssm: int | None
    dt_min: float
    dt_max: float
    discretization: str
    train_A: bool
    train_B: bool

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        check_int("d_model", self.d_model, minimum=1)
        check_int("d_state", self.d_state, minimum=2, even=True)
        if self.n_ssm is not None and self.d_model % check_int("n_ssm", self.n_ssm, minimum=1):
            raise ValueError(f"n_ssm must divide d_model={self.d_model}, got {self.n_ssm}")
        check_number("dt_min", self.dt_min, above=0.0)
        check_number("dt_max", self.dt_max, above=0.0)
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min must be at most dt_max={self.dt_max}, got {self.dt_min}")
        check_choice("discretization", self.discretization, RULES)
        check_bool("train_A", self.train_A)
        check_bool("train_B", self.train_B)

    @property
    def ssms(self) -> int:
        """S."""
        return self.d_model if self.n_ssm is None else self.n_ssm


class SSMParameters(nn.Module, ABC):
    """log Δ and C, which every SSM has, and what is common to handling them."""

    parameter_groups: ClassVar[dict[str, str]] = {
        "log_dt": "dt",
        "A_real": "ssm",
        "A_imag": "ssm",
        "A": "ssm",
        "P": "ssm",
        "B": "ssm",
        "C": "C",
    }
    """The optimizer group of each parameter, read by :func:`statespan.param_groups`."""

    log_dt: Tensor
    C: Tensor

    def __init__(self, options: SSMOptions, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.options = options
        self._device = device
        self._dtype = torch.promote_types(check_dtype("dtype", dtype), torch.float32)
        low, high = math.log(options.dt_min), math.log(options.dt_max)
        self._add("log_dt", low + (high - low) * torch.rand(options.d_model, dtype=torch.float64))

    def _add(self, name: str, value: Tensor, trained: bool = True) -> None:
        """Hold ``value`` as a parameter, or as a buffer if it is not trained; complex values get an axis of 2."""
        value = torch.view_as_real(value) if value.is_complex() else value
        value = value.to(self._device, self._dtype, copy=True)
        if trained:
            self.register_parameter(name, nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    def _heads(self, value: Tensor, dim: int = 0) -> Tensor:
        """From one value per SSM to one per head."""
        copies = [1] * value.ndim
        copies[dim] = self.options.d_model // self.options.ssms
        return value.double().repeat(copies)

    def _dt(self) -> Tensor:
        return self.log_dt.double().exp()

    @abstractmethod
    def structure(self, rate: float = 1.0, length: int | None = None) -> Structure:
        """The SSM these parameters stand for, at this sampling rate.

        Args:
            rate: Factor on the step sizes.
            length: Length of the input, for a kernel that depends on it.
        """

    def source(self, rate: float = 1.0, length: int | None = None) -> Source:
        """The same for :func:`statespan.ops.apply`, which makes of it only what its path needs."""
        return Source(
            lambda: self.structure(rate, length), lambda: self.modal(float(rate)), self.options.d_state, self.power,
            self.C.dtype, self.convolve,
        )  # fmt: skip

    convolve = False
    """Whether only the convolution is what was asked for."""

    @property
    def power(self) -> str:
        """What the chunk-to-chunk matrix of the engine is; see :class:`statespan.ops.source.Source`."""
        return "dense"

    def modal(self, rate: float) -> Modal | None:
        """The parameters as a GPU builds the operators from, or None where it does not."""
        return None

    def check_padding(self) -> None:
        """Raise a ValueError if padding would change the kernel; it does for a softmax over the input's length only."""

    def extra_repr(self) -> str:
        """The options."""
        return (
            f"n_ssm={self.options.ssms}, kernels={self.options.kernels}, discretization={self.options.discretization}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Follow every move and cast of the model, but never below float32."""

        def keep_precision(t: Tensor) -> Tensor:
            moved = fn(t)
            if moved.is_floating_point() and moved.dtype.itemsize < 4:
                return t.to(device=moved.device, dtype=torch.float32)
            return moved

        return super()._apply(keep_precision, recurse)


def _complex(pairs: Tensor) -> Tensor:
    """Complex numbers from a trailing axis of 2, whatever its stride."""
    return torch.complex(pairs[..., 0], pairs[..., 1])


class ModalParameters(SSMParameters):
    """Complex modes: Re A through a constraint, Im A, B and C.

    Args:
        options: What all SSM parameters share.
        A: (S, M) complex, the initial modes.
        B: (S, M) complex.
        real_part: "exp", "softplus", "relu" or "none".
        device: Where the parameters live.
        dtype: Their dtype, at least float32.
    """

    A_real: Tensor
    A_imag: Tensor
    B: Tensor

    def __init__(
        self,
        options: SSMOptions,
        A: Tensor,
        B: Tensor,
        real_part: str,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(options, device, dtype)
        self.real_part = check_choice("real_part", real_part, REAL_PARTS)
        self._add("A_real", inverse_real_part(real_part, A.real), options.train_A)
        self._add("A_imag", A.imag, options.train_A)
        self._add("B", B, options.train_B)
        self._add("C", torch.randn(options.kernels, options.d_model, options.d_state // 2, dtype=torch.complex128))

    def extra_repr(self) -> str:
        """The options."""
        return f"{super().extra_repr()}, real_part={self.real_part}"

    def _modal(self, rate: float, P: Tensor | None) -> Modal:
        options = self.options
        return Modal(
            self.log_dt, self.A_real, self.A_imag, self.B, self.C, P, rate, options.discretization, self.real_part, True
        )

    def _modes(self) -> tuple[Tensor, Tensor, Tensor]:
        """A and B (H, M) in double precision, C (K, H, M) in its own."""
        A = torch.complex(self._heads(real_part(self.real_part, self.A_real)), self._heads(self.A_imag))
        return A, _complex(self._heads(self.B)), _complex(self.C)


class DiagonalParameters(ModalParameters):
    """A diagonal SSM.

    Args:
        options: What all SSM parameters share.
        init: Name of a diagonal initialization, or several joined by "/".
        init_options: Keyword arguments of :func:`statespan.ssm.inits.diagonal`.
        real_part: "exp", "softplus", "relu" or "none".
        softmax: Whether to use the softmax-normalized kernel.
        softmax_length: Length of the softmax; None for that of the input.
        device: Where the parameters live.
        dtype: Their dtype, at least float32.
    """

    def __init__(
        self,
        options: SSMOptions,
        init: str,
        init_options: dict[str, Any] | None,
        real_part: str,
        softmax: bool,
        softmax_length: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        keywords = {} if init_options is None else init_options
        if not (isinstance(keywords, dict) and all(isinstance(key, str) for key in keywords)):
            raise TypeError(f"init_options must be a dict of keyword arguments or None, got {init_options!r}")
        A, B = inits.mix_diagonal(init, options.ssms, options.d_state, **keywords)
        super().__init__(options, A, B, real_part, device, dtype)
        if softmax and options.discretization != "zoh":
            raise ValueError(f"kernel='softmax' needs discretization='zoh', got {options.discretization!r}")
        if softmax_length is not None and not softmax:
            raise ValueError(f"softmax_length needs kernel='softmax', got softmax_length={softmax_length!r} without it")
        self.softmax = softmax
        self.convolve = softmax  # whose kernel stays bounded for modes that grow, as no recurrence does
        self.softmax_length = None if softmax_length is None else check_int("softmax_length", softmax_length, minimum=1)

    def structure(self, rate: float = 1.0, length: int | None = None) -> Diagonal:
        """The diagonal SSM; ``length`` is that of the softmax if it was not fixed at construction."""
        ssm = Diagonal(*self._modes(), self._dt(), self.options.discretization)
        if not self.softmax:
            return ssm.at_rate(rate)
        if self.softmax_length is not None:
            return ssm.softmax(self.softmax_length).at_rate(rate)
        if length is None:
            raise ValueError(
                "softmax_length=None normalizes by the length of each input, which a recurrence does not know; "
                "give softmax_length an integer >= 1 to use prefill and step"
            )
        return ssm.at_rate(rate).softmax(length)

    @property
    def power(self) -> str:
        """All of an SSM's powers are diagonal."""
        return "diagonal"

    def modal(self, rate: float) -> Modal | None:
        """Everything but the softmax, which is normalized in torch."""
        return None if self.softmax else self._modal(rate, None)

    def extra_repr(self) -> str:
        """The options."""
        kernel = f"softmax over {self.softmax_length or 'each input'}" if self.softmax else "vandermonde"
        return f"{super().extra_repr()}, kernel={kernel}"

    def check_padding(self) -> None:
        """Refuse padding for a softmax over the length of the input."""
        if self.softmax and self.softmax_length is None:
            raise ValueError(
                "lengths needs a fixed softmax_length, got softmax_length=None: padding would change the normalization"
            )


class DPLRParameters(ModalParameters):
    """A diagonal plus low-rank SSM: complex modes and P.

    Args:
        options: What all SSM parameters share.
        init: Name of a HiPPO measure, or several joined by "/".
        real_part: "exp", "softplus", "relu" or "none".
        algorithm: "krylov" or "cauchy", which give the same kernel.
        device: Where the parameters live.
        dtype: Their dtype, at least float32.
    """

    P: Tensor

    def __init__(
        self,
        options: SSMOptions,
        init: str,
        real_part: str,
        algorithm: str,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        if algorithm == "cauchy" and options.discretization != "bilinear":
            raise ValueError(f"kernel='cauchy' needs discretization='bilinear', got {options.discretization!r}")
        Lambda, P, B = inits.mix_dplr(init, options.ssms, options.d_state)
        super().__init__(options, Lambda, B, real_part, device, dtype)
        self.algorithm = algorithm
        self.convolve = algorithm == "cauchy"
        self._add("P", P, options.train_A)

    def extra_repr(self) -> str:
        """The options."""
        return f"{super().extra_repr()}, kernel={self.algorithm}"

    def structure(self, rate: float = 1.0, length: int | None = None) -> DPLR:
        """The DPLR SSM."""
        A, B, C = self._modes()
        P = _complex(self._heads(self.P, dim=1))
        ssm = DPLR(A, P, B, C, self._dt(), self.options.discretization, algorithm=self.algorithm)
        return ssm.at_rate(rate)

    @property
    def power(self) -> str:
        """The bilinear rule keeps one low-rank term; other DPLR systems are built in torch."""
        return "rank one" if self.options.discretization == "bilinear" and self.P.shape[0] == 1 else "dense"

    def modal(self, rate: float) -> Modal | None:
        """Where there is one low-rank term."""
        return self._modal(rate, self.P[0]) if self.power == "rank one" else None


class DenseParameters(SSMParameters):
    """A dense real SSM: A, B and C.

    Args:
        options: What all SSM parameters share.
        init: Name of a HiPPO measure, or several joined by "/".
        device: Where the parameters live.
        dtype: Their dtype, at least float32.
    """

    A: Tensor
    B: Tensor

    def __init__(
        self, options: SSMOptions, init: str, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        super().__init__(options, device, dtype)
        A, B = inits.mix_dense(init, options.ssms, options.d_state)
        self._add("A", A, options.train_A)
        self._add("B", B, options.train_B)
        self._add("C", torch.randn(options.kernels, options.d_model, options.d_state, dtype=torch.float64))

    def structure(self, rate: float = 1.0, length: int | None = None) -> Dense:
        """The dense SSM."""
        A, B = self._heads(self.A), self._heads(self.B)
        return Dense(A, B, self.C, self._dt(), self.options.discretization).at_rate(rate)
