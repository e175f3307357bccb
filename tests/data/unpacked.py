"""Real data for tests: unpacked from a folder with an ``unpack.py``, or the test is skipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def unpacked(destination: Path, name: str) -> Path:
    """Lay one dataset out in the public form; returns the data folder."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    script = Path(os.environ.get("STATESPAN_TEST_DATA") or beside) / "unpack.py"
    if not script.is_file():
        pytest.skip("needs real data: STATESPAN_TEST_DATA, or ../shared/data")
    subprocess.run([sys.executable, script, destination, name], check=True, capture_output=True)
    return destination
