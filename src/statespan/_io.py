"""Atomic files: write under a temporary name, fsync, rename, fsync the folder.

Everything that touches the disk goes through the few functions here, so that tests can make each of them fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

Bytes: TypeAlias = "bytes | bytearray | memoryview"
TEMPORARY = ".statespan-tmp-"


class CheckpointError(RuntimeError):
    """A checkpoint or a file of a run cannot be written or read; the message is one line.

    Example:
        >>> try:
        ...     replace_file(Path("no/such/folder/state.json"), b"{}")
        ... except CheckpointError as error:
        ...     print(str(error).partition(":")[0])
        cannot write no/such/folder/state.json (2 bytes)
    """


def write_all(handle: int, data: Bytes) -> None:
    """Write all of ``data``, in as many system calls as it takes."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(handle, view) :]


def sync(handle: int) -> None:
    """Wait until a file's content is on the disk."""
    os.fsync(handle)


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder atomically."""
    os.replace(old, new)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "nt":  # which cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def write_new(path: Path, parts: Iterable[Bytes]) -> tuple[int, str]:
    """Write a new file and wait for the disk; returns its size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)
    try:
        for part in parts:
            write_all(handle, part)
            digest.update(part)
            size += memoryview(part).nbytes
        sync(handle)
    finally:
        os.close(handle)
    return size, digest.hexdigest()


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically; a failure leaves the old one."""
    draft = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    with _reported(path, len(content)):
        try:
            write_new(draft, [content])
            rename(draft, path)
            sync_folder(path.parent)
        finally:
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path, size: int) -> Iterator[Path]:
    """A folder to fill; it is renamed to ``path``, which must be free, when the context ends and all is on the disk.

    ``size`` is about the number of bytes it will need, for the message if there is no room.
    """
    draft = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    with _reported(path, size):
        try:
            make_folder(path.parent)
            draft.mkdir()
            yield draft
            sync_folder(draft)
            rename(draft, path)
            sync_folder(path.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a folder; if this is interrupted, the rest keeps a temporary name."""
    draft = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    with _reported(path, 0):
        rename(path, draft)
        shutil.rmtree(draft, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what an interrupted write or removal left in a folder."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and wait until their names are on the disk."""
    with _reported(folder, 0):
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in new:
            sync_folder(path.parent)


class Appended:
    """An append-only file, truncated to ``size`` bytes first."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        with _reported(path, 0):
            self.handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
            sync_folder(path.parent)  # its name
            self.size = min(size, os.fstat(self.handle).st_size)
            os.ftruncate(self.handle, self.size)
            os.lseek(self.handle, self.size, os.SEEK_SET)

    def append(self, data: bytes) -> None:
        """Write at the end."""
        with _reported(self.path, len(data)):
            write_all(self.handle, data)
        self.size += len(data)

    def sync(self) -> int:
        """Wait for the disk; returns the size."""
        with _reported(self.path, 0):
            sync(self.handle)
        return self.size

    def close(self) -> None:
        """Close the file."""
        os.close(self.handle)


@contextlib.contextmanager
def locked(folder: Path, wanted: bool = True, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder for this process, if ``wanted``; the system releases the lock even if the process is killed.

    If another process holds it, ``wait`` for that one, or raise an error.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        wanted = False
    if not wanted:
        yield
        return
    with _reported(folder / ".lock", 0):
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise CheckpointError(f"{folder} is in use by another run") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _reported(path: Path, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        need = f" ({size} bytes)" if size else ""
        raise CheckpointError(f"cannot write {path}{need}: {error.strerror or error}") from error
