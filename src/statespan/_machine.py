"""What a record says about where it was made: the device and the packages, and nothing that names a place."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


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


def commit() -> str | None:
    """The commit of the checkout that this code runs from, with "+changes" if it differs.

    Outside of a checkout it is what ``STATESPAN_COMMIT`` says, or None: a copy of the code cannot know it by itself.
    """
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", "_version.py") is None:
        said = os.environ.get("STATESPAN_COMMIT", "")  # git knows nothing, or of some other checkout around this one
        return said if re.fullmatch(r"[0-9a-f]{7,40}(\+changes)?", said) else None
    head = git("rev-parse", "HEAD")
    return f"{head}+changes" if head and git("status", "--porcelain") else head


def source() -> str:
    """A digest of the code and the recipes: which version ran, also where there is no git to ask.

    Example:
        >>> len(source())
        16
    """
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    files = (*here.rglob("*.py"), *here.glob("recipes/*.yaml"))  # not the models that an installed package has inside
    for path in sorted(files, key=lambda path: path.relative_to(here).parts):
        digest.update(f"{path.relative_to(here).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
