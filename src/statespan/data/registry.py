"""Datasets by name: those of the library, and those that installed packages and users register."""

from __future__ import annotations

import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from statespan._registry import Registry
from statespan._suggest import suggest
from statespan.data.base import Dataset
from statespan.data.cache import watched
from statespan.data.download import Progress
from statespan.data.source import Source, fetch, found, missing

Loader = TypeVar("Loader", bound=Callable[..., Dataset])


@dataclass(frozen=True)
class DatasetEntry:
    """A registered dataset: its loader, a one-line summary, its files and their folder.

    Example:
        >>> own = entry("own")
        >>> own.name, own.options["task"]
        ('own', 'classification')
    """

    name: str
    summary: str
    files: tuple[Source, ...]
    folder: str
    loader: Callable[..., Dataset]
    config: Callable[..., Any] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Names and default values of the options."""
        return {p.name: p.default for p in self.parameters}

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """The options as they are declared: keyword-only parameters of the config class or of the loader."""
        declared = inspect.signature(self.config or self.loader).parameters.values()
        return [p for p in declared if p.kind is p.KEYWORD_ONLY]

    def place(self, folder: Path) -> Path:
        """The dataset's folder: its subfolder of the data folder, or that folder itself if it holds the files."""
        inside = folder / self.folder
        return inside if inside.is_dir() or not found(self.files, folder) else folder


@dataclass(frozen=True)
class Status:
    """Which files of a dataset exist.

    Example:
        >>> from statespan import data
        >>> state = {each.name: each for each in data.status()}["digits"]
        >>> state.ready, state.missing
        (True, ())
    """

    name: str
    summary: str
    folder: Path  # where its files belong
    ready: bool  # whether it can be loaded without a download
    found: tuple[Path, ...]  # its existing files
    missing: tuple[Source, ...]  # required files; source.describe says how to get them
    optional: tuple[Source, ...]  # missing files that it does without


def _check_dataset(name: str, item: Any) -> None:
    if not callable(item.loader):
        raise TypeError(f"a loader must be a function, got {item.loader!r}")


REGISTRY: Registry[DatasetEntry] = Registry("dataset", "statespan.datasets", check=_check_dataset, by_module=True)


def register_dataset(
    name: str,
    summary: str,
    *,
    files: Sequence[Source] = (),
    folder: str | None = None,
    config: Callable[..., Any] | None = None,
) -> Callable[[Loader], Loader]:
    """Register a loader: ``load(folder, *, option: type = default, …)``, or ``load(folder, config)``.

    Installed packages name the module with the loader in the entry-point group ``statespan.datasets``.

    Args:
        name: Name of the dataset.
        summary: What it is, in one line.
        files: The files it is read from. All that are not optional exist when the loader is called.
        folder: Name of its subfolder of the data folder; the dataset's name by default. The loader gets the full path.
        config: A dataclass whose keyword-only fields are the options, for loaders that have many or share them.
    """

    def add(loader: Loader) -> Loader:
        REGISTRY.register(name, DatasetEntry(name, summary, tuple(files), folder or name, loader, config))
        return loader

    return add


def data_folder(folder: Path | str | None = None) -> Path:
    """The folder of all datasets: the one given, ``STATESPAN_DATA``, or ~/.cache/statespan/data."""
    location = folder or os.environ.get("STATESPAN_DATA") or Path("~/.cache/statespan/data")
    return Path(location).expanduser()


def names() -> list[str]:
    """The names of all datasets, including those of installed plug-ins.

    Example:
        >>> import statespan.data
        >>> "smnist" in statespan.data.names()
        True
    """
    return sorted(REGISTRY.names())


def entry(name: str) -> DatasetEntry:
    """The registered dataset of this name."""
    return REGISTRY.find(name)


def load(name: str, folder: Path | str | None = None, *, progress: Progress | None = None, **options: Any) -> Dataset:
    """Load a dataset.

    Args:
        name: One of :func:`names`.
        folder: The data folder; ``STATESPAN_DATA`` or ~/.cache/statespan/data if not given.
        progress: Called with (name, bytes done, bytes in all or None) while something is downloaded or generated.
        **options: The dataset's own.

    Returns:
        The dataset with its three splits.

    Raises:
        MissingData: Files are missing and cannot be downloaded; the message says which files belong where.
        ValueError: The name or an option is unknown, or an option's value is not allowed.
    """
    dataset = entry(name)
    check_options(dataset, options)
    place = dataset.place(data_folder(folder))
    fetch(name, dataset.files, place, progress)
    with watched(progress):
        return dataset.loader(place, dataset.config(**options)) if dataset.config else dataset.loader(place, **options)


def status(folder: Path | str | None = None) -> list[Status]:
    """What exists of every dataset in the data folder, what is missing and how to get it."""
    statuses = []
    for name in names():
        dataset = entry(name)
        place = dataset.place(data_folder(folder))
        existing, required = tuple(found(dataset.files, place)), tuple(missing(dataset.files, place))
        optional = tuple(source for source in dataset.files if source.optional and source.find(place) is None)
        statuses.append(Status(name, dataset.summary, place, not required, existing, required, optional))
    return statuses


def check_options(dataset: DatasetEntry, options: Mapping[str, Any]) -> None:
    """Reject options that the dataset does not have, and values of the wrong type."""
    allowed = {parameter.name: parameter for parameter in dataset.parameters}
    hints = typing.get_type_hints(dataset.config or dataset.loader)
    for key, value in options.items():
        if key not in allowed:
            have = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in allowed.values()]
            hint = f"{suggest(key, allowed)} (options: {', '.join(have) or 'none'})"
            raise ValueError(f"dataset {dataset.name!r} has no option {key!r}{hint}")
        if not _fits(value, hints[key]):
            wanted = getattr(hints[key], "__name__", str(hints[key]))
            raise TypeError(
                f"option {key} of dataset {dataset.name!r} must be {wanted}, got {type(value).__name__} {value!r}"
            )
    needed = [p.name for p in allowed.values() if p.default is p.empty and p.name not in options]
    if needed:
        raise ValueError(f"dataset {dataset.name!r} needs the option {needed[0]!r}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value matches an annotation: plain types, optional ones, and tuples or lists of them."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in inner)
    if origin in (tuple, list, Sequence):
        return isinstance(value, (tuple, list)) and all(_fits(v, inner[0]) for v in value)
    if isinstance(value, bool) and hint in (int, float):
        return False
    return hint is Any or isinstance(value, {float: (int, float), Path: (str, Path)}.get(hint, hint))
