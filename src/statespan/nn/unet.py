"""The U-Net: a causal backbone at several resolutions that can also run step by step.

Shapes: B batch, L length, D features, p = factor of a resampling, F = frames of p positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_int
from statespan.nn.backbone import Call, Composite
from statespan.nn.block import ResidualBlock
from statespan.nn.initial import reset
from statespan.nn.norm import NoNorm, NormName, make_norm
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.precision import example_of
from statespan.nn.sequence import SequenceLayer, StepFunction


class Resampled(SequenceLayer):
    """A module at a resolution lower by ``factor``: a linear map of whole frames down to it, and one back up.

    The output for a frame is known at its last position, so it is delayed by one frame; the first frame gets zeros. An
    incomplete last frame has no effect yet, so any length is allowed.

    The state is (state of the inner module, the frame so far (B, p, D), the output during it (B, p, D), position in it
    (B,)). The position stays on the CPU: the inner module runs once in ``factor`` steps, and when is known without
    waiting for a GPU.

    Example:
        >>> from statespan.nn import S4D, Backbone
        >>> Resampled(Backbone([S4D(8)]), d_model=4, factor=2)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """

    def __init__(
        self,
        inner: Composite,
        d_model: int,
        factor: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = self.d_output = check_int("d_model", d_model, minimum=1)
        self.factor = check_int("factor", factor, minimum=1)
        self.down = nn.Linear(factor * d_model, inner.d_model, device=device, dtype=dtype)
        self.inner = inner
        self.up = nn.Linear(inner.d_model, factor * d_model, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Re-initialise, the inner module first; see :class:`Initialised`."""
        for part in (self.inner, self.down, self.up):
            reset(part)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """As in :class:`SequenceLayer`."""
        self.check_shards()
        batch, length, _ = x.shape
        padding, frames = Padding.of(x, lengths), length // self.factor
        whole = None if padding is None else Padding.to(padding.lengths // self.factor, frames)
        if torch.compiler.is_exporting():  # a cut that is empty for some lengths would be traced as one of the two
            x = nn.functional.pad(x, (0, 0, 0, (frames + 1) * self.factor - length))
            x = x.reshape(batch, frames + 1, self.down.in_features)[:, :-1]
        else:
            x = x[:, : frames * self.factor].reshape(batch, frames, self.down.in_features)
        y = self.down(x)
        y = self.up(self.inner(y, lengths=whole, dt_scale=dt_scale))
        y = y.reshape(batch, frames * self.factor, self.d_model)
        return nn.functional.pad(y, (0, 0, self.factor, 0))[:, :length]

    def prefill(
        self, x: Tensor, state: Any = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, tuple[Any, Tensor, Tensor, Tensor]]:
        """As in :class:`Composite`. Sequences of a batch may stand at different positions of their frames."""
        self.check_shards()
        batch, length, D = x.shape
        p, padding, device = self.factor, Padding.of(x, lengths), x.device
        aligned = state is None and padding is None
        inner, frame, pending, position = self._start(batch) if state is None else state
        start = position.to(device)[:, None]
        end = start[:, 0] + (length if padding is None else padding.lengths)
        whole, frames = end // p, length // p if aligned else -(-length // p)  # of each sequence, and at most

        # the frame so far and then x, as one sequence that begins with a frame
        places = torch.arange((frames + 1) * p, device=device)
        source = torch.where(places < start, places, (places - start + p).clamp(max=p + length - 1))
        x = torch.cat([frame.to(x.dtype), x], 1).take_along_dim(source[..., None], 1)
        x = x.masked_fill((places >= end[:, None])[..., None], 0.0).reshape(batch, frames + 1, p, D)

        y, inner = self.inner.prefill(
            self.down(x[:, :-1].flatten(2)),
            inner,
            lengths=None if aligned else Padding.to(whole, frames),
            dt_scale=dt_scale,
        )
        y = self.up(y).reshape(batch, frames, p, D)
        y = torch.cat([pending.to(y.dtype)[:, None], y], 1)
        row = torch.arange(batch, device=device)
        after = (inner, x[row, whole].to(frame.dtype), y[row, whole].to(pending.dtype), (end % p).cpu())
        positions = start + torch.arange(length, device=device)
        return y.flatten(1, 2).take_along_dim(positions[..., None], 1), after

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """As in :class:`SequenceLayer`. In place, sequences must all stand at the same position of their frames."""
        if in_place:
            return self._together(self.inner.stepper(dt_scale, in_place=True))
        advance = self.inner.stepper(dt_scale)

        def step(x: Tensor, state: Any) -> tuple[Tensor, tuple[Any, Tensor, Tensor, Tensor]]:
            inner, frame, pending, position = state
            is_here = (torch.arange(self.factor) == position[:, None])[..., None].to(x.device)  # (B, p, 1)
            frame = torch.where(is_here, x[:, None].to(frame.dtype), frame)
            y = pending.masked_fill(~is_here, 0.0).sum(1)
            full = position == self.factor - 1
            if torch.compiler.is_compiling() or full.any():
                z, after = advance(self.down(frame.flatten(1)), inner)
                fresh = self.up(z).unflatten(1, (self.factor, self.d_model)).to(pending.dtype)
                inner, pending = _choose(full, after, inner), _choose(full, fresh, pending)
                frame = _choose(full, torch.zeros_like(frame), frame)
            return y.to(x.dtype), (inner, frame, pending, (position + 1) % self.factor)

        return step

    def _together(self, advance: StepFunction) -> StepFunction:
        """A step of sequences at one position, known on the CPU, so that the inner module runs only when due."""

        def step(x: Tensor, state: Any) -> tuple[Tensor, tuple[Any, Tensor, Tensor, Tensor]]:
            inner, frame, pending, position = state
            place = int(position[0]) if len(position) else 0
            if bool((position != place).any()):
                raise ValueError(f"state must have one position in its frames for a step in place, got {position}")
            frame[:, place] = x
            y = pending[:, place].to(x.dtype, copy=True)
            if place == self.factor - 1:
                z, _ = advance(self.down(frame.flatten(1).to(x.dtype)), inner)
                pending.copy_(self.up(z).unflatten(1, (self.factor, self.d_model)))
                frame.zero_()
            position.fill_((place + 1) % self.factor)
            return y, state

        return step

    def initial_state(
        self, batch: int, *, dtype: torch.dtype | None = torch.float64
    ) -> tuple[Any, Tensor, Tensor, Tensor]:
        """As in :class:`SequenceLayer`."""
        return (self.inner.initial_state(batch, dtype=dtype), *self._start(batch)[1:])

    def check_padding(self) -> None:
        """Reject padding if the inner module does."""
        self.inner.check_padding()

    def _start(self, batch: int) -> tuple[None, Tensor, Tensor, Tensor]:
        like = example_of(self.up)
        shape = batch, self.factor, self.d_model
        frame, pending = (torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(2))
        return None, frame, pending, torch.zeros(batch, dtype=torch.int64)


class UNetLevel(Composite):
    """One resolution: blocks on the way down, coarser levels, and blocks on the way up.

    Each block on the way up also reads the output of the block that mirrors it on the way down. The coarsest level has
    only blocks on the way down.

    Example:
        >>> from statespan.nn import S4D
        >>> def block(d_model):
        ...     return ResidualBlock(S4D(d_model))
        >>> coarse = Resampled(UNetLevel([block(8)], None, []), d_model=4, factor=2)
        >>> UNetLevel([block(4)], coarse, [block(4)])(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """

    def __init__(self, down: Iterable[ResidualBlock], inner: Resampled | None, up: Iterable[ResidualBlock]) -> None:
        super().__init__()
        self.down, self.inner, self.up = nn.ModuleList(down), inner, nn.ModuleList(up)
        self.d_model = self.d_output = int(self.down[0].d_model)  # type: ignore[arg-type]

    def reset_parameters(self) -> None:
        """Re-initialise, coarser levels first; see :class:`Initialised`."""
        for part in (self.inner, self.down, self.up):
            if part is not None:
                reset(part)

    def parts(self) -> Sequence[Any]:
        """The blocks and the coarser levels between them."""
        return [*self.down, *([] if self.inner is None else [self.inner]), *self.up]

    def flow(self, x: Tensor, call: Call, padding: Padding | None) -> Tensor:
        """Down, to the coarser levels, and up."""
        passed = []
        for block in self.down:
            x = call(block, x)
            passed.append(x)
        if self.inner is not None:
            x = call(self.inner, x)
        for block in self.up:
            x = call(block, x + passed.pop())
        return x


class UNet(Composite):
    """A causal U-Net backbone (S4 paper, appendix D.3.1), and with ``prenorm`` a last norm.

    Args:
        d_model: Number of features D at the finest resolution.
        layers: A function from a number of features to the layers of one stack. It is called once for the coarsest
            resolution, and twice, for the way down and the way up, for each other one.
        pools: Factors of the resamplings, finest first.
        expand: Factor on the number of features at each of them.
        norm: "layer", "batch" or "none".
        prenorm: Normalize the input of each layer; False for the sum after it.
        dropout: Probability of dropping a feature of a layer's output.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Device of the U-Net's own parameters.
        dtype: Their dtype.

    Example:
        >>> from statespan.nn import S4D, FeedForward
        >>> unet = UNet(8, lambda d_model: [S4D(d_model, 16), FeedForward(d_model, 2)], pools=(4, 4), expand=2)
        >>> y, state = unet.prefill(torch.randn(2, 101, 8))
        >>> y, state = unet.step(torch.randn(2, 8), state)
        >>> y.shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        d_model: int,
        layers: Callable[[int], Iterable[SequenceLayer]],
        *,
        pools: Sequence[int] = (4, 4),
        expand: int = 1,
        norm: NormName = "layer",
        prenorm: bool = True,
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = self.d_output = check_int("d_model", d_model, minimum=1)
        check_int("expand", expand, minimum=1)

        def blocks(width: int) -> list[ResidualBlock]:
            options = {"norm": norm, "prenorm": prenorm, "dropout": dropout, "tie_dropout": tie_dropout}
            return [ResidualBlock(layer, **options, device=device, dtype=dtype) for layer in layers(width)]  # type: ignore[arg-type]

        level = UNetLevel(blocks(d_model * expand ** len(pools)), None, [])
        for depth in reversed(range(len(pools))):
            width = d_model * expand**depth
            inner = Resampled(level, width, pools[depth], device=device, dtype=dtype)
            level = UNetLevel(blocks(width), inner, blocks(width))
        self.level = level
        self.norm = make_norm(norm, d_model, device=device, dtype=dtype) if prenorm else NoNorm()

    def parts(self) -> Sequence[Any]:
        """The finest level, which holds the others."""
        return [self.level]

    def flow(self, x: Tensor, call: Call, padding: Padding | None) -> Tensor:
        """The levels, then the last norm."""
        return fill(self.norm(call(self.level, fill(x, padding)), padding), padding)


def _choose(full: Tensor, new: Any, old: Any) -> Any:
    """The new state for sequences whose frame is full, the old state for the others."""
    if not torch.compiler.is_compiling() and full.all():
        return new
    if isinstance(new, Tensor):
        return torch.where(full.to(new.device).view(-1, *[1] * (new.ndim - 1)), new, old)
    return tuple(_choose(full, n, o) for n, o in zip(new, old))
