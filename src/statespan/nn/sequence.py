"""The interface of modules that run over whole sequences, from a state, and step by step.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from statespan.nn.initial import Initialised
from statespan.nn.padding import Lengths
from statespan.ops.parallel.context import check_alone
from statespan.ops.parallel.packing import check_unpacked

StepFunction: TypeAlias = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""One step of a recurrence, ``(x, state) -> (y, state)``."""


class SequenceModule(Initialised, ABC):
    """A module with three uses that give the same numbers: ``forward``, ``prefill`` and ``step``.

    A module without a recurrence, such as one that looks ahead, has only ``forward``; the others raise an error.

    Example:
        >>> from statespan.nn import S4D
        >>> layer, x = S4D(4), torch.randn(2, 10, 4)
        >>> y, state = layer.prefill(x[:, :9])
        >>> last, _ = layer.step(x[:, 9], state)
        >>> isinstance(layer, SequenceModule), torch.allclose(last, layer(x)[:, 9], atol=1e-5)
        (True, True)
    """

    @abstractmethod
    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply the module to whole sequences.

        Args:
            x: (B, L, D).
            lengths: True length of each sequence (B,), whole numbers 0 … L; padding is ignored; its outputs are 0.
            dt_scale: Step of the data relative to that of training: 2.0 if it was sampled half as often.

        Returns:
            y of shape (B, L, d_output).
        """

    def prefill(
        self, x: Tensor, state: Any = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, Any]:
        """The same map from a state to a state.

        Args:
            x: (B, L, D), L ≥ 0.
            state: As returned by ``prefill``, ``step`` or ``initial_state``; None to start. It is not changed.
            lengths: As in ``forward``; the state returned is the one after each sequence's own length.
            dt_scale: As in ``forward``.

        Returns:
            y of shape (B, L, d_output), and the new state.
        """
        raise self._no_recurrence("prefill")

    def step(self, x: Tensor, state: Any, *, dt_scale: float = 1.0) -> tuple[Tensor, Any]:
        """One step of the recurrence, in constant time and memory. For many steps in a row, use :meth:`stepper`.

        Args:
            x: (B, D).
            state: As in ``prefill``; it is not changed.
            dt_scale: As in ``forward``.

        Returns:
            y of shape (B, d_output), and the new state.
        """
        return self.stepper(dt_scale)(x, state)

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> Callable[..., tuple[Tensor, Any]]:
        """Return ``step`` as a function with the set-up done once, for many steps with the same parameters.

        It has the parameters of now: make another one after they change. Without gradients it is fastest.

        Args:
            dt_scale: As in ``forward``.
            in_place: Write new states over the old ones: half the memory traffic, which on a GPU is half the time.

        Returns:
            A function ``(x, state) -> (y, state)``.
        """
        raise self._no_recurrence("step")

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> Any:
        """The state before the first sample.

        Args:
            batch: Number of sequences.
            dtype: Of the SSMs' states: float64 keeps the recurrence equal to the convolution over any length; None for
                the smallest dtype that each layer stays exact with.
        """
        raise self._no_recurrence("initial_state")

    def _no_recurrence(self, use: str) -> TypeError:
        return TypeError(f"{use} needs a module with a recurrence, got {type(self).__name__}")


class SequenceLayer(SequenceModule):
    """A map from (B, L, D) to (B, L, d_output): the interface that residual blocks, backbones and U-Nets require.

    Subclass it to put a layer of your own into :class:`~statespan.nn.ResidualBlock` or
    :class:`~statespan.nn.Backbone`; :func:`statespan.models.register_layer` makes it one for models and recipes.

    Example:
        >>> from statespan.nn import S4D, Backbone
        >>> class Smooth(SequenceLayer):
        ...     def __init__(self, d_model):
        ...         super().__init__()
        ...         self.d_model = self.d_output = d_model
        ...     def forward(self, x, *, lengths=None, dt_scale=1.0):
        ...         return (x + x.roll(1, 1)) / 2
        >>> Backbone([S4D(4), Smooth(4)])(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """

    d_model: int
    """Features of the input."""
    d_output: int
    """Features of the output."""
    is_position_wise: bool = False
    """Whether each position is mapped alone, so that neither padding nor time makes a difference."""

    needs_lengths: bool = True
    """Whether a block must tell it the lengths; a causal layer, or a convolution, needs only zeros for padding."""

    runs_on_shards: bool = False
    """Whether the layer gives the same outputs for shards of sequences inside :func:`statespan.sequence_parallel`; a
    position-wise layer always does."""

    runs_packed: bool = False
    """Whether it keeps the sequences of a row apart inside :func:`statespan.packed`; a position-wise layer always does.
    """

    def working_dtype(self, x: Tensor) -> torch.dtype | None:
        """The dtype that the layer computes in for x, which a preceding norm may produce; None for its own dtype."""
        return None

    def check_padding(self) -> None:
        """Raise a ValueError if the layer cannot ignore padding."""

    def check_shards(self) -> None:
        """Raise a TypeError if the layer is to run on shards of sequences, or on packed ones, and cannot."""
        if not (self.runs_on_shards or self.is_position_wise):
            check_alone(type(self).__name__)
        if not (self.runs_packed or self.is_position_wise):
            check_unpacked(type(self).__name__)
