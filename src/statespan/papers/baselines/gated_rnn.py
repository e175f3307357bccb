"""LSTM and GRU, torch's own, with the interface of an SSM layer.

Shapes: B batch, L length, D = d_model features, H hidden features of a direction: D, or D/2 where there are two.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from statespan._check import check_bool, check_dtype, check_int, check_same_dtype, check_tensor
from statespan.nn.dropout import make_dropout
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.precision import example_of, full_precision
from statespan.nn.sequence import SequenceLayer, StepFunction


class GatedRNN(SequenceLayer):
    """The base of :class:`LSTMLayer` and :class:`GRULayer`, which differ in the torch module and the state.

    Example:
        >>> layer = LSTMLayer(8)
        >>> y, state = layer.prefill(torch.zeros(2, 50, 8))
        >>> isinstance(layer, GatedRNN), y.shape, layer.n_states
        (True, torch.Size([2, 50, 8]), 2)
    """

    make: ClassVar[Any]
    """The torch module."""
    needs_lengths = True

    def __init__(
        self,
        d_model: int,
        *,
        bidirectional: bool = False,
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = self.d_output = check_int("d_model", d_model, minimum=1)
        self.bidirectional = check_bool("bidirectional", bidirectional)
        if self.bidirectional and d_model % 2:
            raise ValueError(f"d_model must be even with bidirectional=True, got {d_model}")
        check_dtype("dtype", dtype)
        self.d_hidden = d_model // 2 if bidirectional else d_model
        self.dropout = make_dropout(dropout, tie_dropout)
        options: Any = {"batch_first": True, "device": device, "dtype": dtype}
        self.rnn = self.make(d_model, self.d_hidden, **options)
        self.backward_rnn = self.make(d_model, self.d_hidden, **options) if bidirectional else None

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply the layer to whole sequences x (B, L, D); dt_scale has no effect. See :class:`SequenceLayer`."""
        padding = self._check(x, lengths)
        if x.numel() == 0:
            return x
        u = self.dropout(fill(x, padding))
        y = self._run(self.rnn, u)[0]  # padding comes last, so no real sample depends on it
        if self.backward_rnn is not None:
            y = torch.cat([y, _reverse(self._run(self.backward_rnn, _reverse(u, padding))[0], padding)], -1)
        return fill(y.to(x.dtype), padding)

    def prefill(
        self, x: Tensor, state: Any = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, Any]:
        """The same map from a state to a state; see :class:`SequenceLayer`."""
        padding = self._check(x, lengths)
        self._check_causal("prefill")
        before = self.initial_state(x.shape[0]) if state is None else self._check_state(state, x.shape[0])
        if x.numel() == 0:
            return x, before
        y, after = self._run(self.rnn, self.dropout(fill(x, padding)), before, padding)
        return fill(y.to(x.dtype), padding), after

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """A function from x (B, D) and a state to y and the new state; there is no set-up."""
        self._check_causal("step")

        def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
            check_tensor("x", x, ("batch", self.d_model), kind="float")
            check_same_dtype(x, example_of(self).dtype, "layer")
            y, after = self._run(self.rnn, self.dropout(x[:, None]), self._check_state(state, x.shape[0]))
            return y[:, 0].to(x.dtype), after

        return step

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> Any:
        """Zeros, in the dtype of the layer, whatever ``dtype`` is."""
        self._check_causal("initial_state")
        like = example_of(self)
        zeros = torch.zeros(check_int("batch", batch, minimum=0), self.d_hidden, dtype=like.dtype, device=like.device)
        return self._pack([zeros] * self.n_states)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"d_model={self.d_model}, bidirectional={self.bidirectional}"

    n_states: ClassVar[int]
    """Tensors (B, H) of a state."""

    @abstractmethod
    def _pack(self, states: list[Tensor]) -> Any:
        """The state made of these tensors."""

    @abstractmethod
    def _unpack(self, state: Any) -> list[Tensor]:
        """The tensors of a state."""

    def _run(self, rnn: nn.RNNBase, u: Tensor, state: Any = None, padding: Padding | None = None) -> tuple[Tensor, Any]:
        """Outputs (B, L, H), and the state after each sequence's own length if there was one before."""
        with full_precision(u):
            u = u.to(example_of(rnn).dtype)
            if state is None:
                return rnn(u)[0], None
            before = self._unpack(state)
            packed = u if padding is None else pack_padded_sequence(
                u, padding.lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
            )  # fmt: skip
            hidden = tuple(one[None] for one in before)
            y, after = rnn(packed, hidden if self.n_states > 1 else hidden[0])
            new = [one[0] for one in (after if self.n_states > 1 else [after])]
            if padding is not None:
                y = pad_packed_sequence(y, batch_first=True, total_length=u.shape[1])[0]
                is_empty = (padding.lengths == 0)[:, None]
                new = [torch.where(is_empty, old, one) for old, one in zip(before, new)]
            return y, self._pack(new)

    def _check(self, x: Tensor, lengths: Lengths) -> Padding | None:
        check_tensor("x", x, ("batch", "length", self.d_model), kind="float")
        check_same_dtype(x, example_of(self).dtype, "layer")
        return Padding.of(x, lengths)

    def _check_causal(self, use: str) -> None:
        if self.bidirectional:
            raise ValueError(f"{use} needs a causal layer, got bidirectional=True: it looks ahead and has no state")

    def _check_state(self, state: Any, batch: int) -> Any:
        for one in self._unpack(state):
            check_tensor("state", one, (batch, self.d_hidden), kind="float")
        return state


def _reverse(x: Tensor, padding: Padding | None) -> Tensor:
    """Each sequence of x (B, L, ·) backwards, from its own end; padding stays at the end, with any content."""
    if padding is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    source = torch.where(padding.mask[..., 0], padding.lengths[:, None] - 1 - t, t)
    return x.gather(1, source[..., None].expand(x.shape))


class LSTMLayer(GatedRNN):
    """An LSTM (Hochreiter and Schmidhuber 1997) with d_model hidden features; cuDNN's on a GPU.

    Its state is the pair of the hidden and the cell features, each (B, D).

    Args:
        d_model: Number of features D, of the input and of the output.
        bidirectional: Read backwards as well, each direction with D/2 hidden features. Then there is no recurrence, so
            ``prefill`` and ``step`` raise an error.
        dropout: Probability of dropping a feature of the input.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> layer = LSTMLayer(16)
        >>> y, (hidden, cell) = layer.prefill(torch.randn(2, 100, 16))
        >>> y, state = layer.step(torch.randn(2, 16), (hidden, cell))
        >>> y.shape, cell.shape
        (torch.Size([2, 16]), torch.Size([2, 16]))
    """

    make = nn.LSTM
    n_states = 2

    def _pack(self, states: list[Tensor]) -> tuple[Tensor, Tensor]:
        return states[0], states[1]

    def _unpack(self, state: Any) -> list[Tensor]:
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            raise TypeError(f"state must be a pair of tensors, hidden and cell features, got {type(state).__name__}")
        return list(state)


class GRULayer(GatedRNN):
    """A GRU (Cho et al. 2014) with d_model hidden features; cuDNN's on a GPU. Its state is its last output (B, D).

    The arguments are those of :class:`LSTMLayer`.

    Example:
        >>> layer = GRULayer(16, bidirectional=True)
        >>> layer(torch.randn(2, 100, 16), lengths=[100, 70]).shape
        torch.Size([2, 100, 16])
    """

    make = nn.GRU
    n_states = 1

    def _pack(self, states: list[Tensor]) -> Tensor:
        return states[0]

    def _unpack(self, state: Any) -> list[Tensor]:
        if not isinstance(state, Tensor):
            raise TypeError(f"state must be a torch.Tensor, got {type(state).__name__}")
        return [state]
