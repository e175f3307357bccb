"""Prepares recorded series as model inputs: as the dataset does, or as stored beside the weights.

A published model is used where its training data is missing. Most datasets only reorder positions and scale each
feature; then these few numbers are all that has to be stored.

Shapes: B batch, L length, D features.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statespan.data.base import Batch, Dataset, reordered
from statespan.data.scale import ScaledInfo

MOST_NAMES = 1000  # names of classes that are stored; a language has more words


@dataclass(frozen=True)
class Preparation:
    """The preparation of series."""

    info: Any  # facts about the data, names and units of the answers included
    whole: bool  # whether audio is read as whole numbers of 16 bits
    prepare: Callable[[np.ndarray], Batch] | None  # series (B, L, D) to a batch; None if unknown


@dataclass(frozen=True)
class Scaled:
    """A permutation of positions, and an affine map of each feature."""

    scale: tuple[float, ...]  # (D,)
    shift: tuple[float, ...]  # (D,)
    order: tuple[int, ...] = ()  # in which positions are read; empty for the order of time

    def __call__(self, x: np.ndarray) -> Batch:
        """Series (B, L, D) as a batch."""
        scaled = reordered(x, self.order).astype(np.float64) * np.array(self.scale) + np.array(self.shift)
        return Batch(torch.from_numpy(scaled.astype(np.float32)), torch.zeros(len(x)))


def of_dataset(dataset: Dataset) -> Preparation:
    """The preparation that a dataset applies to its own rows."""
    whole = "x" in dataset.test.arrays and dataset.test.arrays["x"].dtype == np.int16
    split: Any = dataset.test

    def prepare(x: np.ndarray) -> Batch:
        x = x if dataset.raw is None else dataset.raw(x)
        first = split.batch([0])
        rows: dict[str, Any] = {"x": torch.from_numpy(x), "y": torch.zeros(len(x), *first.y.shape[1:])}
        stored = split.arrays["x"].ndim - (0 if len(split.arrays["x"]) == len(split) else -1)
        if stored == 2:  # rows without an axis for their one feature
            rows["x"] = rows["x"][..., 0]
        if "lengths" in split.arrays:
            rows["lengths"] = torch.full((len(x),), x.shape[1])
        if "y" in split.arrays:
            rows["y"] = torch.zeros(len(x), *split.arrays["y"].shape[1:])
        return split.prepare(rows)

    series = dataset.info.d_input is not None and "x" in dataset.test.arrays and dataset.info.task != "forecast"
    return Preparation(dataset.info, bool(whole), prepare if series else None)


def answer_names(info: Any) -> list[str]:
    """Names of the classes or values that a model predicts."""
    columns = getattr(info, "columns", ())
    if info.task == "classification":
        return list(info.classes) or [str(number) for number in range(info.d_output)]
    return list(columns) or (["value"] if info.d_output == 1 else [f"value_{i}" for i in range(info.d_output)])


def to_json(dataset: Dataset) -> dict[str, Any]:
    """The content for :func:`read`: ``prepare`` is None if :class:`Scaled` cannot express the preparation."""
    inputs = of_dataset(dataset)
    info = dataclasses.asdict(inputs.info)
    if len(info["classes"]) > MOST_NAMES:
        info["classes"] = ()
    scaled = _fitted(dataset, inputs)
    return {"info": info, "whole": inputs.whole, "prepare": None if scaled is None else dataclasses.asdict(scaled)}


def read(path: Path) -> Preparation:
    """The inputs stored beside the weights of a published model, if they are what :func:`to_json` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        info = ScaledInfo(**{key: _tuple(value) for key, value in content["info"].items()})
        stored = content["prepare"]
        prepare = None if stored is None else Scaled(**{key: _tuple(value) for key, value in stored.items()})
        return Preparation(info, bool(content["whole"]), prepare)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _fitted(dataset: Dataset, inputs: Preparation) -> Scaled | None:
    """The dataset's own preparation as :class:`Scaled`, if it is of that form; tested on zeros, ones and noise."""
    if inputs.prepare is None:
        return None
    order = dataset.raw.order if dataset.raw is not None else ()
    shape = (1, dataset.info.length, dataset.info.d_input or 1)
    zeros, ones = (inputs.prepare(np.full(shape, value, np.float32)).x[0].double() for value in (0.0, 1.0))
    scaled = Scaled(tuple((ones - zeros)[0].tolist()), tuple(zeros[0].tolist()), order)
    noise = np.random.default_rng(0).normal(size=shape).astype(np.float32) * (2**10 if inputs.whole else 1)
    expected, actual = inputs.prepare(noise).x, scaled(noise).x
    tolerance = 1e-5 * (1 + expected.abs().max())
    matches = expected.shape == actual.shape and bool((expected - actual).abs().max() <= tolerance)
    return scaled if matches else None


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
