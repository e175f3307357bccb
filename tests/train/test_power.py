"""Power cuts: whatever was reported as saved is there afterwards, although all that was not synced may be gone."""

import os

import pytest
import torch

from statespan import _io as fsio
from statespan.train.checkpoint import Facts, at_step, latest, save
from tests.disk import Disk

pytestmark = pytest.mark.skipif(os.name == "nt", reason="folders cannot be synced there")


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path / "disk")


def tensors(step):
    return {"weight": torch.full((3, 4), float(step)), "count": torch.tensor(step)}


def best(step):
    return step - step % 3  # at times an older one that is not among the newest


def run(disk, steps):
    """Save, and report each step when the call has come back."""
    folder = disk.root / "runs" / "one" / "checkpoints"
    fsio.make_folder(folder)
    for step in range(steps):
        save(folder, tensors(step), Facts(step, {}, {"best_step": best(step)}), keep=1)
        disk.report(step)


def check(folder, reported):
    """The newest checkpoint is the one reported, or the one that was being written; so is the best."""
    found = latest(folder)
    if found is None:
        assert reported is None
        return
    values, facts = found
    step = facts.step
    assert step in ((0,) if reported is None else (reported, reported + 1))
    assert all(torch.equal(values[name], value) for name, value in tensors(step).items())
    assert at_step(folder, best(step))[1].step == best(step)


def cut_everywhere(disk, tmp_path, steps):
    with disk.watched():
        run(disk, steps)
    cuts = [*disk.cuts(tmp_path / "cuts")]
    for reported, place in cuts:
        check(place / "runs" / "one" / "checkpoints", reported)
    return len(cuts)


def test_two_hundred_cuts_lose_no_checkpoint(disk, tmp_path):
    assert cut_everywhere(disk, tmp_path, steps=4) > 200


@pytest.mark.soak
def test_thousands_of_cuts_lose_no_checkpoint(disk, tmp_path):
    assert cut_everywhere(disk, tmp_path, steps=40) > 2000


def test_cuts_leave_the_old_file_or_the_new_one(disk, tmp_path):
    with disk.watched():
        for number in range(3):
            fsio.replace_file(disk.root / "result.json", b"%d" % number * 50)
            disk.report(number)
    for reported, place in disk.cuts(tmp_path / "cuts"):
        if reported is None and not (place / "result.json").exists():
            continue
        content = (place / "result.json").read_bytes()
        allowed = (0,) if reported is None else (reported, reported + 1)
        assert content in [b"%d" % number * 50 for number in allowed]


def test_cuts_leave_every_line_that_was_synced(disk, tmp_path):
    with disk.watched():
        log = fsio.Appended(disk.root / "log.csv", 0)
        for number in range(5):
            log.append(b"line %d\n" % number)
            if number != 3:
                disk.report(log.sync())
        log.close()
    everything = (disk.root / "log.csv").read_bytes()
    for reported, place in disk.cuts(tmp_path / "cuts"):
        if reported is not None:
            assert (place / "log.csv").read_bytes()[:reported] == everything[:reported]


def test_every_file_is_synced_before_its_name_and_the_folder_after(tmp_path, monkeypatch):
    """In the order of the calls of the system, each once: a file, its folder, the name, the folder above."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        calls.append(("fsync", os.fstat(handle).st_ino))
        fsync(handle)

    def replaced(old, new):
        calls.append(("replace", os.path.basename(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    path = save(tmp_path, tensors(7), Facts(7, {}, {}))
    inodes = [p.stat().st_ino for p in (path / "state.safetensors", path / "state.json", path)]
    above = ("fsync", tmp_path.stat().st_ino)
    assert calls == [*(("fsync", inode) for inode in inodes), ("replace", path.name), above]
    calls.clear()
    fsio.replace_file(tmp_path / "result.json", b"{}")
    file = ("fsync", (tmp_path / "result.json").stat().st_ino)
    assert calls == [file, ("replace", "result.json"), above]
