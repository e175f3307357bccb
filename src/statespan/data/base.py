"""The form of every dataset: compact arrays, and a pure function from row numbers to a batch.

A :class:`Split` keeps its data as small arrays (pixels as bytes, samples as int16). ``take`` gathers the rows of a
batch and turns them into what a model reads, in plain torch on whatever device the arrays are. It is neither random
nor stateful, so that the trainer alone decides the order of the data.

Shapes: N rows, B batch, L length, D features, K values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from statespan._check import check_choice, check_int

Array: TypeAlias = np.ndarray  # of any shape and dtype
TASKS = ("classification", "regression", "retrieval", "language", "density", "masked", "forecast")
UNITS = ("characters", "bytes")
DTYPES = (np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.bool_)


class Batch(NamedTuple):
    """The inputs of a model and its targets.

    * ``x``: (B, L, D) real or (B, L) int64 tokens; for retrieval (2B, L), the first documents and then the second ones;
    * ``y``: targets, classes (B,) int64, values (B, K), tokens (B, L) int64 or a forecast (B, horizon, K);
    * ``lengths``: true lengths, (B,) or (2B,) int64, or None where all are full;
    * ``marks``: (B, L, M) features of the calendar, for forecasting;
    * ``gaps``: (B, L) time from the sample before to this one in units of the usual step, if samples are irregular.

    Example:
        >>> batch = Batch(x=torch.zeros(4, 100, 1), y=torch.zeros(4, dtype=torch.int64))
        >>> batch.map(lambda tensor: tensor[:2]).x.shape
        torch.Size([2, 100, 1])
    """

    x: Tensor
    y: Tensor
    lengths: Tensor | None = None
    marks: Tensor | None = None
    gaps: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with a change of every tensor in it."""
        return Batch(*(None if tensor is None else change(tensor) for tensor in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Info:
    """The facts about a dataset that models and the trainer need.

    Args:
        task: "classification", "regression", "retrieval", "language", "density", "masked" or "forecast".
        length: Length of the longest input.
        d_input: Features of a real-valued input, or None.
        vocabulary: Number of tokens of an input of tokens, or None.
        d_output: Classes, values or (language, density, masked) tokens.
        classes: Names of the classes, if they have any.
        horizon: Steps to forecast.
        d_marks: Number of calendar features.
        sampling_rate: Samples per second; None if they are not samples in time.
        unit: What a text is made of, "characters" (then ``classes`` are the texts of the tokens) or "bytes"; empty for
            anything else.

    Example:
        >>> Info("classification", length=784, d_input=1, vocabulary=None, d_output=10).d_output
        10
    """

    task: str
    length: int
    d_input: int | None
    vocabulary: int | None
    d_output: int
    classes: tuple[str, ...] = ()
    horizon: int = 0
    d_marks: int = 0
    sampling_rate: float | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        check_choice("task", self.task, TASKS)
        check_choice("unit", self.unit, ("", *UNITS))
        check_int("length", self.length, minimum=1)
        check_int("d_output", self.d_output, minimum=1)
        if (self.d_input is None) == (self.vocabulary is None):
            raise ValueError(
                f"one of d_input and vocabulary must be given, got d_input={self.d_input}, vocabulary={self.vocabulary}"
            )
        if self.classes and len(self.classes) != self.d_output:
            raise ValueError(f"classes must be {self.d_output} names, got {len(self.classes)}")

    @property
    def tokens(self) -> tuple[str, ...]:
        """The text of each token of a text in characters, which a model needs to generate text; else none."""
        return self.classes if self.unit == "characters" else ()


class Split(ABC):
    """One split of a dataset: train, valid or test.

    Attributes:
        arrays: The data by name, as small as it can be kept; some may be memory maps.

    Example:
        >>> class Ones(Split):
        ...     arrays = {"y": np.arange(10)}
        ...     def __len__(self):
        ...         return 10
        ...     def take(self, arrays, index):
        ...         return Batch(torch.ones(len(index), 50, 1), arrays["y"][index])
        >>> Ones().batch([3, 1]).y
        tensor([3, 1])
    """

    arrays: dict[str, Array]

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @property
    def lengths(self) -> Array | None:
        """The true length of each row (for a pair, of the longer sequence); None if all rows are full."""
        lengths = self.arrays.get("lengths")
        return None if lengths is None else lengths.reshape(len(lengths), -1).max(1).astype(np.int64)

    @abstractmethod
    def take(self, arrays: Mapping[str, Tensor], index: Tensor) -> Batch:
        """The batch of these rows, ready for a model: a pure function.

        The arrays are what :meth:`tensors` gave, on any device, and the row numbers (B,) are int64 on the same one.
        """

    def tensors(self, device: torch.device | str | None = None) -> dict[str, Tensor]:
        """The arrays as tensors; on the CPU they share the arrays' memory where that can be written to."""
        return {name: _tensor(array).to(device) for name, array in self.arrays.items()}

    def batch(self, index: Tensor | list[int]) -> Batch:
        """The batch of these rows on the CPU, to inspect the data."""
        return self.take(self.tensors(), torch.as_tensor(index, dtype=torch.int64))


class Arrays(Split):
    """Row i of the data is row i of every array.

    Args:
        arrays: Arrays with N rows each.
        prepare: Function from the gathered rows {name: (B, …)} to a :class:`Batch`; a function of a module or a small
            dataclass that can be called, without a state.

    Example:
        >>> def prepare(rows):
        ...     return Batch(rows["x"].float() / 255, rows["y"].long())
        >>> split = Arrays({"x": np.full((3, 5, 1), 255, np.uint8), "y": np.arange(3, dtype=np.uint8)}, prepare)
        >>> len(split), split.batch([2, 0]).y, split.batch([1]).x.shape
        (3, tensor([2, 0]), torch.Size([1, 5, 1]))
    """

    def __init__(self, arrays: Mapping[str, Array], prepare: Callable[[dict[str, Tensor]], Batch]) -> None:
        self.arrays = _check_arrays(arrays)
        counts = {name: len(array) for name, array in self.arrays.items()}
        if len(set(counts.values())) != 1:
            raise ValueError(f"arrays must all have the same number of rows, got {counts}")
        self.prepare = prepare

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def take(self, arrays: Mapping[str, Tensor], index: Tensor) -> Batch:
        """Gather the rows and prepare them; see :meth:`Split.take`."""
        return self.prepare({name: array[index] for name, array in arrays.items()})


class Windows(Split):
    """Row i of the data is a window of long arrays: of a series, a text, or concatenated documents.

    Args:
        arrays: Long arrays (T, …), all of the same T.
        starts: First position of each window, (N,); or (N, W) for rows that have W windows each.
        length: Length of a window. Beyond the end of the arrays the last entry repeats: ``prepare`` must mask it.
        prepare: Function from {name: (B, length, …)} (or (B, W, length, …)) and the rows of ``each`` to a
            :class:`Batch`.
        each: Arrays with one row for each window or row, such as labels and true lengths.

    Example:
        >>> def prepare(rows):
        ...     return Batch(rows["text"][:, :-1].long(), rows["text"][:, 1:].long())
        >>> split = Windows({"text": np.arange(10, dtype=np.int16)}, starts=np.array([0, 4]), length=5, prepare=prepare)
        >>> split.batch([1])
        Batch(x=tensor([[4, 5, 6, 7]]), y=tensor([[5, 6, 7, 8]]), lengths=None, marks=None, gaps=None)
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        *,
        starts: Array,
        length: int,
        prepare: Callable[[dict[str, Tensor]], Batch],
        each: Mapping[str, Array] | None = None,
    ) -> None:
        each = dict(each or {})
        if clash := {"starts"} & ({*arrays, *each}) or {*arrays} & {*each}:
            raise ValueError(f"arrays and each must not share names, got {sorted(clash)} twice")
        counts = {name: len(array) for name, array in arrays.items()}
        if len(set(counts.values())) != 1:
            raise ValueError(f"arrays must all have the same number of entries, got {counts}")
        if wrong := {name: len(array) for name, array in each.items() if len(array) != len(starts)}:
            raise ValueError(f"each must have {len(starts)} rows, one for each of starts, got {wrong}")
        if len(starts) and not (starts.min() >= 0 and starts.max() < next(iter(counts.values()))):
            raise ValueError(f"starts must lie inside the arrays, got {starts.min()} … {starts.max()} for {counts}")
        self.arrays = _check_arrays({**arrays, **each, "starts": np.ascontiguousarray(starts, dtype=np.int64)})
        self.length = check_int("length", length, minimum=1)
        self.long = tuple(arrays)
        self.prepare = prepare

    def __len__(self) -> int:
        return len(self.arrays["starts"])

    def take(self, arrays: Mapping[str, Tensor], index: Tensor) -> Batch:
        """Gather the windows and prepare them; see :meth:`Split.take`."""
        rows = {name: array[index] for name, array in arrays.items() if name not in self.long}
        position = rows.pop("starts")[..., None] + torch.arange(self.length, device=index.device)
        for name in self.long:
            rows[name] = arrays[name][position.clamp(max=len(arrays[name]) - 1)]
        return self.prepare(rows)


@dataclass(frozen=True)
class Raw:
    """Converts recorded series to rows of the arrays, if the two differ.

    Example:
        >>> Raw((1, 0), (1.0,), (2.0,))(np.array([[[3.0], [5.0]]])).tolist()
        [[[2.0], [1.0]]]
    """

    order: tuple[int, ...] = ()  # in which positions are read; empty for the order of time
    mean: tuple[float, ...] = ()  # (D,), subtracted from each feature; empty for 0
    std: tuple[float, ...] = ()  # (D,), divisor of each feature after that

    def __call__(self, x: Array) -> Array:
        """Series (B, L, D) as rows of the arrays."""
        x = reordered(x, self.order)
        return ((x - np.array(self.mean)) / np.array(self.std)).astype(np.float32) if self.mean else x


def reordered(x: Array, order: tuple[int, ...]) -> Array:
    """Series (B, L, D) with their positions in another order; an empty one changes nothing."""
    if order and x.shape[1] != len(order):
        raise ValueError(f"series must have length {len(order)}, got {x.shape[1]}")
    return x[:, list(order)] if order else x


@dataclass(frozen=True)
class Dataset:
    """Three splits and their description.

    ``raw`` converts a recorded series to a row of the arrays, if these were transformed. ``augment`` changes a training
    batch at random with the given generator, on the batch's device; validation and test data are never augmented.
    ``note`` says in one line what a user should know before training.

    Example:
        >>> split = Arrays({"x": np.zeros((10, 50, 1))}, lambda rows: Batch(rows["x"].float(), rows["x"][:, 0].float()))
        >>> info = Info(task="regression", length=50, d_input=1, vocabulary=None, d_output=1)
        >>> dataset = Dataset("mine", info, train=split, valid=split, test=split)
        >>> len(dataset.train), dataset.train.batch([0, 1]).x.shape
        (10, torch.Size([2, 50, 1]))
    """

    name: str
    info: Info
    train: Split
    valid: Split
    test: Split
    augment: Callable[[Batch, torch.Generator], Batch] | None = None
    raw: Raw | None = None
    note: str = ""


def trim(batch: Batch, length: int) -> Batch:
    """The batch cut to the first ``length`` positions, for example to drop padding that all rows share.

    Example:
        >>> trim(Batch(torch.ones(2, 5, 1), torch.zeros(2), torch.tensor([2, 3])), 3).x.shape
        torch.Size([2, 3, 1])
    """
    marks = None if batch.marks is None else batch.marks[:, :length]
    # a target at every position, not the values of a whole row
    is_dense = batch.y.ndim == 2 and not batch.y.is_floating_point()
    y = batch.y[:, :length] if is_dense else batch.y
    gaps = None if batch.gaps is None else batch.gaps[:, :length]
    return batch._replace(x=batch.x[:, :length], y=y, marks=marks, gaps=gaps)


def _check_arrays(arrays: Mapping[str, Array]) -> dict[str, Array]:
    if not arrays:
        raise ValueError("arrays must have at least one entry, got none")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim == 0:
            raise TypeError(f"arrays[{name!r}] must be a numpy array with rows, got {type(array).__name__}")
        if array.dtype not in DTYPES:
            raise TypeError(f"arrays[{name!r}] must have a dtype that torch can index, got {array.dtype}")
    return dict(arrays)


def _tensor(array: Array) -> Tensor:
    """A tensor that shares the array's memory; read-only arrays, for which torch would warn, are copied."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
