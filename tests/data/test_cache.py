"""Caches: memory-mapped, checked, made anew when damaged, never half there."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from statespan.data import cache
from statespan.data.cache import Rows, cached, check, stamp, watched


class Builder:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        pieces = (np.full((2, 3), i, np.int16) for i in range(3))
        return {"x": np.arange(5.0), "rows": Rows((6, 3), np.int16, pieces), "none": np.zeros((0, 4), np.uint8)}


def place(folder):
    (found,) = (path for path in (folder / ".cache").iterdir() if path.is_dir())
    return found


def test_pieces_are_told_to_who_watches(tmp_path):
    seen = []
    with watched(lambda *step: seen.append(step)):
        cached(tmp_path, "toy-set", {"n": 1}, Builder())
    assert seen == [("toy-set", done, 36) for done in (12, 24, 36)]
    cached(tmp_path, "toy-set", {"n": 2}, Builder())
    assert len(seen) == 3


def test_a_cache_is_built_once_and_mapped(tmp_path):
    build = Builder()
    for _ in range(2):
        arrays = cached(tmp_path, "toy", {"n": 1}, build)
    assert build.calls == 1
    assert arrays["x"].tolist() == [0, 1, 2, 3, 4]
    assert arrays["rows"].tolist() == [[i] * 3 for i in (0, 0, 1, 1, 2, 2)]
    assert arrays["none"].shape == (0, 4)
    assert isinstance(arrays["rows"], np.memmap)
    arrays["x"][0] = 7  # of this process only
    assert cached(tmp_path, "toy", {"n": 1}, build)["x"][0] == 0
    cached(tmp_path, "toy", {"n": 2}, build)
    assert build.calls == 2


def damage_bytes(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: damage_bytes(p / "x.npy"),
        lambda p: (p / "x.npy").write_bytes((p / "x.npy").read_bytes() + b"0"),
        lambda p: (p / "rows.npy").unlink(),
        lambda p: (p / "rows.npy").write_bytes((p / "rows.npy").read_bytes()[:-1]),
        lambda p: (p / "manifest.json").write_text("{"),
        lambda p: (p / "manifest.json").write_text("[]"),
        lambda p: (p / "manifest.json").write_text(json.dumps({"key": "other", "arrays": {}})),
        lambda p: (p / "manifest.json").unlink(),
    ],
)
def test_a_damaged_cache_is_made_anew(tmp_path, damage):
    build = Builder()
    cached(tmp_path, "toy", {}, build)
    damage(place(tmp_path))
    assert cached(tmp_path, "toy", {}, build)["x"].tolist() == [0, 1, 2, 3, 4]
    assert build.calls == 2
    assert cached(tmp_path, "toy", {}, build)["rows"].shape == (6, 3)
    assert build.calls == 2
    assert {path.name for path in (tmp_path / ".cache").iterdir()} == {".lock", place(tmp_path).name}


def test_a_good_cache_is_not_read_again_unless_its_files_are_touched(tmp_path, monkeypatch):
    build, hashed = Builder(), []
    monkeypatch.setattr(cache, "sha256", lambda path, digest=cache.sha256: hashed.append(path.name) or digest(path))
    cached(tmp_path, "toy", {}, build)
    cached(tmp_path, "toy", {}, build)
    assert hashed == []
    os.utime(place(tmp_path) / "rows.npy", ns=(7, 7))
    for _ in range(2):
        assert cached(tmp_path, "toy", {}, build)["rows"].shape == (6, 3)
    assert hashed == ["rows.npy"]  # once: the new time is recorded
    assert build.calls == 1
    assert {path.name for path in (tmp_path / ".cache").iterdir()} == {".lock", place(tmp_path).name}


def test_check_reads_every_byte_and_removes_what_is_damaged(tmp_path):
    build = Builder()
    for folder in (tmp_path, tmp_path / "inner"):
        cached(folder, "toy", {}, build)
    good, bad = place(tmp_path), place(tmp_path / "inner")
    assert check(tmp_path) == {good: True, bad: True}
    before = (bad / "x.npy").stat().st_mtime_ns
    damage_bytes(bad / "x.npy")
    os.utime(bad / "x.npy", ns=(before, before))  # a bit that fell over on the disk
    assert check(tmp_path) == {good: True, bad: False}
    assert not bad.exists()
    cached(tmp_path / "inner", "toy", {}, build)
    assert build.calls == 3


def test_a_manifest_cannot_make_it_unpickle(tmp_path):
    cached(tmp_path, "toy", {}, Builder())
    evil = place(tmp_path) / "x.npy"
    np.save(evil, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    manifest = json.loads((place(tmp_path) / "manifest.json").read_text())
    now = evil.stat()
    manifest["arrays"]["x"] = {"bytes": now.st_size, "time": now.st_mtime_ns, "sha256": cache.sha256(evil)}
    (place(tmp_path) / "manifest.json").write_text(json.dumps(manifest))
    assert cached(tmp_path, "toy", {}, Builder())["x"].dtype == np.float64


def test_a_build_that_fails_leaves_nothing_and_a_killed_one_is_swept(tmp_path):
    def fail():
        return {"x": np.zeros(3), "y": Rows((4,), np.uint8, [np.zeros(3, np.uint8)])}

    with pytest.raises(ValueError, match="y: the pieces have 3 bytes"):
        cached(tmp_path, "toy", {}, fail)
    assert [path.name for path in (tmp_path / ".cache").iterdir()] == [".lock"]
    (tmp_path / ".cache" / ".statespan-tmp-toy-123").mkdir()
    cached(tmp_path, "toy", {}, Builder())
    assert not list((tmp_path / ".cache").glob(".statespan-tmp-*"))


def test_where_nothing_can_be_written_the_arrays_are_kept_in_memory(tmp_path):
    (tmp_path / ".cache").write_text("a file where the folder would be")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        arrays = cached(tmp_path, "toy", {}, Builder())
    assert arrays["rows"].tolist() == [[i] * 3 for i in (0, 0, 1, 1, 2, 2)]


def test_a_full_disk_leaves_no_half_cache(tmp_path):
    code = f"""
import resource, signal, warnings, numpy as np
from pathlib import Path
from statespan.data.cache import cached
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    arrays = cached(Path({str(tmp_path)!r}), "toy", {{}}, lambda: {{"x": np.arange(1000)}})
assert arrays["x"].sum() == 499500 and "cannot be written" in str(caught[0].message)
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert [path.name for path in (tmp_path / ".cache").iterdir()] == [".lock"]


def test_a_stamp_changes_with_the_file(tmp_path):
    (tmp_path / "a").write_text("1")
    before = stamp(tmp_path / "a")
    assert stamp(tmp_path / "a") == before
    (tmp_path / "a").write_text("12")
    assert stamp(tmp_path / "a") != before


@pytest.mark.parametrize("shape", [(2**62, 2**62), (10**12,), (-5,), (5, 0, 2**63)])
def test_an_impossible_shape_is_made_anew(tmp_path, shape):
    build = Builder()
    cached(tmp_path, "toy", {"n": 1}, build)
    evil = place(tmp_path) / "x.npy"
    head = str({"descr": "<f8", "fortran_order": False, "shape": shape}).encode()
    evil.write_bytes(b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head + bytes(40))
    manifest = json.loads((place(tmp_path) / "manifest.json").read_text())
    manifest["arrays"]["x"] |= {"bytes": evil.stat().st_size, "time": evil.stat().st_mtime_ns}
    (place(tmp_path) / "manifest.json").write_text(json.dumps(manifest))
    assert cached(tmp_path, "toy", {"n": 1}, build)["x"].tolist() == [0, 1, 2, 3, 4]
    assert build.calls == 2
