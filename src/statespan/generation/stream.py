"""Streaming: outputs as samples arrive, indefinitely.

Shapes: S streams of a call, L length of a block, K outputs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statespan._check import check_finite, check_int
from statespan.generation.files import read_state, write_state
from statespan.generation.rows import filling, independent, one_thread, tiled
from statespan.generation.tree import leaves, map_leaves, replace_leaves
from statespan.models import Forecaster, Retrieval
from statespan.models.base import Model
from statespan.models.config import relative_step
from statespan.models.tokens import TokenModel
from statespan.models.transducer import Transducer
from statespan.nn.threads import few_threads

PROBE = 3  # rows that test whether rows depend on each other, over the multiple that batches are padded to


class Stream:
    """Independent streams through one model, each with its own state.

    A stream gets the same bits alone and among any number of others, however its samples are cut into blocks. Samples
    that are not finite, or whose answers are not, are refused and leave all states as they were, since a state would
    never recover from them.

    Args:
        model: A causal model with ``step``: a classifier, a regressor, or one that answers at every position; in
            evaluation mode. Its weights must not change while there are streams.
        streams: How many to start with.
        dt_scale: Step of the data relative to that of training; 1 by default.
        sampling_rate: Samples a second of the data, in place of ``dt_scale``; the model must know its training rate.
        state_dtype: Of the SSMs' states. float64 stays equal to the convolution for any number of samples.

    Example:
        >>> from statespan.models import Classifier, ClassifierConfig
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=3, d_model=16, n_layers=1, layer="s4d")).eval()
        >>> stream = Stream(model, streams=2)
        >>> stream.push(torch.randn(2, 1)).shape                   # a sample of each stream: their answers so far
        torch.Size([2, 3])
        >>> stream.push(torch.randn(1, 50, 1), ids=[1]).shape      # a block of one of them
        torch.Size([1, 3])
        >>> stream.add()
        (2,)
        >>> stream.remove([0])
        >>> stream.ids
        (1, 2)
    """

    def __init__(
        self,
        model: Any,
        streams: int = 1,
        *,
        dt_scale: float | None = None,
        sampling_rate: float | None = None,
        state_dtype: torch.dtype = torch.float64,
    ) -> None:
        if not isinstance(model, Model):
            raise TypeError(f"model must be a statespan model, got {type(model).__name__}")
        if isinstance(model, (Retrieval, Forecaster)):
            why = "compares pairs" if isinstance(model, Retrieval) else "forecasts: see statespan.generate"
            raise TypeError(f"model must support streaming, but a {type(model).__name__} {why}")
        if model.training:
            raise ValueError("model must be in evaluation mode, got training mode: call model.eval() first")
        dt_scale = relative_step(model.config.sampling_rate, dt_scale=dt_scale, sampling_rate=sampling_rate)
        self.model, self.dt_scale, self.state_dtype = model, dt_scale, state_dtype
        self.device = next(model.parameters()).device
        with torch.no_grad():
            twin = tiled(model)
            self._step = twin.stepper(dt_scale)
            self._fresh = twin.initial_state(1, dtype=state_dtype)
        self._every = isinstance(model, (TokenModel, Transducer))
        self._multiple = filling(model)
        self._state = map_leaves(lambda leaf: leaf[:0], self._fresh)
        self._place: dict[int, int] = {}  # where in the state each stream's row is
        self._free: list[int] = []
        self._next = 0
        self._alone = not self._independent()
        self.add(streams)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the streams, in the order they were added."""
        return tuple(self._place)

    def add(self, streams: int = 1) -> tuple[int, ...]:
        """Start streams, and return their numbers, which are never reused."""
        check_int("streams", streams, minimum=0)
        missing = streams - len(self._free)
        if missing > 0:
            rows = leaves(self._state)[0].shape[0]
            more = max(missing, rows)  # doubling keeps adding one by one cheap
            grown = [
                torch.cat([old, new.expand(more, *new.shape[1:])])
                for old, new in zip(leaves(self._state), leaves(self._fresh))
            ]
            self._state = replace_leaves(self._state, grown)
            self._free.extend(range(rows, rows + more))
        added = tuple(range(self._next, self._next + streams))
        self._next += streams
        for number in added:
            self._place[number] = self._free.pop(0)
        self.reset(added)
        return added

    def remove(self, ids: Sequence[int]) -> None:
        """Remove streams; the others are unaffected."""
        self._rows(ids)
        for number in ids:
            self._free.append(self._place.pop(number))

    def reset(self, ids: Sequence[int] | None = None) -> None:
        """Reset streams (all by default) to their initial state."""
        self._scatter(self._rows(ids), self._fresh)

    @torch.no_grad()
    def push(self, x: Tensor, ids: Sequence[int] | None = None) -> Tensor:
        """Push the next samples of streams and return the outputs.

        Args:
            x: A sample of each stream, (S, d_input) or tokens (S,); or a block of each, (S, L, d_input) or (S, L).
            ids: Their streams, each at most once; all streams in the order of :attr:`ids` by default.

        Returns:
            The answers so far (S, K). A model that answers at every position gives (S, K) for samples and (S, L, K) for
            blocks.

        Raises:
            ValueError: A sample is NaN or infinite, or so large that an answer is. No stream has changed.
        """
        rows = self._rows(ids)
        x, block = self._input(x, len(rows))
        if x.shape[1] == 0:
            raise ValueError("x must have at least one sample, got an empty block")
        outputs: list[Tensor] = []
        with one_thread(self.device):
            state = self._gather(rows)
            for t in range(x.shape[1]):
                y, state = self._all(x[:, t], state)
                if not self._every:
                    outputs.clear()  # only the last answer counts
                outputs.append(y)
        answers = self._checked(torch.stack(outputs, 1) if block and self._every else outputs[-1], x)
        self._scatter(rows, state)
        return answers

    @torch.no_grad()
    def prefill(self, x: Tensor, ids: Sequence[int] | None = None) -> Tensor:
        """Push blocks in one parallel pass: fast, and equal to ``push`` only to rounding.

        Args:
            x: A block of each stream, (S, L, d_input) or (S, L).
            ids: As in :meth:`push`.

        Returns:
            As :meth:`push`.
        """
        rows = self._rows(ids)
        x, block = self._input(x, len(rows))
        if not block:
            raise ValueError(f"x must be a block of each stream with a length, got shape {tuple(x[:, 0].shape)}")
        with few_threads(self.model, len(rows), x.shape[1]):
            y, state = self.model.prefill(x, self._gather(rows), dt_scale=self.dt_scale)
        self._checked(y, x)
        self._scatter(rows, state)
        return y

    def save(self, path: str | Path, ids: Sequence[int] | None = None) -> None:
        """Write the states of streams (all by default) to a safetensors file."""
        write_state(Path(path), leaves(self._gather(self._rows(ids))), self._kind())

    def restore(self, path: str | Path, ids: Sequence[int] | None = None) -> None:
        """Restore streams (all by default) from a file with as many streams of the same model.

        Raises:
            LoadError: A ValueError; the file is damaged, of another kind, or holds states that are not finite.
        """
        rows = self._rows(ids)
        tensors = read_state(Path(path), leaves(self._gather(rows)), self._kind())
        self._scatter(rows, replace_leaves(self._fresh, tensors))

    def _kind(self) -> str:
        config = json.dumps(self.model.config.to_dict(), sort_keys=True)
        return f"{self.model.name} {hashlib.sha256(config.encode()).hexdigest()[:16]} at dt_scale {self.dt_scale:g}"

    def _rows(self, ids: Sequence[int] | None) -> Tensor:
        numbers = list(self._place) if ids is None else list(ids)
        unknown = [number for number in numbers if number not in self._place]
        if unknown:
            raise ValueError(
                f"ids must be among those of the streams, {_first_few(list(self._place))}, got {unknown[0]!r}"
            )
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"ids must name each stream at most once, got {_first_few(numbers)}")
        return torch.tensor([self._place[number] for number in numbers], dtype=torch.int64)

    def _input(self, x: Any, streams: int) -> tuple[Tensor, bool]:
        """Convert x to blocks; also returns whether it came as blocks."""
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
        features = getattr(self.model.config, "d_input", None)
        samples = 1 if features is None else 2
        if x.ndim not in (samples, samples + 1) or len(x) != streams or (features or x.shape[-1]) != x.shape[-1]:
            width = "" if features is None else f", {features}"
            raise ValueError(
                f"x must have shape ({streams}{width}) or ({streams}, length{width}) for {streams} streams, "
                f"got {tuple(x.shape)}"
            )
        if x.is_floating_point():
            check_finite("x", x)
        block = x.ndim > samples
        return (x if block else x[:, None]).to(self.device), block

    @staticmethod
    def _checked(y: Tensor, x: Tensor) -> Tensor:
        """Return the outputs y for samples x if they are finite; a state that overflows shows in its output."""
        if x.is_floating_point() and not bool(torch.isfinite(y).all()):
            raise ValueError(
                f"x must be samples whose outputs fit in {y.dtype}, got samples up to {x.abs().max().item():g} whose "
                "outputs are NaN or infinite; no stream has changed"
            )
        return y

    def _all(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One step of any number of streams."""
        if self._alone and len(x) > 1:
            rows = [replace_leaves(state, [leaf[i : i + 1] for leaf in leaves(state)]) for i in range(len(x))]
            ys, states = zip(*(self._filled(x[i : i + 1], row) for i, row in enumerate(rows)))
            joined = [torch.cat(each) for each in zip(*(leaves(row) for row in states))]
            return torch.cat(ys), replace_leaves(state, joined)
        return self._filled(x, state)

    def _filled(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        count = len(x)
        missing = -count % self._multiple
        if not missing:
            return self._step(x, state)
        place = torch.arange(count + missing) % count  # any rows will do
        y, after = self._step(x[place.to(x.device)], map_leaves(lambda leaf: leaf[place.to(leaf.device)], state))
        return y[:count], map_leaves(lambda leaf: leaf[:count], after)

    def _gather(self, rows: Tensor) -> Any:
        return map_leaves(lambda leaf: leaf[rows.to(leaf.device)], self._state)

    def _scatter(self, rows: Tensor, state: Any) -> None:
        for into, new in zip(leaves(self._state), leaves(state), strict=True):
            into[rows.to(into.device)] = new.to(into.dtype)

    def _independent(self) -> bool:
        config, count = self.model.config, PROBE * self._multiple
        generator = torch.Generator().manual_seed(0)
        if getattr(config, "vocabulary", None) is not None:
            x = torch.randint(config.vocabulary, (count,), generator=generator)
        else:
            dtype = next(self.model.parameters()).dtype
            x = torch.randn(count, config.d_input, generator=generator, dtype=torch.float64).to(dtype)

        def drawn(leaf: Tensor) -> Tensor:
            rows = leaf.expand(count, *leaf.shape[1:])
            if not leaf.is_floating_point():
                return rows.clone()
            return torch.randn(rows.shape, generator=generator, dtype=leaf.dtype).to(leaf.device)

        with one_thread(self.device):
            return independent(self._step, x.to(self.device), map_leaves(drawn, self._fresh), self._multiple)


def _first_few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"[{shown}{', …' if len(numbers) > 5 else ''}]"
