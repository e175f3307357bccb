"""Multi-head attention with the interface of an SSM layer, and the Transformer's softmax attention.

Shapes: B batch, L length, D = d_model features, H heads, E = d_head features of a head, M slots of a cache.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from statespan._check import (
    check_bool,
    check_dtype,
    check_int,
    check_number,
    check_same_dtype,
    check_tensor,
)
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.precision import example_of
from statespan.nn.sequence import SequenceLayer

QUERIES = 512  # with a cache, the mask covers this many queries at a time

State = TypeVar("State")


class MultiHead(SequenceLayer, Generic[State]):
    """The base of all kinds of attention: projections, heads, padding, checks, forward, prefill and step.

    It has ``4·D·H·E + 3·H·E + D`` parameters: queries, keys and values in one linear map, the output in another.

    Args:
        d_model: Number of features D.
        n_heads: Number of heads H.
        d_head: Features E of each head; None for d_model / n_heads.
        bidirectional: Let a position attend to the future as well. Then there is no recurrence, so ``prefill`` and
            ``step`` raise an error.
        dropout: Probability of dropping an attention weight, or where there are none, a feature of the heads' outputs.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> layer = Attention(16, n_heads=4)
        >>> isinstance(layer, MultiHead), layer(torch.zeros(2, 10, 16)).shape
        (True, torch.Size([2, 10, 16]))
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 8,
        *,
        d_head: int | None = None,
        bidirectional: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = self.d_output = check_int("d_model", d_model, minimum=1)
        self.n_heads = check_int("n_heads", n_heads, minimum=1)
        if d_head is None and d_model % n_heads:
            raise ValueError(f"n_heads must divide d_model={d_model} where d_head is None, got {n_heads}")
        self.d_head = d_model // n_heads if d_head is None else check_int("d_head", d_head, minimum=1)
        self.bidirectional = check_bool("bidirectional", bidirectional)
        self.dropout = check_number("dropout", dropout, above=0.0, below=1.0, closed=True)
        check_dtype("dtype", dtype)
        features = self.n_heads * self.d_head
        self.qkv = nn.Linear(self.d_model, 3 * features, device=device, dtype=dtype)
        self.out = nn.Linear(features, self.d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply the layer to whole sequences x (B, L, D); dt_scale has no effect. See :class:`SequenceLayer`."""
        padding = self._check(x, lengths)
        q, k, v = self._heads(x, padding)
        return self._output(self._whole(q, k, v, _mask(padding)) if x.shape[1] else v, padding)

    def prefill(
        self, x: Tensor, state: State | None = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, State]:
        """The same map from a state to a state; see :class:`SequenceLayer`."""
        padding = self._check(x, lengths)
        self._check_causal("prefill")
        if state is not None:
            self._check_state(state, x.shape[0])
        q, k, v = self._heads(x, padding)
        y, after = self._extend(q, k, v, state, mask=_mask(padding))
        return self._output(y, padding), after

    def step(self, x: Tensor, state: State, *, dt_scale: float = 1.0) -> tuple[Tensor, State]:
        """One step of the recurrence for x (B, D) and a state, which is not modified."""
        check_tensor("x", x, ("batch", self.d_model), kind="float")
        self._check_causal("step")
        check_same_dtype(x, example_of(self).dtype, "layer")
        self._check_state(state, x.shape[0])
        q, k, v = self._heads(x[:, None], None)
        y, after = self._extend(q, k, v, state, mask=None)
        return self._output(y, None)[:, 0], after

    def stepper(
        self, dt_scale: float = 1.0, *, in_place: bool = False
    ) -> Callable[[Tensor, State], tuple[Tensor, State]]:
        """``step`` as a function; there is no set-up, and states are never overwritten."""
        self._check_causal("step")
        return self.step

    @abstractmethod
    def _whole(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Outputs (B, H, L, E) of whole sequences, L ≥ 1; ``mask`` (B, L) is False at padding."""

    @abstractmethod
    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, *, mask: Tensor | None
    ) -> tuple[Tensor, State]:
        """Outputs (B, H, L, E) and the state after them."""

    @abstractmethod
    def _check_state(self, state: Any, batch: int) -> None: ...

    def extra_repr(self) -> str:
        """The sizes."""
        sizes = f"d_model={self.d_model}, n_heads={self.n_heads}, d_head={self.d_head}"
        return f"{sizes}, bidirectional={self.bidirectional}"

    def _heads(self, x: Tensor, padding: Padding | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, H, L, E); padding is zeroed, so that its content has no effect."""
        qkv = self.qkv(fill(x, padding)).unflatten(-1, (3, self.n_heads, self.d_head))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        return q, k, v

    def _output(self, y: Tensor, padding: Padding | None) -> Tensor:
        """From heads (B, H, L, E) to features (B, L, D)."""
        return fill(self.out(y.transpose(1, 2).flatten(2)), padding)

    def _check(self, x: Tensor, lengths: Lengths) -> Padding | None:
        check_tensor("x", x, ("batch", "length", self.d_model), kind="float")
        check_same_dtype(x, example_of(self).dtype, "layer")
        return Padding.of(x, lengths)

    def _check_causal(self, use: str) -> None:
        if self.bidirectional:
            raise ValueError(f"{use} needs a causal layer, got bidirectional=True: it looks ahead and has no state")


def _mask(padding: Padding | None) -> Tensor | None:
    """(B, L), False at padding."""
    return None if padding is None else padding.mask[..., 0]


class KVCache(NamedTuple):
    """A cache of past keys and values that grows with every call.

    Example:
        >>> _, cache = Attention(16, n_heads=4).prefill(torch.zeros(2, 10, 16))
        >>> type(cache).__name__, cache.keys.shape, cache.position
        ('KVCache', torch.Size([2, 4, 10, 4]), tensor([10, 10]))
    """

    keys: Tensor  # (B, H, M, E); a slot beyond the sequence's position is not in use
    values: Tensor  # (B, H, M, E)
    position: Tensor  # (B,), how many samples each sequence has seen


class StaticKVCache(NamedTuple):
    """A cache with a fixed number of slots, so that shapes do not change from step to step.

    Example:
        >>> layer = Attention(16, n_heads=4)
        >>> cache = layer.initial_state(2, max_length=100)
        >>> y, cache = layer.step(torch.zeros(2, 16), cache)
        >>> type(cache).__name__, cache.keys.shape, cache.position
        ('StaticKVCache', torch.Size([2, 4, 100, 4]), tensor([1, 1]))
    """

    keys: Tensor  # (B, H, M, E), M the largest number of samples it can hold
    values: Tensor  # (B, H, M, E)
    position: Tensor  # (B,)


class Attention(MultiHead["KVCache | StaticKVCache"]):
    """Multi-head softmax attention (Vaswani et al. 2017), the mixer of the S4 paper's Transformer baselines.

    The output at t is ``Σ softmax_s(q_t·k_s / √E) v_s``. It does not distinguish positions: add an encoding to x
    (:class:`statespan.nn.SinusoidalPositions`; in a recipe ``model.positions=sinusoidal``).

    Args:
        d_model: Number of features D.
        n_heads: Number of heads H.
        d_head: Features E of each head; None for d_model / n_heads. S4 Table 3 has 4 heads of 32 at d_model 256.
        bidirectional: Let a position attend to the future as well. Then there is no recurrence, so ``prefill`` and
            ``step`` raise an error.
        dropout: Probability of dropping an attention weight.
        flash: Use torch's fused attention, whose memory is linear in L; False makes the L × L matrix of weights, as the
            Transformers did that the S4 paper measured.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> layer = Attention(d_model=16, n_heads=4)
        >>> y, state = layer.prefill(torch.randn(2, 100, 16))
        >>> y, state = layer.step(torch.randn(2, 16), state)
        >>> y.shape, state.position
        (torch.Size([2, 16]), tensor([101, 101]))
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 8,
        *,
        d_head: int | None = None,
        bidirectional: bool = False,
        dropout: float = 0.0,
        flash: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            d_model, n_heads, d_head=d_head, bidirectional=bidirectional, dropout=dropout, device=device, dtype=dtype
        )
        self.flash = check_bool("flash", flash)

    def initial_state(
        self, batch: int, *, max_length: int | None = None, dtype: torch.dtype | None = None
    ) -> KVCache | StaticKVCache:
        """An empty cache that grows, in the dtype of the layer unless another one is given.

        With ``max_length`` it has that many slots and a constant shape, for ``torch.compile`` and CUDA graphs. When it
        is full, a CPU raises an error; other devices, where a check would synchronize, return NaN.
        """
        self._check_causal("initial_state")
        check_int("batch", batch, minimum=0)
        slots = 0 if max_length is None else check_int("max_length", max_length, minimum=1)
        like = example_of(self)
        dtype = like.dtype if dtype is None else check_dtype("dtype", dtype)
        keys = torch.zeros(batch, self.n_heads, slots, self.d_head, dtype=dtype, device=like.device)
        position = torch.zeros(batch, dtype=torch.int64, device=like.device)
        return (KVCache if max_length is None else StaticKVCache)(keys, torch.zeros_like(keys), position)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{super().extra_repr()}, flash={self.flash}"

    def _whole(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or not self.bidirectional:  # padding comes last, so no real sample attends to it
            return self._attend(q, k, v, causal=not self.bidirectional)
        first = torch.arange(mask.shape[1], device=mask.device) == 0  # an empty sequence would be NaN
        return self._attend(q, k, v, visible=(mask | first)[:, None, None])

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: KVCache | StaticKVCache | None, *, mask: Tensor | None
    ) -> tuple[Tensor, KVCache | StaticKVCache]:
        batch, _, length, _ = q.shape
        count = q.new_full((batch,), length, dtype=torch.int64) if mask is None else mask.sum(1)
        if state is None or (isinstance(state, KVCache) and state.keys.shape[2] == 0):
            dtype = k.dtype if state is None else state.keys.dtype
            keys, values = (t.to(dtype).contiguous() for t in (k, v))  # a copy, so that q can be freed
            return (self._attend(q, k, v, causal=True) if length else v), KVCache(keys, values, count)
        if length == 0:
            return v, state
        after = _write(state, k, v, count)
        slots = torch.arange(after.keys.shape[2], device=q.device)
        keys, values, pieces = after.keys.to(q.dtype), after.values.to(q.dtype), []
        for start in range(0, length, QUERIES):
            part = q[:, :, start : start + QUERIES]
            last = state.position[:, None] + torch.arange(start, start + part.shape[2], device=q.device)  # (B, L)
            pieces.append(self._attend(part, keys, values, visible=slots <= last[:, None, :, None]))
        y = torch.cat(pieces, 2)
        if isinstance(state, StaticKVCache):
            full = after.position > slots.shape[0]
            if full.device.type == "cpu" and not torch.compiler.is_compiling() and full.any():
                raise ValueError(f"state has max_length={slots.shape[0]} slots, got {after.position.max()} samples")
            y = y.masked_fill(full[:, None, None, None], torch.nan)
        return y, after

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, visible: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Softmax attention; ``visible`` marks the keys that a query sees, (B, 1, queries or 1, keys)."""
        dropout = self.dropout if self.training else 0.0
        if self.flash:
            return nn.functional.scaled_dot_product_attention(q, k, v, visible, dropout, is_causal=causal)
        scores = q @ k.mT * self.d_head**-0.5  # (B, H, L, L)
        if causal:
            visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        return nn.functional.dropout(scores.softmax(-1), dropout) @ v

    def _check_state(self, state: Any, batch: int) -> None:
        if not isinstance(state, (KVCache, StaticKVCache)):
            raise TypeError(f"state must be a KVCache or a StaticKVCache, got {type(state).__name__}")
        shape = (batch, self.n_heads, "slots", self.d_head)
        check_tensor("state.keys", state.keys, shape, kind="float")
        check_tensor("state.values", state.values, state.keys.shape, kind="float")
        if not isinstance(state.position, Tensor) or state.position.dtype != torch.int64:
            kind = state.position.dtype if isinstance(state.position, Tensor) else type(state.position).__name__
            raise TypeError(f"state.position must be a torch.Tensor of torch.int64, got {kind}")
        if state.position.shape != (batch,):
            raise ValueError(f"state.position must have shape ({batch},), got {tuple(state.position.shape)}")


def _write(state: KVCache | StaticKVCache, k: Tensor, v: Tensor, count: Tensor) -> KVCache | StaticKVCache:
    """Append new keys and values (B, H, L, E) to each sequence's cache; only the first ``count`` (B,) are valid."""
    length = k.shape[2]
    more = length if isinstance(state, KVCache) else 0
    slots = torch.arange(state.keys.shape[2] + more, device=k.device)
    source = (slots - state.position[:, None])[:, None, :, None]  # (B, 1, M, 1), which new sample belongs in a slot

    def write(old: Tensor, new: Tensor) -> Tensor:
        new = new.to(old.dtype)
        if length > 1:
            new = new.gather(2, source.clamp(0, length - 1).expand(-1, new.shape[1], -1, new.shape[3]))
        return torch.where(source < 0, nn.functional.pad(old, (0, 0, 0, more)), new)  # later slots are unused

    return type(state)(write(state.keys, k), write(state.values, v), state.position + count)
