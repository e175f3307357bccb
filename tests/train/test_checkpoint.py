"""Checkpoints: whole or not there, and nothing that was changed ever loads."""

import dataclasses
import errno
import hashlib
import json
import os
import random
import shutil

import pytest
import safetensors.torch
import torch

from statespan import _io as fsio
from statespan.train import CheckpointError, ConfigError
from statespan.train.checkpoint import Facts, any_in, at_step, latest, load, remove_after, save
from statespan.train.config import Train
from statespan.train.sinks import _check_same
from tests.train.make import Toy, assert_same, run

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.float16]


def tensors():
    found = {f"a/{dtype}": torch.arange(5).to(dtype) for dtype in DTYPES}
    return found | {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 3), "b/ü": torch.randn(3, 4).T.contiguous()}


def facts(step, best=-1):
    return Facts(step, {"name": "toy"}, {"best_step": best, "loss": 0.1})


def test_everything_comes_back(tmp_path):
    wanted = tensors()
    path = save(tmp_path, wanted, facts(7))
    found, said = load(path)
    assert said == facts(7)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    theirs = safetensors.torch.load_file(path / "state.safetensors")  # our writer writes what the library reads
    assert {n: t.shape for n, t in theirs.items()} == {n: t.shape for n, t in wanted.items()}


def test_tensors_in_any_order_of_memory_come_back(tmp_path):
    x = torch.randn(6, 4)
    wanted = {"every second": x[:, 0][::2], "turned": x.T, "one for all": x[:1].expand(5, 4), "part": x[1:3, 1:3]}
    found = load(save(tmp_path, wanted, facts(1)))[0]
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_the_newest_and_the_best_are_kept(tmp_path):
    for step, best in ((1, 1), (2, 1), (3, 3), (4, 3), (5, 3), (5, 3)):
        save(tmp_path, tensors(), facts(step, best), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000000003-0", "000000000005-0", "000000000005-1"]
    assert latest(tmp_path)[1].step == 5
    assert at_step(tmp_path, 3)[1].step == 3
    with pytest.raises(CheckpointError, match="no checkpoint of step 4"):
        at_step(tmp_path, 4)


def test_those_after_a_step_are_removed(tmp_path):
    assert not any_in(tmp_path)
    for step in (1, 2, 2, 3):
        save(tmp_path, tensors(), facts(step), keep=9)
    remove_after(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000001-0", "000000000002-0", "000000000002-1"]
    remove_after(tmp_path, 0)
    assert not any_in(tmp_path)


def test_the_newest_is_the_one_of_the_highest_number(tmp_path):
    """Not the last by the alphabet; and one best checkpoint of a step is enough."""
    for number in range(11):
        last = save(tmp_path, {"x": torch.tensor(number)}, facts(5, best=5), keep=20)
    assert last.name == "000000000005-10"
    assert latest(tmp_path)[0]["x"] == at_step(tmp_path, 5)[0]["x"] == 10
    save(tmp_path, tensors(), facts(6, best=5), keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000005-10", "000000000006-0"]


def test_of_a_step_the_newest_whole_one_is_found(tmp_path):
    """If none is intact, the error names the fault of the newest."""
    for number in range(3):
        save(tmp_path, {"x": torch.tensor(number)}, facts(5), keep=9)
    for serial in (2, 1, 0):
        assert at_step(tmp_path, 5)[0]["x"] == serial
        (tmp_path / f"000000000005-{serial}" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*000000000005-2"):
        at_step(tmp_path, 5)


def test_every_tensor_begins_at_a_multiple_of_its_width(tmp_path):
    for length in range(1, 9):  # of a name, and with it of the header
        path = save(tmp_path, {"n" * length: torch.arange(3, dtype=torch.uint8), **tensors()}, facts(length))
        content = (path / "state.safetensors").read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        assert start % 8 == 0
        for name, entry in json.loads(content[8:start]).items():
            size = load(path)[0][name].element_size()
            assert entry["data_offsets"][0] % size == 0, name


def test_a_damaged_one_gives_way_to_the_one_before(tmp_path):
    assert latest(tmp_path / "nothing") is None
    for step in (1, 2):
        path = save(tmp_path, tensors(), facts(step))
    (path / "state.json").unlink()
    (tmp_path / "000000000009-0").mkdir()
    assert latest(tmp_path)[1].step == 1
    (tmp_path / "000000000001-0" / "state.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"none of the 3 checkpoints .* is intact") as error:
        latest(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["000000000009-0", "000000000001-0", "000000000003-7"])
def test_a_renamed_checkpoint_is_not_taken_for_another(tmp_path, name):
    save(tmp_path, tensors(), facts(2))
    path = save(tmp_path, tensors(), facts(3))
    path.rename(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"it is 000000000003-0, but its folder is named {name}"):
        load(tmp_path / name)
    assert latest(tmp_path)[1].step == 2
    with pytest.raises(CheckpointError):
        at_step(tmp_path, int(name[:12]))


def test_a_checkpoint_of_version_1_is_read(tmp_path):
    """As earlier versions wrote them: no serial number; the step is compared all the same."""
    path = save(tmp_path, tensors(), facts(3))
    body = json.loads((path / "state.json").read_bytes())
    assert body["version"] == 2
    del body["serial"], body["sha256"]
    body["version"] = 1
    text = json.dumps(body, sort_keys=True, indent=1) + "\n"
    body["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (path / "state.json").write_text(json.dumps(body, sort_keys=True, indent=1) + "\n")
    found, said = load(path)
    assert said == facts(3)
    assert torch.equal(found["b/ü"], load(path)[0]["b/ü"])
    path.rename(tmp_path / "000000000004-0")
    with pytest.raises(CheckpointError, match=r"it is 000000000003, but its folder is named 000000000004-0"):
        load(tmp_path / "000000000004-0")


@pytest.mark.parametrize("version", [0, 3, True, "2", None, [2]])
def test_another_version_is_refused(tmp_path, monkeypatch, version):
    path = save(tmp_path, tensors(), facts(3))
    body = json.loads((path / "state.json").read_bytes())
    monkeypatch.setattr("statespan.train.checkpoint.VERSION", version)
    (path / "state.json").write_bytes(signed({k: v for k, v in body.items() if k not in ("version", "sha256")}))
    with pytest.raises(CheckpointError, match="of version"):
        load(path)


@pytest.mark.parametrize("name", ["statespan", "statespan model", "Statespan checkpoint", None, 1])
def test_another_format_is_refused(tmp_path, name):
    path = save(tmp_path, tensors(), facts(3))
    body = json.loads((path / "state.json").read_bytes())
    del body["sha256"]
    (path / "state.json").write_bytes(signed(body))
    assert load(path)[1] == facts(3)
    (path / "state.json").write_bytes(signed({**body, "format": name}))
    with pytest.raises(CheckpointError, match="is damaged"):
        load(path)
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        latest(tmp_path)


def test_what_was_written_wrong_never_gets_its_name(tmp_path, monkeypatch):
    """The disk keeps something else than was written: seen before the checkpoint has its name."""
    save(tmp_path, tensors(), facts(1))
    real, names = fsio.sync_folder, []

    def spoil(handle):
        os.fsync(handle)
        os.pwrite(handle, b"?", 20)

    def watch(folder):
        names.append(sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")))
        real(folder)

    monkeypatch.setattr(fsio, "sync", spoil)
    monkeypatch.setattr(fsio, "sync_folder", watch)
    with pytest.raises(CheckpointError, match="is damaged"):
        save(tmp_path, tensors(), facts(2), keep=1)
    assert all(found == ["000000000001-0"] for found in names)
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001-0"]
    assert latest(tmp_path)[1].step == 1


def mutate(data, rng):
    """The file with one random change."""
    data = bytearray(data)
    at = rng.randrange(len(data))
    kind = rng.randrange(6)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at] = (data[at] + rng.randrange(1, 256)) % 256
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        data[at:at] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 4:
        other = rng.randrange(len(data))
        data[at], data[other] = data[other], data[at]
    else:
        del data[at : at + rng.randrange(1, 9)]
    return bytes(data)


def mutations(folder, count):
    rng = random.Random(0)
    path = save(folder, tensors(), facts(3))
    files = {name: (path / name).read_bytes() for name in ("state.json", "state.safetensors")}
    for _ in range(count):
        name = rng.choice(list(files))
        changed = mutate(files[name], rng)
        if changed == files[name]:
            continue
        (path / name).write_bytes(changed)
        with pytest.raises(CheckpointError) as error:
            load(path)
        assert "\n" not in str(error.value)
        (path / name).write_bytes(files[name])
    assert load(path)[1] == facts(3)


def test_no_mutation_loads(tmp_path):
    mutations(tmp_path, 1000)


@pytest.mark.soak
def test_no_mutation_of_many_loads(tmp_path):
    mutations(tmp_path, 10_000)


def signed(body):
    """JSON with a right digest: what somebody who knows the format could write."""
    from statespan.train.checkpoint import _pack

    return _pack(body)


def test_hostile_files_with_right_digests(tmp_path):
    path = save(tmp_path, tensors(), facts(3))
    good = json.loads((path / "state.json").read_bytes())
    body = {key: value for key, value in good.items() if key not in ("format", "version", "sha256")}
    for changed in (
        {**body, "step": "3"},
        {**body, "step": True},
        {**body, "extra": 1},
        {**body, "recipe": []},
        {key: value for key, value in body.items() if key != "progress"},
        {**body, "bytes": body["bytes"] + 1},
        {**body, "bytes": -1},
    ):
        (path / "state.json").write_bytes(signed(changed))
        with pytest.raises(CheckpointError):
            load(path)
    for text in (b"", b"null", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 10_000, b"NaN", b"\xff\xfe", b'{"sha256":1}'):
        (path / "state.json").write_bytes(text)
        with pytest.raises(CheckpointError):
            load(path)
    header = (1 << 40).to_bytes(8, "little")  # a safetensors header of a terabyte
    for content in (header, b"\x08" + bytes(7) + b'{"a":1} ', b"\x02" + bytes(7) + b"[]"):
        (path / "state.safetensors").unlink()
        size, digest = fsio.write_new(path / "state.safetensors", [content])
        (path / "state.json").write_bytes(signed({**body, "bytes": size, "tensors": digest}))
        with pytest.raises(CheckpointError, match="header is larger than" if content == header else "is damaged: "):
            load(path)


CALLS = ("write_all", "sync", "rename", "sync_folder")


def failing(monkeypatch, call, number, code):
    """Let the number-th use of a call fail as the system would; returns how often it was used."""
    real, used = getattr(fsio, call), []

    def fail(*arguments):
        used.append(arguments)
        if len(used) == number:
            if call == "write_all":
                real(arguments[0], bytes(arguments[1])[:7])  # half of it is there
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    monkeypatch.setattr(fsio, call, fail)
    return used


def attempt(folder):
    """Save step 2; what was wrong, or None."""
    try:
        save(folder, tensors(), facts(2), keep=1)
    except CheckpointError as error:
        return str(error)
    return None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", CALLS)
def test_every_failing_call_leaves_the_old_checkpoint(call, code, tmp_path, monkeypatch):
    """Fails the 1st, 2nd ... use of each call until a save needs no more of them."""
    number = 0
    while True:
        number += 1
        folder = tmp_path / str(number)
        old = save(folder, tensors(), facts(1), keep=1)
        with monkeypatch.context() as patch:
            used = failing(patch, call, number, code)
            problem = attempt(folder)
        if problem is not None:
            assert os.strerror(code) in problem
            assert str(folder) in problem
            assert "\n" not in problem
        if len(used) < number:
            break
        assert latest(folder)[1].step == 2 or (old.exists() and problem is not None)
        assert not list(folder.glob(".statespan-tmp-*")) or call == "rename"
    assert number > 1
    assert latest(folder)[1].step == 2


def test_a_full_disk_during_a_run_costs_one_save_interval(tmp_path, monkeypatch):
    run(tmp_path / "whole", {"save_every": 3})
    with monkeypatch.context() as patch:
        failing(patch, "write_all", 40, errno.ENOSPC)
        with pytest.raises(CheckpointError, match=r"cannot write .*bytes\): No space left on device"):
            run(tmp_path / "full", {"save_every": 3})
    run(tmp_path / "full", {"save_every": 3}, resume=True)
    assert_same(tmp_path / "full", tmp_path / "whole")


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*file"):
        run(tmp_path / "file" / "run")

    def refuse(*arguments, **extra):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        fsio.replace_file(tmp_path / "x", b"1")


def test_a_damaged_last_checkpoint_is_no_loss(tmp_path):
    run(tmp_path / "whole", {"epochs": 3})
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    newest = max((tmp_path / "broken" / "checkpoints").iterdir())
    content = bytearray((newest / "state.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "state.safetensors").write_bytes(content)
    (tmp_path / "broken" / "checkpoints" / ".statespan-tmp-old").mkdir()
    run(tmp_path / "broken", {"epochs": 3}, resume=True)
    assert_same(tmp_path / "broken", tmp_path / "whole")
    assert not (tmp_path / "broken" / "checkpoints" / ".statespan-tmp-old").exists()


def test_another_model_or_recipe_is_refused(tmp_path):
    run(tmp_path, {"epochs": 1})
    with pytest.raises(ConfigError, match=r"train.lr is 0.02; allowed: 0.01"):
        run(tmp_path, {"epochs": 1, "lr": 0.02}, resume=True)
    with pytest.raises(CheckpointError, match="of another model"):
        run(tmp_path, {"epochs": 1}, resume=True, model=lambda info: Toy(info, norm=True))
    with pytest.raises(ConfigError, match="holds a run already"):
        run(tmp_path, {"epochs": 1})
    with fsio.locked(tmp_path), pytest.raises(CheckpointError, match="in use by another run"):
        run(tmp_path, {"epochs": 1}, resume=True)
    assert run(tmp_path, {"epochs": 2}, resume=True).steps == 12  # more epochs than before


def test_a_setting_newer_than_the_run_was_at_its_default():
    now = {"data": {}, "model": {}, "train": dataclasses.asdict(Train())}
    before = json.loads(json.dumps(now))  # as a checkpoint has it
    del before["train"]["fast_dt"]
    _check_same(before, now)
    with pytest.raises(ConfigError, match=r"train.fast_dt is True; allowed: False"):
        _check_same(before, {**now, "train": {**now["train"], "fast_dt": True}})
