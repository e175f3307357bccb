"""The trainable parameters of an SSM, and the structure they define.

Parameters are real tensors (complex values as a trailing axis of 2) and stay at least float32, whatever a model is cast
to: rounding A or Δ to bfloat16 changes the kernel by several percent. FSDP2 casts parameters without asking their
module, which gets a warning; shard this module on its own to keep it in float32.

Shapes: H heads, S independent SSMs (head h uses SSM h mod S), N state size, M = N/2, K kernels per head, R rank.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_choice, check_dtype, check_int
from statespan.nn.initial import assign
from statespan.nn.options import SSMOptions
from statespan.nn.precision import complex_of, wide
from statespan.nn.real_part import REAL_PARTS, RealPart, inverse_real_part, real_part
from statespan.ops import Stepper, system_of
from statespan.ops.parallel import whole_length
from statespan.ops.ssm.arguments import ModeTensors
from statespan.ops.ssm.memo import memo_of
from statespan.ops.ssm.sequences import apply_whole, prefill_whole
from statespan.ops.ssm.source import Modal, SSMSource, low_rank_power
from statespan.ssm import DPLR, Diagonal, Structure, inits
from statespan.ssm.inits import Init

OF_A, OF_B = ("A_real", "A_imag", "A", "P", "Q", "nu", "theta"), ("B", "log_gamma")  # parameters of A and B


class SSMParameters(nn.Module, ABC):
    """The parameters of an SSM: log Δ and C, and those of its state matrix.

    Example:
        >>> from statespan.nn import S4D
        >>> ssm = S4D(4, 8).ssm
        >>> isinstance(ssm, SSMParameters), ssm.structure().kernel(100).shape  # (K, H, L)
        (True, torch.Size([1, 4, 100]))
    """

    parameter_groups: ClassVar[dict[str, str]] = {
        "log_dt": "dt", **dict.fromkeys((*OF_A, *OF_B), "ssm"), "C": "C", "Q": "C",
    }  # fmt: skip
    """The optimizer group of each parameter, read by :func:`statespan.param_groups`."""

    power = "dense"
    """The form of the engine's chunk-to-chunk matrix; see :class:`statespan.ops.ssm.source.SSMSource`."""
    convolve = False
    """Whether the SSM is always applied as a convolution, if the length is known."""
    log_dt: Tensor
    C: Tensor

    def __init__(self, options: SSMOptions) -> None:
        super().__init__()
        self.options = options

    def forward(
        self, u: Tensor, D: Tensor | None = None, *, bidirectional: bool = False, activation: str | None = None,
        dtype: torch.dtype | None = None, dt_scale: float = 1.0,
    ) -> Tensor:  # fmt: skip
        """Apply the SSM to whole sequences u (B, L, H); see :func:`statespan.ops.apply`."""
        self._check_precision()
        source = self.source(dt_scale, whole_length(u))
        y = apply_whole(source, u, D, bidirectional=bidirectional, activation=activation, dtype=dtype)
        return y.clone() if self._forward_hooks else y  # a change in place of a view would drop FSDP2's hook

    def prefill(
        self, u: Tensor, state: Tensor | None, D: Tensor | None = None, *, lengths: Tensor | None = None,
        activation: str | None = None, dtype: torch.dtype | None = None, dt_scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """As ``forward``, from a state to the state after each sequence; see :func:`statespan.ops.apply_from`."""
        self._check_precision()
        source = self.source(dt_scale)
        return prefill_whole(source, u, state, D, lengths=lengths, activation=activation, dtype=dtype)

    def stepper(
        self, D: Tensor | None, activation: str | None, dt_scale: float
    ) -> Callable[..., tuple[Tensor, Tensor]]:
        """A step in float64 with the set-up done once; see :class:`statespan.ops.Stepper`."""
        return Stepper(system_of(self.structure(dt_scale)), D, activation)

    @property
    def state_shape(self) -> tuple[int, int]:
        """The shape of a state without the batch: (H, N)."""
        return self.options.d_model, self.options.d_state

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Re-initialise as the constructor does; the same seed gives the same values."""
        for name, value in self._initial().items():
            assign(getattr(self, name), value)

    @property
    def precision(self) -> torch.dtype:
        """The dtype of the SSM: that of its parameters, at least float32."""
        return torch.promote_types(self.C.dtype, torch.float32)

    @abstractmethod
    def _initial(self) -> dict[str, Tensor]:
        """Initial values of all parameters by name, in float64."""

    def _make(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Register the initial values as parameters, or as buffers if they are not trained."""
        trained = dict.fromkeys(OF_A, self.options.train_A) | dict.fromkeys(OF_B, self.options.train_B)
        dtype = torch.promote_types(check_dtype("dtype", dtype), torch.float32)
        for name, value in self._initial().items():
            value = value.to(device, dtype, copy=True)
            if trained.get(name, True):
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)

    def _initial_log_dt(self, count: int | None = None) -> Tensor:
        smallest, largest = math.log(self.options.dt_min), math.log(self.options.dt_max)
        return smallest + (largest - smallest) * torch.rand(count or self.options.d_model, dtype=torch.float64)

    def _check_precision(self) -> None:
        if self.C.dtype.itemsize < 4 and not torch.compiler.is_compiling():
            warnings.warn(
                f"SSM parameters were rounded to {self.C.dtype}, which changes the kernel by several per cent; "
                "with FSDP2, call fully_shard(layer.ssm) before sharding the layer to keep them in float32",
                stacklevel=3,
            )

    def _heads(self, value: Tensor, dim: int = 0) -> Tensor:
        """Expand one value per SSM to one per head."""
        copies = [1] * value.ndim
        copies[dim] = self.options.d_model // self.options.ssms
        return value.double().repeat(copies)

    def _dt(self) -> Tensor:
        return self.log_dt.double().exp()

    @abstractmethod
    def structure(self, dt_scale: float = 1.0, length: int | None = None) -> Structure:
        """The SSM that these parameters define, at this sampling rate.

        Args:
            dt_scale: Factor on the step sizes.
            length: Length of the input, for a kernel that depends on it.
        """

    def source(self, dt_scale: float = 1.0, length: int | None = None) -> SSMSource:
        """The SSM for :func:`statespan.ops.apply`, which builds only what its path needs."""
        N, structure, modal = self.state_shape[1], self.structure, self.modal
        make = (lambda: structure(dt_scale, length)), (lambda: modal(float(dt_scale)))
        return SSMSource(*make, N, self.power, self.precision, self.convolve, memo_of(self))

    def modal(self, dt_scale: float) -> Modal | None:
        """The parameters from which a GPU builds the operators, or None if they are built in torch."""
        return None

    def check_padding(self) -> None:
        """Raise a ValueError if padding would change the kernel, as for a softmax over the length of the input."""

    def extra_repr(self) -> str:
        """The options."""
        options = self.options
        return f"n_ssm={options.ssms}, kernels={options.kernels}, discretization={options.discretization}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move and cast with the model, but never below float32."""

        def keep_precision(t: Tensor) -> Tensor:
            moved = fn(t)
            rounded = moved.is_floating_point() and moved.dtype.itemsize < 4
            return t.to(device=moved.device, dtype=torch.float32) if rounded else moved

        return super()._apply(keep_precision, recurse)


class ModalParameters(SSMParameters):
    """Complex modes: Re A through a constraint (see :mod:`statespan.nn.real_part`), Im A, B and C.

    Example:
        >>> from statespan.nn import S4
        >>> ssm = S4(4, 8).ssm
        >>> isinstance(ssm, ModalParameters), ssm.A_imag.shape  # N/2 modes
        (True, torch.Size([4, 4]))
    """

    A_real: Tensor
    A_imag: Tensor
    B: Tensor

    def __init__(self, options: SSMOptions, real_part: RealPart) -> None:
        super().__init__(options)
        self.real_part = check_choice("real_part", real_part, REAL_PARTS)

    def _initial_modes(self, A: Tensor, B: Tensor) -> dict[str, Tensor]:
        """From the modes A and B (S, M), complex."""
        if self.real_part != "none" and not A.is_meta and bool((A.real > 0).any()):
            raise ValueError(
                f"init must have Re A <= 0 for real_part={self.real_part!r}, got {float(A.real.max()):.6g}; "
                "real_part='none' leaves it free"
            )
        log_dt, options = self._initial_log_dt(), self.options
        C = torch.randn(options.kernels, options.d_model, options.d_state // 2, dtype=torch.complex128)
        return {
            "log_dt": log_dt,
            "A_real": inverse_real_part(self.real_part, A.real),
            "A_imag": A.imag,
            "B": torch.view_as_real(B),
            "C": torch.view_as_real(C),
        }

    def extra_repr(self) -> str:
        """The options."""
        return f"{super().extra_repr()}, real_part={self.real_part}"

    def _modal(self, dt_scale: float, P: Tensor | None) -> Modal:
        dt, decay, freq, B, C = (wide(x) for x in (self.log_dt, self.A_real, self.A_imag, self.B, self.C))
        parameters = ModeTensors(dt, decay, freq, B, C, None, None if P is None else wide(P))
        return Modal(parameters, dt_scale, self.options.discretization, self.real_part, True)

    def _modes(self) -> tuple[Tensor, Tensor, Tensor]:
        """A and B (H, M) in double precision, C (K, H, M) in its own."""
        A = torch.complex(self._heads(real_part(self.real_part, self.A_real)), self._heads(self.A_imag))
        return A, complex_of(self._heads(self.B)), complex_of(self.C)


class DiagonalParameters(ModalParameters):
    """A diagonal SSM.

    Args:
        options: Sizes, step sizes and what is trained.
        init: As in :class:`statespan.S4D`.
        init_options: Keyword arguments of :func:`statespan.ssm.inits.diagonal`.
        real_part: "exp", "softplus", "relu" or "none".
        softmax: Whether to use the softmax-normalized kernel.
        softmax_length: Length of the softmax; None for that of the input.
        device: Device of the parameters.
        dtype: Their dtype, at least float32.

    Example:
        >>> ssm = DiagonalParameters(SSMOptions(4, 8), init="lin")
        >>> ssm(torch.randn(2, 100, 4)).shape  # (B, L, K, H)
        torch.Size([2, 100, 1, 4])
    """

    power = "diagonal"

    def __init__(
        self,
        options: SSMOptions,
        *,
        init: Init = "legs",
        init_options: dict[str, Any] | None = None,
        real_part: RealPart = "exp",
        softmax: bool = False,
        softmax_length: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        keywords = {} if init_options is None else init_options
        if not (isinstance(keywords, dict) and all(isinstance(key, str) for key in keywords)):
            raise TypeError(f"init_options must be a dict of keyword arguments or None, got {init_options!r}")
        super().__init__(options, real_part)
        self.init, self.init_options, self.unit_B = init, dict(keywords), False
        if softmax and options.discretization != "zoh":
            raise ValueError(f"kernel='softmax' needs discretization='zoh', got {options.discretization!r}")
        if softmax_length is not None and not softmax:
            raise ValueError(f"softmax_length needs kernel='softmax', got softmax_length={softmax_length!r} without it")
        self.softmax = softmax
        self.convolve = softmax  # its kernel stays bounded for growing modes, unlike a recurrence
        self.softmax_length = None if softmax_length is None else check_int("softmax_length", softmax_length, minimum=1)
        self._make(device, dtype)

    @torch.no_grad()
    def start_with_unit_B(self) -> None:
        """Set B = 1, now and whenever the parameters are initialised."""
        self.unit_B = True
        self.B.copy_(torch.tensor([1.0, 0.0]))

    def _initial(self) -> dict[str, Tensor]:
        ssms = self.options.ssms
        A, B = inits.mix_diagonal(self.init, ssms, self.options.d_state, **self.init_options)
        initial = self._initial_modes(A, torch.ones_like(B) if self.unit_B else B)
        initial["log_dt"][inits.has_unit_step(self.init, ssms).repeat(self.options.d_model // ssms)] = 0.0
        return initial

    def structure(self, dt_scale: float = 1.0, length: int | None = None) -> Diagonal:
        """The diagonal SSM; ``length`` is the softmax length if it was not fixed at construction."""
        ssm = Diagonal(*self._modes(), self._dt(), discretization=self.options.discretization)
        if not self.softmax:
            return ssm.with_dt_scale(dt_scale)
        if self.softmax_length is not None:
            return ssm.softmax(self.softmax_length).with_dt_scale(dt_scale)
        if length is None:
            raise ValueError(
                "softmax_length=None normalizes by the length of each input, which a recurrence does not know; "
                "give softmax_length an integer >= 1 to use prefill and step"
            )
        return ssm.with_dt_scale(dt_scale).softmax(length)

    def modal(self, dt_scale: float) -> Modal | None:
        """None for the softmax, which is normalized in torch."""
        return None if self.softmax else self._modal(dt_scale, None)

    def extra_repr(self) -> str:
        """The options."""
        kernel = f"softmax over {self.softmax_length or 'each input'}" if self.softmax else "vandermonde"
        return f"{super().extra_repr()}, kernel={kernel}"

    def check_padding(self) -> None:
        """Reject padding for a softmax over the length of the input."""
        if self.softmax and self.softmax_length is None:
            raise ValueError(
                "lengths needs a fixed softmax_length, got softmax_length=None: padding would change the normalization"
            )


class DPLRParameters(ModalParameters):
    """A diagonal plus low-rank SSM: complex modes and P, and Q if it is not P.

    Args:
        options: Sizes, step sizes and what is trained.
        init: As in :class:`statespan.S4`.
        real_part: "exp", "softplus", "relu" or "none".
        algorithm: "krylov" or "cauchy", which give the same kernel.
        separate_Q: Whether Q is a parameter of its own, which starts as P.
        device: Device of the parameters.
        dtype: Their dtype, at least float32.

    Example:
        >>> ssm = DPLRParameters(SSMOptions(4, 8))
        >>> ssm.structure().kernel(100).shape  # (K, H, L)
        torch.Size([1, 4, 100])
    """

    P: Tensor
    Q: Tensor

    def __init__(
        self,
        options: SSMOptions,
        *,
        init: Init = "legs",
        real_part: RealPart = "exp",
        algorithm: str = "krylov",
        separate_Q: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if algorithm == "cauchy" and options.discretization != "bilinear":
            raise ValueError(f"kernel='cauchy' needs discretization='bilinear', got {options.discretization!r}")
        super().__init__(options, real_part)
        self.init, self.algorithm, self.separate_Q = init, algorithm, check_bool("separate_Q", separate_Q)
        self.convolve = algorithm == "cauchy"
        self._make(device, dtype)
        if options.discretization == "bilinear" and not separate_Q:
            self.power = low_rank_power(self.P.shape[0])  # other rules make the matrix dense

    def _initial(self) -> dict[str, Tensor]:
        Lambda, P, B = inits.mix_dplr(self.init, self.options.ssms, self.options.d_state)
        initial = {**self._initial_modes(Lambda, B), "P": torch.view_as_real(P)}
        return {**initial, "Q": initial["P"].clone()} if self.separate_Q else initial

    def extra_repr(self) -> str:
        """The options."""
        return f"{super().extra_repr()}, kernel={self.algorithm}{', separate_Q=True' if self.separate_Q else ''}"

    def structure(self, dt_scale: float = 1.0, length: int | None = None) -> DPLR:
        """The DPLR SSM."""
        A, B, C = self._modes()
        P = complex_of(self._heads(self.P, dim=1))
        Q = complex_of(self._heads(self.Q, dim=1)) if self.separate_Q else None
        rule = {"discretization": self.options.discretization, "algorithm": self.algorithm}
        return DPLR(A, P, B, C, dt=self._dt(), Q=Q, **rule).with_dt_scale(dt_scale)

    def modal(self, dt_scale: float) -> Modal | None:
        """None unless the rule is the bilinear one and Q is P: the kernels know no other form."""
        is_known = self.options.discretization == "bilinear" and not self.separate_Q
        return self._modal(dt_scale, self.P) if is_known else None
