"""Writing so that a file is whole or not there: temporary name, fsync, rename, fsync of the folder; and one writer."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where two processes that prepare the same data both do the work
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".tmp-"


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def put(temporary: Path, final: Path) -> None:
    """Give a finished file or folder its name; what had the name before is gone only after."""
    old = final.with_name(f"{TEMPORARY}{final.name}-old-{os.getpid()}")
    if final.is_dir():
        final.rename(old)
    os.replace(temporary, final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process writes in the folder; what a killed one left half written is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{TEMPORARY}*"):
            remove(left)
        yield


def remove(path: Path) -> None:
    """Remove a file or a folder with what is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            path.unlink()
