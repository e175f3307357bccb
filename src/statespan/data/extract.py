"""Unpacks tar, zip and gz archives: only plain files and folders, inside one folder, within limits.

The whole archive is unpacked into a temporary folder in the target; its entries get their names only if all of it is
good. A rejected archive leaves nothing behind.

The ``data`` filter of :mod:`tarfile` is not enough: it allows links, sparse files and duplicate names, and it runs only
after a header of any stated length has been read into memory. Zip files have no such filter at all.
"""

from __future__ import annotations

import gzip
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar, cast

from statespan import _io
from statespan._io import TEMPORARY
from statespan.data.formats.limits import Metered

ENDINGS = (".tar", ".tar.gz", ".tgz", ".zip", ".gz")
BLOCK = 1 << 20
LARGEST_HEADER = 1 << 16  # bytes of all headers of one entry of a tar file: long names, PAX records, maps of holes
LARGEST_DIRECTORY = 1 << 24  # bytes of the list of entries of a zip file
MOST_ENTRIES = 1_000_000  # files and folders
LARGEST = 1 << 37  # bytes of all files together
RATIO = 100.0  # bytes unpacked for one byte of the archive; a small one may always unpack to 1 MiB
ENTRY = 1 << 10  # bytes that an entry counts at least towards the ratio: names and inodes take space, too
T = TypeVar("T")


class BadArchive(ValueError):  # noqa: N818 - like MissingData, its name says what is wrong
    """An archive that is damaged, exceeds the limits or contains entries that are not allowed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     archive = Path(folder, "data.zip")
        ...     with zipfile.ZipFile(archive, "w") as file:
        ...         file.writestr("../escaped", "")
        ...     try:
        ...         unpack(archive, Path(folder, "data"))
        ...     except BadArchive as error:
        ...         print(str(error).removeprefix(f"{archive} "))
        holds the path '../escaped', which is not a relative path inside it
    """


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    content: IO[bytes] | None  # None for a folder


def unpack(
    archive: Path, folder: Path, *, count: int = MOST_ENTRIES, size: int = LARGEST, ratio: float = RATIO
) -> list[str]:
    """Unpack an archive into a folder; existing entries of the same names are replaced.

    Returns the names of its top-level entries. An archive that is damaged or too large, or that holds a link, a device,
    a path that leads outside or one name twice, is a BadArchive. It is too large with more than ``count`` entries,
    ``size`` bytes, or ``ratio`` bytes for one byte of the archive.
    """
    by_ratio = max(1 << 20, int(archive.stat().st_size * ratio))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as temporary:
        _unpack(archive, Path(temporary), min(count, by_ratio // ENTRY), min(size, by_ratio))
        names = sorted(path.name for path in Path(temporary).iterdir())
        for name in names:
            if (folder / name).is_dir():
                _io.remove(folder / name)
            _io.rename(Path(temporary, name), folder / name)
            _io.sync_folder(folder)
        return names


def _unpack(archive: Path, folder: Path, count: int, allowed: int) -> None:
    seen: dict[PurePosixPath, bool] = {}  # every path and whether it is a folder
    written = 0
    entries, number = _entries(archive), 0
    while (entry := _reading(archive, lambda: next(entries, None))) is not None:
        number += 1
        if number > count:
            raise BadArchive(f"{archive} holds more than {count} entries")
        path = _inside(archive, entry.name)
        if not path.parts:  # the archive's own folder, "./"
            continue
        parents, is_folder = list(path.parents)[:-1], entry.content is None
        if any(not seen.get(parent, True) for parent in parents) or (path in seen and not (is_folder and seen[path])):
            raise BadArchive(f"{archive} holds {entry.name!r} twice")
        seen.update({parent: True for parent in parents} | {path: is_folder})
        target = folder.joinpath(*path.parts)
        if entry.content is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        if entry.size > allowed - written:
            raise BadArchive(f"{archive} unpacks to more than {allowed} bytes")
        target.parent.mkdir(parents=True, exist_ok=True)
        with entry.content as source:
            size, _ = _io.write_new(target, _blocks(archive, source, allowed - written, allowed))
        written += size
    if not seen:
        raise BadArchive(f"{archive} is empty")
    for path, is_folder in seen.items():
        if is_folder:
            _io.sync_folder(folder.joinpath(*path.parts))
    _io.sync_folder(folder)


def _blocks(archive: Path, source: IO[bytes], left: int, allowed: int) -> Iterator[bytes]:
    while block := _reading(archive, partial(source.read, BLOCK)):
        left -= len(block)
        if left < 0:
            raise BadArchive(f"{archive} unpacks to more than {allowed} bytes")
        yield block


def _reading(archive: Path, read: Callable[[], T]) -> T:
    """Return the result of ``read``; damaged archives make the standard library raise almost anything."""
    try:
        return read()
    except BadArchive:
        raise
    except Exception as problem:
        raise BadArchive(f"{archive} is damaged or not an archive we read: {problem}") from problem


def _inside(archive: Path, name: str) -> PurePosixPath:
    """The path of an entry, if it is a plain relative one on every system."""
    path = PurePosixPath(name)
    bad = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in name
    if bad or not name or len(name) > 1000 or any(part.startswith(TEMPORARY) for part in path.parts):
        raise BadArchive(f"{archive} holds the path {name!r}, which is not a relative path inside it")
    return path


def _entries(archive: Path) -> Iterator[_Member]:
    if zipfile.is_zipfile(archive):
        yield from _zip(archive)
    elif archive.name.endswith((".tar", ".tar.gz", ".tgz")):
        yield from _tar(archive)
    elif archive.name.endswith(".gz"):
        with gzip.open(archive) as file:
            yield _Member(archive.name[:-3], 0, cast("IO[bytes]", file))
    else:
        raise BadArchive(f"{archive} must end in one of {ENDINGS}")


def _tar(archive: Path) -> Iterator[_Member]:
    packed = not archive.name.endswith(".tar")
    with gzip.open(archive) if packed else archive.open("rb") as file:
        metered = Metered(cast("IO[bytes]", file), LARGEST_HEADER)
        with tarfile.open(fileobj=cast("IO[bytes]", metered), mode="r:") as tar:
            while (member := tar.next()) is not None:
                metered.content()
                if not (member.isreg() or member.isdir()) or member.issparse():
                    raise BadArchive(f"{archive} holds {member.name!r}, which is neither a file nor a folder")
                yield _Member(member.name, member.size, tar.extractfile(member))
                tar.members.clear()  # type: ignore[attr-defined] # which would grow with every entry
                if sum(map(len, (*tar.pax_headers, *tar.pax_headers.values()))) > LARGEST_HEADER:
                    raise BadArchive(f"{archive} has more than {LARGEST_HEADER} bytes of global headers")
                metered.headers()
        if file.read(BLOCK) and file.read(1):  # to the end, so that gzip compares its checksum
            raise BadArchive(f"{archive} continues after its end")


def _zip(archive: Path) -> Iterator[_Member]:
    with archive.open("rb") as raw:
        metered = Metered(raw, LARGEST_DIRECTORY)
        with zipfile.ZipFile(cast("IO[bytes]", metered)) as file:
            metered.content()
            for member in file.infolist():
                yield _zip_entry(archive, file, member)


def _zip_entry(archive: Path, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Member:
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or member.flag_bits & 1:
        raise BadArchive(f"{archive} holds {member.filename!r}, which is neither a plain file nor a folder")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # other methods allocate without a limit
        raise BadArchive(f"{archive} holds {member.filename!r}, which is neither stored nor deflated")
    folder = member.is_dir()
    if folder != (kind == stat.S_IFDIR) and kind != 0:
        raise BadArchive(f"{archive} holds {member.filename!r}, which claims to be both a file and a folder")
    return _Member(member.orig_filename, member.file_size, None if folder else file.open(member))
