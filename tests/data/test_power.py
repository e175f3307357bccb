"""Power cuts: a file or folder of data that has its name is whole, and stays once the call has come back."""

import hashlib
import os

import pytest

from statespan.data.download import download
from statespan.data.extract import unpack
from tests.data.test_extract import make_tar, member
from tests.data.test_source import CONTENT, DIGEST, URL, server
from tests.disk import Disk

pytestmark = pytest.mark.skipif(os.name == "nt", reason="folders cannot be synced there")


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path / "disk")


def test_downloads(disk, tmp_path):
    with disk.watched():
        download(URL, disk.root / "data.bin", DIGEST, open_url=server()[0])
        disk.report(True)
    for reported, place in disk.cuts(tmp_path / "cuts"):
        if reported or (place / "data.bin").exists():
            assert hashlib.sha256((place / "data.bin").read_bytes()).hexdigest() == DIGEST
    assert len(CONTENT) > 1 << 19  # more than any buffer


def test_archives(disk, tmp_path):
    """No digest is compared once they are unpacked: a name without its bytes would be read as data."""
    make_tar(tmp_path / "x.tar.gz", [member("d/a", size=100_000), member("d/e/b", size=9), member("c", size=70_000)])
    with disk.watched():
        unpack(tmp_path / "x.tar.gz", disk.root)
        disk.report(True)
    wanted = {"d": {"d/a": 100_000, "d/e/b": 9}, "c": {"c": 70_000}}
    for reported, place in disk.cuts(tmp_path / "cuts"):
        for top, files in wanted.items():
            if reported or (place / top).exists():
                assert {name: (place / name).read_bytes() for name in files} == {n: b"x" * k for n, k in files.items()}
