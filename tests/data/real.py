"""Real data for tests, from STATESPAN_TEST_DATA alone: a folder with the datasets in their public layouts.

Tests that use it carry the marker ``real_data``; without the variable they are not collected (tests/conftest.py).
"""

import os
from pathlib import Path

import pytest

VARIABLE = "STATESPAN_TEST_DATA"


def real(folder: Path, name: str) -> Path:
    """A data folder with this dataset: links to its files, so that caches stay in ``folder``."""
    found = Path(os.environ[VARIABLE]) / name
    if not found.is_dir():
        pytest.skip(f"{VARIABLE} has no folder {name}")
    (folder / name).mkdir()
    for path in found.iterdir():
        if not path.name.startswith("."):
            (folder / name / path.name).symlink_to(path)
    return folder
