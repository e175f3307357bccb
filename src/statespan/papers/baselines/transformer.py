"""The Transformer block (a mixer and a feed-forward network with residuals) and stacks of it.

The mixer is any module from (B, L, D) to (B, L, D): attention, or an SSM layer in its place.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_choice, check_dtype, check_int, check_number, check_tensor
from statespan.nn.backbone import Call, Composite
from statespan.nn.initial import reset
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.sequence import SequenceLayer, StepFunction

NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class TransformerBlock(SequenceLayer):
    """A mixer of positions, then a position-wise feed-forward network with GELU; each with a residual and a norm.

    Beside the mixer it has ``2·D`` parameters for each norm ("rms": D) and ``2·D·d_ff + d_ff + D`` for the network.

    Args:
        d_model: Number of features D.
        mixer: Module from (B, L, D) to (B, L, D). It gets ``lengths`` and a ``dt_scale`` other than 1 if there are any;
            the block's ``prefill``, ``step``, ``stepper`` and ``initial_state`` need a mixer with these methods.
        d_ff: Hidden features of the feed-forward network; None for a block without one.
        norm: "layer" or "rms".
        prenorm: Normalize the inputs of the mixer and the network, as in GPT-2; False for the sum after each, as in the
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
        self.d_model = self.d_output = check_int("d_model", d_model, minimum=1)
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

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply the block to whole sequences x (B, L, D); see :class:`SequenceLayer`."""
        x, padding = self._padded(x, lengths)
        mixed = self.mixer(self._before(x), **_mixer_options(padding, dt_scale))
        return self._after(x, mixed, padding)

    def prefill(
        self, x: Tensor, state: Any = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, Any]:
        """The same map from a state of the mixer to a state; see :class:`SequenceLayer`."""
        x, padding = self._padded(x, lengths)
        mixed, after = self._of_mixer("prefill")(self._before(x), state, **_mixer_options(padding, dt_scale))
        return self._after(x, mixed, padding), after

    def step(self, x: Tensor, state: Any, *, dt_scale: float = 1.0) -> tuple[Tensor, Any]:
        """One step of the recurrence from a state of the mixer; see :class:`SequenceLayer`."""
        self._of_mixer("step")
        return super().step(x, state, dt_scale=dt_scale)

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """``step`` as a function with the set-up of the mixer done once; see :class:`SequenceLayer`."""
        mix = self._of_mixer("stepper")(dt_scale, in_place=in_place)

        def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
            check_tensor("x", x, ("batch", self.d_model), kind="float")
            mixed, after = mix(self._before(x), state)
            return self._after(x, mixed, None), after

        return step

    def initial_state(self, batch: int, **options: Any) -> Any:
        """The mixer's state before the first sample, with the options of its ``initial_state``."""
        return self._of_mixer("initial_state")(batch, **options)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"d_model={self.d_model}, prenorm={self.prenorm}"

    def _padded(self, x: Tensor, lengths: Lengths) -> tuple[Tensor, Padding | None]:
        """The input with zeros for padding, and the padding."""
        check_tensor("x", x, ("batch", "length", self.d_model), kind="float")
        padding = Padding.of(x, lengths)
        return fill(x, padding), padding

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


class Transformer(Composite):
    """A stack of :class:`TransformerBlock`, and with ``prenorm`` a last norm. Its state is the mixers' tuple of states.

    Args:
        d_model: Number of features D.
        mixers: One module for each block.
        **options: Those of :class:`TransformerBlock`, the same for all blocks.

    Example:
        >>> from statespan.papers.baselines.attention import Attention
        >>> model = Transformer(16, [Attention(16, n_heads=4) for _ in range(2)], d_ff=64)
        >>> y, state = model.prefill(torch.randn(2, 100, 16))
        >>> y, state = model.step(torch.randn(2, 16), state)
        >>> y.shape, len(state)
        (torch.Size([2, 16]), 2)
    """

    def __init__(self, d_model: int, mixers: Iterable[nn.Module], **options: Any) -> None:
        super().__init__()
        self.d_model = self.d_output = check_int("d_model", d_model, minimum=1)
        blocks = [TransformerBlock(d_model, mixer, **options) for mixer in _check_mixers(mixers, self.d_model)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = copy.deepcopy(blocks[0].mixer_norm) if blocks[0].prenorm else nn.Identity()

    def reset_parameters(self) -> None:
        """Re-initialise all parameters, those of the mixers first, because they are built before the blocks."""
        for block in self.parts():
            reset(block.mixer)
        for block in self.parts():
            for name, child in block.named_children():
                if name != "mixer":
                    reset(child)
        reset(self.norm)

    def parts(self) -> Sequence[TransformerBlock]:
        """The blocks."""
        return cast("Sequence[TransformerBlock]", self.blocks)

    def flow(self, x: Tensor, call: Call, padding: Padding | None) -> Tensor:
        """The blocks in order, then the last norm."""
        x = fill(x, padding)
        for block in self.parts():
            x = call(block, x)
        return fill(self.norm(x), padding)

    def step(self, x: Tensor, state: Any, *, dt_scale: float = 1.0) -> tuple[Tensor, Any]:
        """One step of the recurrence from the blocks' states; see :class:`SequenceLayer`."""
        for block in self.parts():
            block._of_mixer("step")
        return super().step(x, state, dt_scale=dt_scale)

    def initial_state(self, batch: int, **options: Any) -> tuple[Any, ...]:
        """The mixers' states before the first sample, with the options of their ``initial_state``."""
        return tuple(block.initial_state(batch, **options) for block in self.parts())


def _mixer_options(padding: Padding | None, dt_scale: float) -> dict[str, Any]:
    """The keyword arguments of a mixer: only those that matter, so that any module can be one."""
    lengths = {} if padding is None else {"lengths": padding.lengths}
    return lengths if dt_scale == 1.0 else {**lengths, "dt_scale": dt_scale}


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
