"""The Transformer block (a mixer and a feed-forward network with residuals) and stacks of it.

The mixer is any module from (B, L, D) to (B, L, D): attention, or an SSM layer in its place.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_choice, check_dtype, check_int, check_number, check_tensor
from statespan.nn.initial import Initialised, reset
from statespan.nn.padding import Lengths, Padding, fill

NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class TransformerBlock(Initialised):
    """A mixer of positions, then a position-wise feed-forward network with GELU; each with a residual and a norm.

    Beside the mixer it has ``2·D`` parameters for each norm ("rms": D) and ``2·D·d_ff + d_ff + D`` for the network.

    Args:
        d_model: Number of features D.
        mixer: Module from (B, L, D) to (B, L, D). ``lengths`` are handed to it; ``prefill``, ``step``, ``stepper`` and
            ``initial_state`` are there if it has them.
        d_ff: Hidden features of the feed-forward network; None for a block without one.
        norm: "layer" or "rms".
        prenorm: Normalize what enters the mixer and the network, as in GPT-2; False for the sum behind each, as in the
            first Transformer.
        dropout: Probability of dropping a feature of what is added to a residual.
        device: Device of the block's own parameters.
        dtype: Their dtype.

    Example:
        >>> from statespan.papers.baselines.attention import Attention
        >>> block = TransformerBlock(16, Attention(16, n_heads=4), d_ff=64)
        >>> block(torch.randn(2, 100, 16), lengths=[100, 70]).shape
        torch.Size([2, 100, 16])
    """

    def __init__(
        self,
        d_model: int,
        mixer: nn.Module,
        *,
        d_ff: int | None,
        norm: str = "layer",
        prenorm: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = check_int("d_model", d_model, minimum=1)
        self.mixer = _check_mixer("mixer", mixer, self.d_model)
        self.prenorm = check_bool("prenorm", prenorm)
        check_number("dropout", dropout, above=0.0, below=1.0, closed=True)
        make_norm = NORMS[check_choice("norm", norm, NORMS)]
        check_dtype("dtype", dtype)
        self.dropout = nn.Dropout(dropout)
        self.mixer_norm = make_norm(self.d_model, device=device, dtype=dtype)
        self.feed_forward: nn.Module | None = None
        if d_ff is not None:
            check_int("d_ff", d_ff, minimum=1)
            self.feed_norm = make_norm(self.d_model, device=device, dtype=dtype)
            self.feed_forward = nn.Sequential(
                nn.Linear(self.d_model, d_ff, device=device, dtype=dtype),
                nn.GELU(),
                nn.Linear(d_ff, self.d_model, device=device, dtype=dtype),
            )

    def reset_parameters(self) -> None:
        """Re-initialise all parameters, those of the mixer first."""
        reset(self.mixer)
        self.reset_own()

    def reset_own(self) -> None:
        """Re-initialise all but the mixer."""
        for name, child in self.named_children():
            if name != "mixer":
                reset(child)

    def forward(self, x: Tensor, *, lengths: Lengths = None) -> Tensor:
        """Apply the block to whole sequences.

        Args:
            x: (B, L, D).
            lengths: True length of each sequence (B,), whole numbers 0 … L; padding is ignored; its outputs are 0.

        Returns:
            y of shape (B, L, D).
        """
        x, options, padding = _padding(x, lengths, self.d_model)
        return self._after(x, self.mixer(self._before(x), **options), padding)

    def prefill(self, x: Tensor, state: Any = None, *, lengths: Lengths = None) -> tuple[Tensor, Any]:
        """The same map from a state to a state, if the mixer supports it.

        Args:
            x: (B, L, D), L ≥ 0.
            state: The mixer's; None to start. It is not changed.
            lengths: As in ``forward``; the state returned is the one after each sequence's own length.

        Returns:
            y of shape (B, L, D), and the new state.
        """
        x, options, padding = _padding(x, lengths, self.d_model)
        mixed, after = self._of_mixer("prefill")(self._before(x), state, **options)
        return self._after(x, mixed, padding), after

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One step of the recurrence, if the mixer supports it. For many steps in a row, use :meth:`stepper`.

        Args:
            x: (B, D).
            state: The mixer's; it is not changed.

        Returns:
            y of shape (B, D), and the new state.
        """
        return self._step_with(self._of_mixer("step"), x, state)

    def stepper(self) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
        """``step`` as a function with the set-up of the mixer done once, for many steps with the same parameters."""
        mix = self._of_mixer("stepper")()
        return lambda x, state: self._step_with(mix, x, state)

    def initial_state(self, batch: int, **options: Any) -> Any:
        """The mixer's state before the first sample.

        Args:
            batch: Number of sequences.
            **options: Those of the mixer's ``initial_state``.
        """
        return self._of_mixer("initial_state")(batch, **options)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"d_model={self.d_model}, prenorm={self.prenorm}"

    def _step_with(self, mix: Callable[..., tuple[Tensor, Any]], x: Tensor, state: Any) -> tuple[Tensor, Any]:
        check_tensor("x", x, ("batch", self.d_model), kind="float")
        mixed, after = mix(self._before(x), state)
        return self._after(x, mixed, None), after

    def _before(self, x: Tensor) -> Tensor:
        return self.mixer_norm(x) if self.prenorm else x

    def _after(self, x: Tensor, mixed: Tensor, padding: Padding | None) -> Tensor:
        """The residual around the mixer, then the feed-forward network with its own residual."""
        x = x + self.dropout(mixed)
        x = x if self.prenorm else self.mixer_norm(x)
        if self.feed_forward is not None:
            x = x + self.dropout(self.feed_forward(self.feed_norm(x) if self.prenorm else x))
            x = x if self.prenorm else self.feed_norm(x)
        return fill(x, padding)

    def _of_mixer(self, name: str) -> Callable[..., Any]:
        method = getattr(self.mixer, name, None)
        if method is None:
            raise TypeError(f"{name} needs a mixer that has it, got {type(self.mixer).__name__}")
        return method


class Transformer(Initialised):
    """A stack of :class:`TransformerBlock`, and with ``prenorm`` a last norm. Its state is the mixers' tuple of states.

    Args:
        d_model: Number of features D.
        mixers: One module for each block.
        d_ff: As in :class:`TransformerBlock`, as for all that follow.
        norm: "layer" or "rms".
        prenorm: Where the norms stand.
        dropout: Probability of dropping a feature of what is added to a residual.
        device: Device of the blocks' own parameters.
        dtype: Their dtype.

    Example:
        >>> from statespan.papers.baselines.attention import Attention
        >>> model = Transformer(16, [Attention(16, n_heads=4) for _ in range(2)], d_ff=64)
        >>> y, state = model.prefill(torch.randn(2, 100, 16))
        >>> y, state = model.step(torch.randn(2, 16), state)
        >>> y.shape, len(state)
        (torch.Size([2, 16]), 2)
    """

    def __init__(
        self,
        d_model: int,
        mixers: Iterable[nn.Module],
        *,
        d_ff: int | None,
        norm: str = "layer",
        prenorm: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = check_int("d_model", d_model, minimum=1)
        listed = _check_mixers(mixers, self.d_model)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                d_model, mixer, d_ff=d_ff, norm=norm, prenorm=prenorm, dropout=dropout, device=device, dtype=dtype
            )
            for mixer in listed
        )
        self.norm = NORMS[norm](d_model, device=device, dtype=dtype) if prenorm else nn.Identity()

    def reset_parameters(self) -> None:
        """Re-initialise all parameters, those of the mixers first, because they are built before the blocks."""
        for block in self._blocks():
            reset(block.mixer)
        for block in self._blocks():
            block.reset_own()
        reset(self.norm)

    def forward(self, x: Tensor, *, lengths: Lengths = None) -> Tensor:
        """Apply the stack to whole sequences.

        Args:
            x: (B, L, D).
            lengths: True length of each sequence (B,), whole numbers 0 … L; padding is ignored; its outputs are 0.

        Returns:
            y of shape (B, L, D).
        """
        x, options, padding = _padding(x, lengths, self.d_model)
        for block in self._blocks():
            x = block(x, **options)
        return self._last(x, padding)

    def prefill(
        self, x: Tensor, state: Sequence[Any] | None = None, *, lengths: Lengths = None
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """The same map from a state to a state, if the mixers support it.

        Args:
            x: (B, L, D), L ≥ 0.
            state: One for each block; None to start. It is not changed.
            lengths: As in ``forward``; the state returned is the one after each sequence's own length.

        Returns:
            y of shape (B, L, D), and the new state.
        """
        x, options, padding = _padding(x, lengths, self.d_model)
        states, after = self._states(state), []
        for block, before in zip(self._blocks(), states):
            x, new = block.prefill(x, before, **options)
            after.append(new)
        return self._last(x, padding), tuple(after)

    def step(self, x: Tensor, state: Sequence[Any]) -> tuple[Tensor, tuple[Any, ...]]:
        """One step of the recurrence, if the mixers support it. For many steps in a row, use :meth:`stepper`.

        Args:
            x: (B, D).
            state: One for each block; it is not changed.

        Returns:
            y of shape (B, D), and the new state.
        """
        return self._step_with([block.step for block in self._blocks()], x, state)

    def stepper(self) -> Callable[[Tensor, Sequence[Any]], tuple[Tensor, tuple[Any, ...]]]:
        """``step`` as a function with the set-up of the mixers done once, for many steps with the same parameters."""
        steps = [block.stepper() for block in self._blocks()]
        return lambda x, state: self._step_with(steps, x, state)

    def initial_state(self, batch: int, **options: Any) -> tuple[Any, ...]:
        """The mixers' states before the first sample.

        Args:
            batch: Number of sequences.
            **options: Those of the mixers' ``initial_state``.
        """
        return tuple(block.initial_state(batch, **options) for block in self._blocks())

    def _step_with(
        self, steps: Sequence[Callable[..., tuple[Tensor, Any]]], x: Tensor, state: Sequence[Any]
    ) -> tuple[Tensor, tuple[Any, ...]]:
        after = []
        for step, before in zip(steps, self._states(state)):
            x, new = step(x, before)
            after.append(new)
        return self.norm(x), tuple(after)

    def _blocks(self) -> Iterable[TransformerBlock]:
        return cast("Iterable[TransformerBlock]", self.blocks)

    def _last(self, x: Tensor, padding: Padding | None) -> Tensor:
        return fill(self.norm(x), padding)

    def _states(self, state: Sequence[Any] | None) -> Sequence[Any]:
        blocks = len(self.blocks)
        if state is None:
            return [None] * blocks
        if not isinstance(state, (tuple, list)):
            raise TypeError(f"state must be a tuple of {blocks}, one for each block, got {type(state).__name__}")
        if len(state) != blocks:
            raise ValueError(f"state must be a tuple of {blocks}, one for each block, got {len(state)}")
        return state


def _padding(x: Tensor, lengths: Lengths, d_model: int) -> tuple[Tensor, dict[str, Tensor], Padding | None]:
    """The input with zeros for padding, the mixer's options, and the padding."""
    check_tensor("x", x, ("batch", "length", d_model), kind="float")
    padding = Padding.of(x, lengths)
    return fill(x, padding), {} if padding is None else {"lengths": padding.lengths}, padding


def _check_mixers(mixers: Any, d_model: int) -> list[nn.Module]:
    if not isinstance(mixers, Iterable) or isinstance(mixers, str):
        raise TypeError(f"mixers must be modules, one for each block, got {type(mixers).__name__}")
    listed = [_check_mixer("mixers", mixer, d_model) for mixer in mixers]
    if not listed:
        raise ValueError("mixers must be modules, one for each block, got none")
    return listed


def _check_mixer(name: str, mixer: Any, d_model: int) -> nn.Module:
    if not isinstance(mixer, nn.Module):
        raise TypeError(f"{name} must be a torch.nn.Module, got {type(mixer).__name__}")
    for size in ("d_model", "d_output"):
        if getattr(mixer, size, d_model) != d_model:
            raise ValueError(f"{name} must have {size}={d_model}, that of the block, got {getattr(mixer, size)}")
    return mixer
