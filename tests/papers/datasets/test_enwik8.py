"""enwik8: 90, 5 and 5 % of its bytes, whose digest is checked, packed or not."""

import gzip
import hashlib

import numpy as np
import pytest

from statespan.data.registry import load
from statespan.papers.datasets import enwik8
from statespan.train.tasks import task_of
from tests.data.real import real

CONTENT = bytes(np.random.default_rng(0).integers(0, 256, 2000, dtype=np.uint8))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(enwik8, "SIZE", len(CONTENT))
    monkeypatch.setattr(enwik8, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(enwik8, "TRAIN", 1800)
    monkeypatch.setattr(enwik8, "VALID", 100)


def put(folder, content=CONTENT, packed=True):
    (folder / "enwik8").mkdir(parents=True)
    if packed:
        (folder / "enwik8" / "enwik8.gz").write_bytes(gzip.compress(content))
    else:
        (folder / "enwik8" / "enwik8").write_bytes(content)
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_the_parts_are_the_bytes_in_order(tmp_path, small, packed):
    loaded = load("enwik8", put(tmp_path, packed=packed), length=64, eval_length=30)
    parts = [split.arrays["text"] for split in (loaded.train, loaded.valid, loaded.test)]
    assert [len(part) for part in parts] == [1800, 100, 100]
    assert np.concatenate(parts).tobytes() == CONTENT
    assert (loaded.info.unit, loaded.info.vocabulary, loaded.info.length) == ("bytes", 256, 64)
    assert [len(split) for split in (loaded.train, loaded.valid, loaded.test)] == [28, 4, 4]
    batch = loaded.train.batch([1])
    assert bytes(batch.x[0].tolist()) == CONTENT[64:128]
    assert bytes(batch.y[0].tolist()) == CONTENT[65:129]
    assert int(loaded.test.arrays["lengths"].sum()) == 99
    assert task_of(loaded).metric == "bits_per_byte"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENT[:-1], "must hold 2,000 bytes, got 1999"),
        (CONTENT + b"a", "must hold 2,000 bytes, got more"),
        (b"a" + CONTENT[1:], "must hold enwik8, whose SHA-256 is "),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_another_file_is_refused(tmp_path, small, packed, content, message):
    with pytest.raises(ValueError, match=message):
        load("enwik8", put(tmp_path, content, packed), length=64)


def test_a_damaged_archive_is_refused(tmp_path, small):
    path = put(tmp_path) / "enwik8" / "enwik8.gz"
    whole = path.read_bytes()
    for damaged in (whole[:-20], b"no gzip", whole[:300] + b"\0" * 50 + whole[350:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"enwik8\.gz is damaged: "):
            load("enwik8", tmp_path, length=64)


def test_a_missing_file_is_described(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"enwik8, from the Large Text .* 100,000,000 bytes"):
        load("enwik8", tmp_path)


@pytest.mark.real_data
def test_the_real_enwik8(tmp_path):
    loaded = load("enwik8", real(tmp_path, "enwik8"))
    sizes = [len(split.arrays["text"]) for split in (loaded.train, loaded.valid, loaded.test)]
    assert sizes == [90_000_000, 5_000_000, 5_000_000]
    assert loaded.train.arrays["text"][:10].tobytes() == b"<mediawiki"
