"""The provenance of a record: device, packages and code, without paths or host names."""

from __future__ import annotations

import datetime
import hashlib
import io
import os
import platform
import re
import subprocess
import tarfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import torch

from statespan._version import __version__


def device_name(device: torch.device) -> str:
    """The machine's own name for a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{model or platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def installed(package: str) -> str | None:
    """The version of a package, or None.

    Example:
        >>> installed("no-such-package") is None
        True
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def provenance(device: torch.device, *packages: str) -> dict[str, Any]:
    """The device, versions (of these packages, too), commit and time: the part that all records share.

    Example:
        >>> sorted(provenance(torch.device("cpu"), "numpy"))
        ['date', 'machine', 'versions']
    """
    return {
        "machine": {"device": device_name(device), "cpu_threads": torch.get_num_threads()},
        "versions": {
            "statespan": __version__,
            "commit": commit(),
            "source": source(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            **{package: installed(package) for package in packages},
        },
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


HERE = Path(__file__).resolve().parent
CODE = ("*.py", "recipes/*.yaml")  # not the models that an installed package has inside
RECENT = 400  # commits that are searched for the code of a run


def commit() -> str | None:
    """The commit of the checkout that this code runs from, with "+changes" if it differs.

    Outside of a checkout it is the value of ``STATESPAN_COMMIT``, or None: a copy of the code does not contain it.
    """
    if not _in_checkout():
        given = os.environ.get("STATESPAN_COMMIT", "")
        return given if re.fullmatch(r"[0-9a-f]{7,40}(\+changes)?", given) else None
    head = _git("rev-parse", "HEAD").decode().strip()
    return f"{head}+changes" if head and _git("status", "--porcelain").strip() else head or None


def source() -> str:
    """A digest of the code and the recipes; it identifies the version that ran even without git.

    Example:
        >>> len(source())
        16
    """
    files = [path for pattern in CODE for path in HERE.rglob(pattern)]
    return _digest((path.relative_to(HERE), path.read_bytes()) for path in files)


def commit_of(digest: str) -> str | None:
    """The newest recent commit whose code has this digest, or None."""
    if not _in_checkout():
        return None
    for revision in _git("rev-list", f"--max-count={RECENT}", "HEAD", "--", ".").decode().split():
        packed = _git("archive", revision, ".")
        if not packed:  # git is too old or too slow for it
            return None
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            files = [(PurePosixPath(item.name), archive.extractfile(item)) for item in archive if item.isfile()]
            code = [(path, file.read()) for path, file in files if file is not None and any(map(path.match, CODE))]
        if _digest(code) == digest:
            return revision
    return None


def _digest(files: Iterable[tuple[PurePath, bytes]]) -> str:
    digest = hashlib.sha256()
    for path, content in sorted(files, key=lambda file: file[0].parts):
        digest.update(f"{path.as_posix()}\0".encode() + content + b"\0")
    return digest.hexdigest()[:16]


def _in_checkout() -> bool:
    """Whether git tracks this code itself, not just an enclosing checkout."""
    return bool(_git("ls-files", "_version.py").strip())


def _git(*arguments: str) -> bytes:
    """The output of git, or nothing if it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return b""
    return done.stdout if done.returncode == 0 else b""
