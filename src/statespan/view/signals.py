"""Signals for a model: generated ones, and those in uploaded files.

Shapes: L length, D features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from statespan.data.formats.samples import decode_sample
from statespan.view.fields import Fields, RefusedError
from statespan.view.limits import MOST_VALUES

KINDS = ("sine", "chirp", "noise", "impulse", "step")
FILES = {"audio/wav": ".wav", "text/csv": ".csv"}
FIRST = 8  # position of the impulse and of the step, so that what comes before is seen


def generated(content: dict[str, Any], features: int) -> np.ndarray[Any, Any]:
    """A signal (L, D): the same in all features, except for noise.

    Example:
        >>> generated({"kind": "impulse", "length": 10, "amplitude": 2.0}, 1)[7:, 0].tolist()
        [0.0, 2.0, 0.0]
    """
    fields = Fields(content, "kind", "length", "frequency", "amplitude", "offset", "seed")
    kind = fields.choice("kind", "sine", KINDS)
    length = fields.integer("length", 256, least=1, most=MOST_VALUES // features)
    frequency = fields.number("frequency", 0.02, least=0.0, most=0.5)
    amplitude = fields.number("amplitude", 1.0, least=0.0, most=1e6)
    offset = fields.number("offset", 0.0, least=-1e6, most=1e6)
    t = np.arange(length, dtype=np.float64)
    if kind == "noise":
        random = np.random.default_rng(fields.integer("seed", 0, least=0, most=2**31 - 1))
        return random.normal(size=(length, features)) * amplitude + offset
    if kind == "sine":
        wave = np.sin(2 * np.pi * frequency * t)
    elif kind == "chirp":  # from 0 to the frequency
        wave = np.sin(np.pi * frequency * t**2 / length)
    else:
        wave = (t == FIRST if kind == "impulse" else t >= FIRST).astype(np.float64)
    return np.repeat(wave[:, None], features, 1) * amplitude + offset


def uploaded(kind: str, content: bytes, features: int) -> tuple[np.ndarray[Any, Any], float | None]:
    """The signal (L, D) of a WAV or CSV file, and its sampling rate if the file has one."""
    separators = sum(content.count(mark) for mark in (b"\n", b"\r", b",")) if kind == "text/csv" else 0
    if separators > 2 * MOST_VALUES:  # counted before millions of rows are made
        raise RefusedError(f"the file must have at most {MOST_VALUES} values, got about {separators}", 413)
    try:
        samples, rate = decode_sample(FILES[kind], content)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    if samples.size > MOST_VALUES:
        raise RefusedError(f"the file must have at most {MOST_VALUES} values, got {samples.size}", 413)
    if samples.shape[1] != features:
        columns = ("channel" if kind == "audio/wav" else "column") + "s" * (features != 1)
        raise RefusedError(f"the file must have {features} {columns}, as the model reads, got {samples.shape[1]}")
    return samples.astype(np.float64), rate
