"""The files of a dataset: their folder, their origin, and how to get them.

A file is downloaded only over HTTPS and only if its SHA-256 is known; it is verified before it gets its name. The user
provides all other files, as one message explains. ``STATESPAN_OFFLINE=1`` disables downloads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statespan import _io
from statespan.data.download import Progress, download
from statespan.data.extract import ENDINGS, unpack


class MissingData(FileNotFoundError):  # noqa: N818 - the name says it
    """A dataset's files are missing; the message says which, where they belong and where they come from.

    Attributes:
        dataset: Its name.
        folder: Where the files belong.
        files: The missing files; :func:`describe` says how to get them.
        reasons: Why they could not be fetched, if that was tried.

    Example:
        >>> error = MissingData("mine", Path("data/mine"), [Source("train.csv", "my own measurements")])
        >>> error.dataset, [source.path for source in error.files]
        ('mine', ['train.csv'])
    """

    def __init__(self, dataset: str, folder: Path, files: Sequence[Source], reasons: Iterable[str] = ()) -> None:
        self.dataset, self.folder = dataset, folder
        self.files, self.reasons = tuple(files), tuple(dict.fromkeys(reasons))
        lines = "".join(f"\n  {line}" for line in describe(self.files))
        why = f"\n({'; '.join(self.reasons)})" if self.reasons else ""
        super().__init__(f"dataset {dataset!r} needs files that are not here. Put into {folder}:{lines}{why}")

    def __reduce__(self) -> tuple[Any, ...]:  # the default would pass the message as the dataset
        return type(self), (self.dataset, self.folder, self.files, self.reasons)

    @property
    def advice(self) -> str:
        """The message in one line, which leaves the list of files to ``statespan data``."""
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        name = self.dataset
        return f"the files of dataset {name!r} are not in {self.folder}{why}; what to put there: statespan data {name}"


@dataclass(frozen=True)
class Source:
    """One file (or folder) of a dataset.

    Args:
        path: Its place, relative to the dataset's folder: ``train.csv`` or ``aclImdb/train``.
        origin: Its origin, in words or as the address of a page.
        url: HTTPS address of the file, or of the archive that holds it.
        sha256: SHA-256 of the download; None if unknown, and then nothing is downloaded.
        size: Size of the download in bytes.
        also: Other paths where it is accepted.
        optional: The dataset can be generated without it.

    Example:
        >>> source = Source("train.csv", url="https://example.org/archive.zip", size=1000)
        >>> source.download_name, source.packed
        ('archive.zip', True)
        >>> source.find(Path("/no/such/folder")) is None
        True
    """

    path: str
    origin: str = ""
    url: str | None = None
    sha256: str | None = None
    size: int | None = None
    also: tuple[str, ...] = ()
    optional: bool = False

    def find(self, folder: Path) -> Path | None:
        """The file's path, or None if it is missing."""
        return next((folder / path for path in (self.path, *self.also) if (folder / path).exists()), None)

    @property
    def packed(self) -> bool:
        """Whether the URL is an archive that contains the file."""
        return self.download_name.endswith(ENDINGS) and self.download_name != Path(self.path).name

    @property
    def download_name(self) -> str:
        """Name of the downloaded file."""
        return (self.url or self.path).rsplit("/", 1)[-1]


def describe(sources: Iterable[Source]) -> list[str]:
    """Describe files, one line per download: names, origin, size and digest.

    Example:
        >>> describe([Source("a.csv", origin="a friend"), Source("b.csv", origin="a friend")])
        ['a.csv, b.csv, from a friend']
    """
    together: dict[tuple[object, ...], list[Source]] = {}
    for source in sources:
        together.setdefault((source.url, source.origin, source.sha256, source.size), []).append(source)
    lines = []
    for (url, origin, digest, size), members in together.items():
        parts = [source.path for source in members]
        packed = " (which may be put there as it is)" if url and members[0].packed else ""
        parts += [f"from {url or origin}{packed}"] if url or origin else []
        parts += [f"{size:,} bytes"] if size is not None else []
        parts += [f"SHA-256 {digest}"] if digest is not None else []
        lines.append(", ".join(parts))
    return lines


def found(sources: Iterable[Source], folder: Path) -> list[Path]:
    """The paths of the files that exist."""
    return [path for source in sources if (path := source.find(folder)) is not None]


def missing(sources: Iterable[Source], folder: Path) -> list[Source]:
    """The required files that are missing."""
    return [source for source in sources if not source.optional and source.find(folder) is None]


def fetch(dataset: str, sources: Sequence[Source], folder: Path, progress: Progress | None = None) -> None:
    """Get missing files of a dataset, named in messages: unpack an archive in its folder, or download it.

    ``progress`` is that of :func:`~statespan.data.download.download`. Files that remain missing are a MissingData.
    """
    reasons = []
    for url in dict.fromkeys(source.url for source in missing(sources, folder)):  # one archive may hold several
        source = next(s for s in missing(sources, folder) if s.url == url)
        try:
            reason = _get(source, folder, progress)
        # no network, a full disk, a read-only folder, a bad archive
        except (OSError, ValueError, _io.CheckpointError) as problem:
            reason = str(problem)
        if reason:
            reasons.append(reason)
    if absent := missing(sources, folder):
        raise MissingData(dataset, folder, absent, reasons)


def _get(source: Source, folder: Path, progress: Progress | None) -> str:
    """Get one file; returns the reason if that failed, else an empty string."""
    download_path = folder / source.download_name
    is_downloaded = source.packed and download_path.exists()
    if not is_downloaded and (source.url is None or source.sha256 is None):
        return ""
    if not is_downloaded and os.environ.get("STATESPAN_OFFLINE"):
        return "nothing is downloaded with STATESPAN_OFFLINE set"
    _io.make_folder(folder)
    with _io.locked(folder, wait=True):
        _io.sweep(folder)
        if source.find(folder) is not None:  # another process was faster
            return ""
        if not is_downloaded and source.url is not None and source.sha256 is not None:
            download(source.url, download_path, source.sha256, size=source.size, progress=progress)
        elif source.sha256 is not None and (digest := _io.sha256(download_path)) != source.sha256:
            return f"{download_path} is damaged: its SHA-256 is {digest}"
        if source.packed:
            unpack(download_path, folder)
    return ""
