"""SECURITY.md says what the code does."""

import importlib
import re
from pathlib import Path

import pytest

from statespan._version import __version__
from statespan.data import extract
from statespan.models import LoadError

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| (.+?) \| ([\d.]+)(?: (s|bytes|characters|KiB|MiB|GiB))? \| `statespan\.([\w.]+)` \|$", TEXT, re.M
)
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def value_of(dotted):
    """The value of a constant, from the module that defines or imports it."""
    module, _, name = f"statespan.{dotted}".rpartition(".")
    if name not in vars(found := importlib.import_module(module)):
        raise AssertionError(f"{module} has no {name}")
    return vars(found)[name]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[3])
def test_a_limit_is_the_constant(row):
    _, number, unit, constant = row
    assert value_of(constant) == float(number) * UNITS.get(unit, 1)


def test_every_row_of_the_table_was_compared():
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and "constant" not in line]
    assert len(rows) == len(ROWS) == 33


def test_the_version_the_answer_and_the_errors():
    assert f"latest release, {__version__.rpartition('.')[0]}," in TEXT
    assert "answer within 7 days" in TEXT
    assert issubclass(LoadError, ValueError)
    assert issubclass(extract.BadArchive, ValueError)


def test_the_lock_files_have_a_hash_for_everything_and_name_no_index():
    found = {}
    for name, least in (("ci.lock.txt", 50), ("site.lock.txt", 20)):
        lock = (ROOT / "requirements" / name).read_text()
        assert f"requirements/{name}" in TEXT
        pins = re.findall(r"^([a-z][\w.-]*)==(\S+) \\\n {4}--hash=sha256:[0-9a-f]{64}", lock, re.M)
        assert len(pins) == len(re.findall(r"^[A-Za-z]", lock, re.M)) > least
        assert not re.search(r"://|^-", lock, re.M)
        found |= {name: version.partition("+")[0] for name, version in pins}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = line.lower().split("==")
            assert found[name] == version
