"""Real data for tests: STATESPAN_TEST_DATA, a folder with the datasets in their public layouts, or ../shared/data."""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


def real(folder: Path, name: str, *, unpack: bool = True) -> Path:
    """A data folder with this dataset (links to its files, so that caches stay in ``folder``), or skip the test."""
    given = Path(os.environ.get("STATESPAN_TEST_DATA") or BESIDE)
    packed = (given / "unpack.py").is_file()
    if (packed and not unpack) or not (packed or (given / name).is_dir()):
        pytest.skip(f"needs {name} in STATESPAN_TEST_DATA")
    found = (_unpacked(given, _session(folder), name) if packed else given) / name
    (folder / name).mkdir()
    for path in found.iterdir():
        if not path.name.startswith("."):
            (folder / name / path.name).symlink_to(path)
    return folder


def _session(folder: Path) -> Path:
    """The temporary folder of all processes of the tests; this one where pytest was given another place."""
    return next((path for path in folder.parents if re.fullmatch(r"pytest-\d+", path.name)), folder)


def _unpacked(given: Path, session: Path, name: str) -> Path:
    """A folder into which a dataset was unpacked, by whoever came first."""
    target = session / "unpacked" / name
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / ".done").exists():
            subprocess.run([sys.executable, given / "unpack.py", target, name], check=True, capture_output=True)
            (target / ".done").touch()
    return target
