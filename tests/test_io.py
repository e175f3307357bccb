"""The few functions that touch the disk, each by what it leaves there."""

import errno
import hashlib
import os
import shutil

import pytest

from statespan import _io as fsio
from statespan.train import CheckpointError


def test_a_system_that_takes_a_few_bytes_at_a_time_gets_all(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:3]))
    parts = [b"hello", b"", bytearray(b"world!"), memoryview(b"12345678").cast("I")]
    content = b"helloworld!12345678"
    assert fsio.write_new(tmp_path / "x", parts) == (len(content), hashlib.sha256(content).hexdigest())
    assert (tmp_path / "x").read_bytes() == content


def test_what_is_there_is_never_written_over(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        fsio.write_new(tmp_path / "x", [b"new"])
    assert (tmp_path / "x").read_bytes() == b"old"


@pytest.mark.parametrize(("size", "kept"), [(0, b""), (6, b"line 1"), (7, b"line 1\n"), (100, b"line 1\nli")])
def test_a_log_goes_on_where_the_checkpoint_says(tmp_path, size, kept):
    (tmp_path / "log.csv").write_bytes(b"line 1\nli")
    log = fsio.Appended(tmp_path / "log.csv", size)
    assert log.size == len(kept)
    assert (tmp_path / "log.csv").read_bytes() == kept
    log.append(b"new\n")
    log.append(b"er\n")
    assert log.sync() == len(kept) + 7
    log.close()
    assert (tmp_path / "log.csv").read_bytes() == kept + b"new\ner\n"


def test_a_file_that_cannot_get_its_name_leaves_nothing(tmp_path, monkeypatch):
    fsio.replace_file(tmp_path / "x", b"old")
    fsio.replace_file(tmp_path / "x", b"older")

    def fail(old, new):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(CheckpointError, match=r"cannot write .*x \(3 bytes\): "):
        fsio.replace_file(tmp_path / "x", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"older"


def test_a_removal_takes_the_name_first(tmp_path, monkeypatch):
    """Cut short, it leaves no checkpoint that is half there, and the next start sweeps the rest."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "other").touch()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        fsio.remove(tmp_path / "folder")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2
    assert names[0].startswith(fsio.TEMPORARY)
    (tmp_path / f"{fsio.TEMPORARY}file").touch()
    fsio.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_one_folder_is_for_one_run(tmp_path):
    with fsio.locked(tmp_path):
        with pytest.raises(CheckpointError, match="in use by another run"), fsio.locked(tmp_path):
            pass
        with fsio.locked(tmp_path, wanted=False):
            pass
    with fsio.locked(tmp_path):
        pass
