"""Prepares recorded series as model inputs: as the dataset does, or as stored beside the weights.

A trained model is used where its training data is missing. Most datasets only reorder positions and scale each
feature; then these few numbers are all that has to be stored.

Shapes: B batch, L length, D features, K classes or values.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statespan.data.base import Batch, Dataset, Split, reordered
from statespan.data.scale import ScaledInfo

MOST_NAMES = 1000  # names of classes that are stored; a language has more words
WHOLE = 2.0**15  # audio as whole numbers of 16 bits, over audio in [-1, 1)


@dataclass(frozen=True)
class Scaled:
    """A permutation of positions, and an affine map of each feature.

    Example:
        >>> scaled = Scaled(scale=(2.0,), shift=(-1.0,))
        >>> scaled(np.array([[[0.0], [0.5], [1.0]]])).x.flatten()
        tensor([-1.,  0.,  1.])
    """

    scale: tuple[float, ...]  # (D,)
    shift: tuple[float, ...]  # (D,)
    order: tuple[int, ...] = ()  # in which positions are read; empty for the order of time

    def __call__(self, x: np.ndarray) -> Batch:
        """Series (B, L, D) as a batch."""
        scaled = reordered(x, self.order).astype(np.float64) * np.array(self.scale) + np.array(self.shift)
        return Batch(torch.from_numpy(scaled.astype(np.float32)), torch.zeros(len(x)))


@dataclass(frozen=True)
class Preparation:
    """What a model's inputs and answers are: the preparation of recorded series, class names and units.

    Example:
        >>> info = ScaledInfo("classification", 4, 1, None, 2, ("low", "high"))
        >>> inputs = Preparation(info, False, Scaled((0.01,), (-5.0,)))
        >>> inputs([[400.0], [600.0]])
        tensor([[[-1.],
                 [ 1.]]])
        >>> inputs.answers(torch.tensor([[0.2, 0.7]]))
        ['high']
    """

    info: Any  # facts about the data, names and units of the answers included
    whole: bool  # whether audio is read as whole numbers of 16 bits
    prepare: Callable[[np.ndarray], Batch] | None  # series (B, L, D) to a batch; None if unknown

    @property
    def scaled(self) -> Scaled | None:
        """The preparation as numbers, if it is no more than a permutation and a scaling."""
        return self.prepare if isinstance(self.prepare, Scaled) else None

    def __call__(self, x: Any) -> Tensor:
        """Recorded series, an array or tensor (L, D) or (B, L, D), as the input of a model (B, L, D).

        Series are recorded as in the files of the training data. Where that was audio of 16 bits, floats are audio in
        [-1, 1), and integers the whole numbers.
        """
        place = x.device if isinstance(x, Tensor) else None
        series = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        if series.ndim not in (2, 3) or series.shape[-1] != self.info.d_input or series.dtype.kind not in "iuf":
            wanted = f"(L, {self.info.d_input}) or (B, L, {self.info.d_input})"
            raise ValueError(f"x must be series {wanted} of numbers, got {series.dtype} {series.shape}")
        if self.prepare is None:
            raise ValueError("the inputs of this model are more than scaled series; only its dataset can prepare them")
        factor = WHOLE if self.whole and series.dtype.kind == "f" else 1.0
        series = (series if series.ndim == 3 else series[None]).astype(np.float32) * np.float32(factor)
        prepared = self.prepare(series).x
        return prepared if place is None else prepared.to(place)

    def answers(self, y: Tensor) -> Any:
        """Outputs (B, K) as the names of the likeliest classes (B,), or as float64 values (B, K) in their own units."""
        if self.info.task == "classification":
            names = answer_names(self.info)
            return [names[number] for number in y.argmax(-1).tolist()]
        mean, std = (getattr(self.info, name, ()) for name in ("target_mean", "target_std"))
        y = y.double()
        return y * y.new_tensor(std) + y.new_tensor(mean) if std else y

    def to_json(self) -> dict[str, Any]:
        """The content for :func:`from_json`: ``prepare`` is None if :class:`Scaled` cannot express the preparation."""
        names = {field.name for field in dataclasses.fields(ScaledInfo)}
        info = {key: _plain(value) for key, value in vars(self.info).items() if key in names}
        if len(info["classes"]) > MOST_NAMES:
            info["classes"] = []
        prepare = None if self.scaled is None else _plain(dataclasses.asdict(self.scaled))
        return {"info": info, "whole": self.whole, "prepare": prepare}


def of_dataset(dataset: Dataset) -> Preparation:
    """The preparation that a dataset applies to its own rows."""
    split: Any = next((part for part in (dataset.test, dataset.valid) if len(part)), dataset.train)
    whole = "x" in split.arrays and split.arrays["x"].dtype == np.int16

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

    series = dataset.info.d_input is not None and "x" in split.arrays and dataset.info.task != "forecast"
    return Preparation(dataset.info, bool(whole), prepare if series else None)


def answer_names(info: Any) -> list[str]:
    """Names of the classes or values that a model predicts."""
    columns = getattr(info, "columns", ())
    if info.task == "classification":
        return list(info.classes) or [str(number) for number in range(info.d_output)]
    return list(columns) or (["value"] if info.d_output == 1 else [f"value_{i}" for i in range(info.d_output)])


def portable(dataset: Dataset) -> Preparation:
    """The preparation of a dataset as far as it can be stored with a model, to be used without the data."""
    inputs = of_dataset(dataset)
    return dataclasses.replace(inputs, prepare=_fitted(dataset, inputs))


def to_json(dataset: Dataset) -> dict[str, Any]:
    """The content of the file that is stored beside the weights of a model; see :func:`portable`."""
    return portable(dataset).to_json()


class Rescaled(Split):
    """A split with the scaling of other data, that on which a model was trained.

    Example:
        >>> from statespan.data import Arrays
        >>> split = Arrays({"x": np.ones((3, 5, 1), np.float32)}, lambda rows: Batch(rows["x"], rows["x"][:, 0]))
        >>> own, trained = (Preparation(None, False, Scaled((scale,), (0.0,))) for scale in (1.0, 2.0))
        >>> Rescaled(split, own, trained).batch([0]).x.flatten()
        tensor([2., 2., 2., 2., 2.])
    """

    def __init__(self, split: Split, own: Preparation, trained: Preparation) -> None:
        assert own.scaled is not None
        assert trained.scaled is not None
        self.split, self.arrays = split, split.arrays
        scale, shift = (np.array(numbers) for numbers in (own.scaled.scale, own.scaled.shift))
        self.factor = np.array(trained.scaled.scale) / scale  # (D,)
        self.offset = np.array(trained.scaled.shift) - shift * self.factor
        self.targets = [(getattr(p.info, "target_mean", ()), getattr(p.info, "target_std", ())) for p in (own, trained)]

    def __len__(self) -> int:
        return len(self.split)

    def take(self, arrays: Mapping[str, Tensor], index: Tensor) -> Batch:
        """The batch of these rows; see :meth:`Split.take`."""
        batch = self.split.take(arrays, index)
        x, y = batch.x, batch.y
        wide = x.double() * x.new_tensor(self.factor, dtype=torch.float64)
        scaled = (wide + x.new_tensor(self.offset, dtype=torch.float64)).to(x.dtype)
        if batch.lengths is not None:  # padding stays 0
            inside = torch.arange(x.shape[1], device=x.device) < batch.lengths[:, None]
            scaled = torch.where(inside[..., None], scaled, 0.0)
        for (mean, std), invert in zip(self.targets, (True, False)):
            if std:
                mean, std = (y.new_tensor(numbers, dtype=torch.float64) for numbers in (mean, std))
                y = y.double() * std + mean if invert else (y.double() - mean) / std
        return batch._replace(x=scaled, y=y.to(batch.y.dtype))


def as_trained(dataset: Dataset, trained: Preparation | None) -> Dataset:
    """A dataset with the scaling of a model's training data in place of its own, if the two differ and are known.

    Raises:
        ValueError: The classes are others.
    """
    own = portable(dataset)
    if trained is None or trained.scaled is None or own.scaled is None:
        return dataset
    if trained.info.classes and own.info.classes != trained.info.classes:
        expected, actual = (", ".join(info.classes[:6]) for info in (trained.info, own.info))
        raise ValueError(f"the classes must be those of the training data, {expected}, got {actual}")
    targets: dict[str, Any] = {name: getattr(trained.info, name, ()) for name in ("target_mean", "target_std")}
    if own.scaled == trained.scaled and all(getattr(own.info, name, ()) == value for name, value in targets.items()):
        return dataset
    info = dataclasses.replace(dataset.info, **targets) if isinstance(dataset.info, ScaledInfo) else dataset.info
    train, valid, test = (Rescaled(part, own, trained) for part in (dataset.train, dataset.valid, dataset.test))
    return dataclasses.replace(dataset, info=info, train=train, valid=valid, test=test)


def from_json(content: Any) -> Preparation:
    """The inverse of :meth:`Preparation.to_json`; a ValueError if the content is anything else."""
    try:
        info = ScaledInfo(**{key: _tuple(value) for key, value in content["info"].items()})
        stored = content["prepare"]
        prepare = None if stored is None else Scaled(**{key: _tuple(value) for key, value in stored.items()})
        if prepare is not None and not len(prepare.scale) == len(prepare.shift) == info.d_input:
            raise ValueError(f"scale and shift must have {info.d_input} numbers")
        return Preparation(info, bool(content["whole"]), prepare)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"inputs must be what was saved: {error}") from error


def read(path: Path) -> Preparation:
    """The inputs in a file beside the weights of a model."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _fitted(dataset: Dataset, inputs: Preparation) -> Scaled | None:
    """The dataset's own preparation as :class:`Scaled`, if it is of that form; tested where its results are near 0."""
    if inputs.prepare is None:
        return None
    shape = (1, dataset.info.length, dataset.info.d_input or 1)
    order = dataset.raw.order if dataset.raw is not None else ()
    try:
        scale, shift = _affine(inputs.prepare, shape)
        noise = np.random.default_rng(0).normal(size=shape)
        x = ((noise - shift) / scale).astype(np.float32)
        expected, scaled = inputs.prepare(x).x, Scaled(tuple(scale.tolist()), tuple(shift.tolist()), order)
        actual = scaled(x).x
    except Exception:  # a function of any package, which may refuse what is not its own data
        return None
    if expected.shape != actual.shape or not np.isfinite(scale).all():
        return None
    return scaled if bool((expected - actual).abs().max() <= 1e-5 * (1 + expected.abs().max())) else None


def _affine(prepare: Callable[[np.ndarray], Batch], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift (D,) of a preparation, provided that it is affine.

    It is called with float64, which most keep. The scale comes from values so large that the shift does not matter: the
    difference of two results near a large shift would have few digits.
    """

    def at(value: float) -> np.ndarray:
        return prepare(np.full(shape, value)).x[0, 0].double().numpy()

    shift, value = at(0.0), 1.0
    scale = at(value) - shift
    while value < 2.0**60 and (np.abs(scale * value) < 2.0**10 * np.abs(shift)).any():
        value *= 2.0**10
        scale = (at(value) - shift) / value
    return scale, shift


def _plain(value: Any) -> Any:
    """Values of JSON, where a plug-in may have those of numpy."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, np.ndarray)):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
