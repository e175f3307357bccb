"""ClientStreams of clients through one model: unguessable ids, a bounded number, closed when idle.

Shapes: L samples of a push, D features, K outputs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statespan.generation import Stream
from statespan.models import Classifier
from statespan.models.tokens import TokenModel
from statespan.view.fields import RefusedError
from statespan.view.limits import IDLE_SECONDS, MOST_STREAMS


@dataclass
class Running:
    """A client's stream.

    Example:
        >>> from statespan import models
        >>> options = {"d_input": 1, "d_output": 2, "d_model": 4, "d_state": 4, "n_layers": 1, "bidirectional": False}
        >>> Running(Stream(models.build("classifier", options=options).eval()), used=0.0).samples
        0
    """

    stream: Stream
    used: float  # when, on the clock of its owner
    samples: int = 0


class ClientStreams:
    """The streams of a server. A client's outputs have the same bits whatever others do meanwhile.

    Args:
        model: In evaluation mode.
        most: ClientStreams at a time.
        idle: Seconds after which an unused stream is closed.
        clock: Seconds, from any start.

    Example:
        >>> from statespan import models
        >>> options = {"d_input": 1, "d_output": 2, "d_model": 4, "d_state": 4, "n_layers": 1, "bidirectional": False}
        >>> streams = ClientStreams(models.build("classifier", options=options).eval())
        >>> name = streams.open()
        >>> count, outputs = streams.push(name, [[0.5], [0.25]])
        >>> count, len(outputs), len(outputs[0])
        (2, 2, 2)
    """

    def __init__(
        self,
        model: Any,
        *,
        most: int = MOST_STREAMS,
        idle: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.most, self.idle, self.clock = model, most, idle, clock
        self.running: dict[str, Running] = {}

    def open(self, dt_scale: float = 1.0) -> str:
        """Start a stream and return its id."""
        self._expire()
        if len(self.running) >= self.most:
            raise RefusedError(f"there are {self.most} streams already; close one, or wait until one expires", 429)
        name = secrets.token_urlsafe(16)
        self.running[name] = Running(Stream(self.model, dt_scale=dt_scale), self.clock())
        return name

    def push(self, name: str, samples: list[list[float]], every: int = 1) -> tuple[int, list[list[float]]]:
        """Push samples (L, D): the number of samples so far, and an output (K,) after each ``every`` of them.

        With ``every=1`` each sample is a step; otherwise blocks take one parallel pass each.
        """
        running = self._find(name)
        x = prepared(self.model, torch.tensor(samples, dtype=torch.float32))
        outputs = []
        for block in x.split(every):
            try:
                y = running.stream.push(block) if every == 1 else running.stream.prefill(block[None])
            except ValueError as error:  # samples whose outputs are not finite
                raise RefusedError(f"sample {running.samples}: {error}") from None
            outputs.append(answers(self.model, y[:, -1] if y.ndim == 3 else y)[0].tolist())
            running.samples += len(block)
        return running.samples, outputs

    def close(self, name: str) -> None:
        """End a stream."""
        self._find(name)
        del self.running[name]

    def _find(self, name: str) -> Running:
        self._expire()
        if name not in self.running:
            raise RefusedError("there is no such stream; it was closed, or expired", 404)
        self.running[name].used = self.clock()
        return self.running[name]

    def _expire(self) -> None:
        now = self.clock()
        for name in [name for name, each in self.running.items() if now - each.used > self.idle]:
            del self.running[name]


def obstacle(model: Any) -> str | None:
    """Why signals cannot be streamed through a model; None if they can."""
    if isinstance(model, TokenModel) or getattr(model.config, "vocabulary", None) is not None:
        return "This model reads tokens, not signals: see statespan generate and statespan stream."
    scaled = None if model.inputs is None else model.inputs.scaled
    if scaled is not None and scaled.order:
        return "This model reads the positions of a series in an order of its own, not as they arrive."
    try:
        Stream(model)
    except (TypeError, ValueError) as error:
        return f"This model cannot stream: {error}."
    return None


def prepared(model: Any, x: Tensor) -> Tensor:
    """Recorded samples (L, D) as inputs (L, D): scaled as the training data was, or unchanged if that is unknown."""
    if model.inputs is not None and model.inputs.scaled is not None:
        try:
            x = model.inputs(x)[0]
        except ValueError as error:
            raise RefusedError(str(error)) from None
    x = x.to(next(model.parameters()).dtype)
    if not bool(torch.isfinite(x).all()):
        raise RefusedError("samples must be finite after scaling, got samples that overflow")
    return x


def answers(model: Any, y: Tensor) -> Tensor:
    """Outputs (B, K) as probabilities of classes, or as values in their own units."""
    if isinstance(model, Classifier):
        return y.double().softmax(-1)
    y = y.double()
    if model.inputs is None:
        return y
    mean, std = (getattr(model.inputs.info, name, ()) for name in ("target_mean", "target_std"))
    return y * y.new_tensor(std) + y.new_tensor(mean) if std else y
