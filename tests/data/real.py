"""Real data for tests: STATESPAN_TEST_DATA, a folder with the datasets in their public layouts, or ../shared/data."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


def real(folder: Path, name: str, *, unpack: bool = True) -> Path:
    """A data folder with this dataset (links to its files, so that caches stay in ``folder``), or skip the test."""
    given = Path(os.environ.get("STATESPAN_TEST_DATA") or BESIDE)
    if (given / name).is_dir() and not (given / "unpack.py").is_file():
        (folder / name).mkdir()
        for path in (given / name).iterdir():
            if not path.name.startswith("."):
                (folder / name / path.name).symlink_to(path)
    elif unpack and (given / "unpack.py").is_file():
        subprocess.run([sys.executable, given / "unpack.py", folder, name], check=True, capture_output=True)
    else:
        pytest.skip(f"needs {name} in STATESPAN_TEST_DATA")
    return folder
