"""Checkpoint files: what is read, what is rejected, and that nothing in them runs."""

import io
import pickle
import sys
import types
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest
import safetensors.torch
import torch

from statespan import from_reference
from statespan.models import Classifier, LoadError
from statespan.models.reference import _files, read_model
from statespan.models.reference.options import ReferenceOptions
from tests.models.reference import brute
from tests.models.reference.brute import Block, Sizes, Stack, draw, error, rand


@pytest.fixture
def block():
    ssm = draw(Sizes())
    return Block(ssm, brute.v4(ssm))


def lightning():
    ssm = draw(Sizes())
    stack = Stack([Block(ssm, brute.v4(ssm, dt="exp"))])
    tensors = {f"model.{name}": value for name, value in stack.tensors.items()}
    V, c = rand(3, 6), rand(3)
    tensors |= {"encoder.0.weight": rand(6, 2), "encoder.0.bias": rand(6)}
    tensors |= {"decoder.0.output_transform.weight": V, "decoder.0.output_transform.bias": c}
    return stack, tensors


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".bin", ".safetensors"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_files(tmp_path, block, suffix, wrapped):
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        safetensors.torch.save_file(block.tensors, path)
    else:
        torch.save({"state_dict": block.tensors, "epoch": 3, "lr": [0.1]} if wrapped else block.tensors, path)
    x = rand(2, 21, 6)
    for source in (path, str(path)):
        assert error(from_reference(source)(x), block(x)) <= 1e-11


class Config:
    """As OmegaConf's: a content of nodes."""

    def __init__(self, content):
        self._content = content
        self._metadata = {"flags": None}


class Node:
    def __init__(self, value):
        self._val = value


def node(value):
    if isinstance(value, dict):
        return Config({key: node(item) for key, item in value.items()})
    return Config([node(item) for item in value]) if isinstance(value, list) else Node(value)


@pytest.fixture
def omegaconf(monkeypatch):
    """Modules of OmegaConf's names, to write a file as Lightning does; gone before it is read."""
    for name, cls in (("omegaconf.dictconfig", Config), ("omegaconf.nodes", Node)):
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        setattr(module, cls.__name__, cls)
        monkeypatch.setattr(cls, "__module__", name)
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    yield
    assert not _files.StandIn("ignored").__dict__


def test_a_lightning_checkpoint_tells_its_options(tmp_path, omegaconf, monkeypatch):
    stack, tensors = lightning()
    path = tmp_path / "last.ckpt"
    layer = {"dt_transform": "exp", "real_transform": "${model.x}", "activation": "gelu", "gate": None}
    config = node({"model": {"prenorm": True, "layer": [layer]}, "decoder": {"mode": "last"}})
    torch.save({"state_dict": tensors, "hyper_parameters": config, "hparams_type": Config, "epoch": 3}, path)
    for name in ("omegaconf", "omegaconf.nodes", "omegaconf.dictconfig"):
        monkeypatch.delitem(sys.modules, name)
    before = set(torch.serialization.get_safe_globals())
    model, options = read_model(path, ReferenceOptions())
    assert set(torch.serialization.get_safe_globals()) == before  # nothing stays allowed
    assert (options.dt_transform, options.real_transform, options.pool) == ("exp", None, "last")
    x = rand(2, 21, 2)
    W, b = tensors["encoder.0.weight"], tensors["encoder.0.bias"]
    V, c = (tensors[f"decoder.0.output_transform.{name}"] for name in ("weight", "bias"))
    assert isinstance(model, Classifier)
    assert error(model(x), stack(x @ W.T + b)[:, -1] @ V.T + c) <= 1e-11
    _, given = read_model(path, ReferenceOptions(pool="mean", dt_transform="softplus"))
    assert (given.dt_transform, given.pool) == ("softplus", "mean")


FLAG = "statespan_hostile_ran"


def call(function, *arguments):
    class Hostile:
        def __reduce__(self):
            return function, arguments

    return Hostile()


@pytest.mark.parametrize(
    "payload",
    [
        call(eval, f"__import__('pathlib').Path('{FLAG}').touch()"),
        call(exec, f"__import__('pathlib').Path('{FLAG}').touch()"),
        call(__import__("os").system, f"touch {FLAG}"),
        call(__import__("subprocess").Popen, ["touch", FLAG]),
        call(Path(FLAG).touch),
        call(getattr, "x", "upper"),
        call(__import__, "antigravity"),
    ],
    ids=["eval", "exec", "system", "Popen", "touch", "getattr", "import"],
)
@pytest.mark.parametrize("suffix", [".pt", ".ckpt"])
def test_a_hostile_pickle_does_not_run(tmp_path, monkeypatch, block, payload, suffix):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"hostile{suffix}"
    torch.save({"state_dict": block.tensors, "callbacks": payload}, path)
    with pytest.raises(LoadError) as found:
        from_reference(path)
    assert not (tmp_path / FLAG).exists()
    assert "refers to code" in str(found.value)


def test_the_hostile_pickle_is_one(tmp_path, monkeypatch):
    """With weights_only=False it runs."""
    monkeypatch.chdir(tmp_path)
    torch.save(call(eval, f"__import__('pathlib').Path('{FLAG}').touch()"), "hostile.pt")
    torch.load("hostile.pt", weights_only=False)
    assert (tmp_path / FLAG).exists()


def test_a_name_of_a_harmless_class_calls_nothing(tmp_path, monkeypatch):
    """A file that calls what omegaconf offers gets a stand-in."""
    ran = []
    module = types.ModuleType("omegaconf.evil")
    module.run = lambda *values: ran.append(values)
    module.run.__module__, module.run.__qualname__, module.run.__name__ = "omegaconf.evil", "run", "run"
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, "omegaconf.evil", module)
    path = tmp_path / "calls.ckpt"
    torch.save({"state_dict": {"x": rand(2)}, "hyper_parameters": call(module.run, 1)}, path)
    assert isinstance(_files.read_file(path)["hyper_parameters"], _files.StandIn)
    assert ran == []


def test_a_default_dictionary_is_read_as_a_plain_one(tmp_path, block):
    counts = defaultdict(list, {"a": [1], "b": [2, 3]})
    path = tmp_path / "counts.ckpt"
    torch.save({"state_dict": defaultdict(None, block.tensors), "counts": counts}, path)
    stored = _files.read_file(path)
    assert stored["counts"] == counts
    assert type(stored["counts"]) is dict
    x = rand(2, 21, 6)
    assert error(from_reference(path)(x), block(x)) <= 1e-11


class Table(dict):
    """A dictionary of a class of OmegaConf's name, which torch does not fill."""


def test_a_type_that_cannot_be_read_is_named_without_advice_to_run_code(tmp_path, monkeypatch, block):
    module = types.ModuleType("omegaconf.table")
    module.Table = Table
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, "omegaconf.table", module)
    monkeypatch.setattr(Table, "__module__", "omegaconf.table")
    path = tmp_path / "table.ckpt"
    torch.save({"state_dict": block.tensors, "table": Table(a=1)}, path)
    said = complaint(path)
    assert said.endswith("omegaconf.table.Table is a type that cannot be read")
    assert "weights_only" not in said


def test_old_torch_reads_no_pickle(tmp_path, monkeypatch, block):
    torch.save(block.tensors, tmp_path / "w.pt")
    safetensors.torch.save_file(block.tensors, tmp_path / "w.safetensors")
    for version in ("2.8.0", "2.9.1+cu128"):
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(LoadError, match=r"CVE-2026-24747.*update torch to 2\.10 or later"):
            from_reference(tmp_path / "w.pt")
        from_reference(tmp_path / "w.safetensors")
    for version in ("2.10.0", "2.13.0", "3.0"):
        monkeypatch.setattr(torch, "__version__", version)
        from_reference(tmp_path / "w.pt")


def content(tensors):
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def rezipped(raw, compression=zipfile.ZIP_STORED, skip=(), **more):
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(buffer, "w", compression) as new:
        for entry in old.infolist():
            if not entry.filename.endswith(tuple(skip)) or not skip:
                new.writestr(entry.filename, old.read(entry))
        for name, value in more.items():
            new.writestr(name.replace("__", "/").replace("_pkl", ".pkl"), value)
    return buffer.getvalue()


DAMAGED = {
    "empty": lambda raw: b"",
    "garbage": lambda raw: bytes(range(256)) * 40,
    "text": lambda raw: b"<html>not found</html>",
    "cut": lambda raw: raw[: len(raw) // 2],
    "cut at the end": lambda raw: raw[:-30],
    "legacy": lambda raw: pickle.dumps({"a": 1}),
    "compressed": lambda raw: rezipped(raw, zipfile.ZIP_DEFLATED),
    "no pickle": lambda raw: rezipped(raw, skip=("data.pkl",)),
    "two pickles": lambda raw: rezipped(raw, other__data_pkl=b"N."),
    "no tensors": lambda raw: rezipped(raw, skip=("data/0",)),
    "bad pickle": lambda raw: rezipped(raw, skip=("data.pkl",), archive__data_pkl=b"\x80\x02garbage"),
    "empty pickle": lambda raw: rezipped(raw, skip=("data.pkl",), archive__data_pkl=b""),
    "large pickle": lambda raw: rezipped(raw, skip=("data.pkl",), archive__data_pkl=b" " * (_files.LARGEST_PICKLE + 1)),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(tmp_path, block, name):
    path = tmp_path / "weights.pt"
    path.write_bytes(DAMAGED[name](content(block.tensors)))
    with pytest.raises(LoadError) as found:
        from_reference(path)
    assert "weights.pt" in str(found.value)
    assert "\n" not in str(found.value)


def complaint(path):
    """What is said of a file; nothing if it can be read."""
    try:
        from_reference(path)
    except LoadError as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize("flip", range(0, 100, 7))
def test_flipped_bytes_raise_one_error_or_change_numbers_only(tmp_path, block, flip):
    raw = bytearray(content(block.tensors))
    raw[len(raw) * flip // 100] ^= 0x41
    path = tmp_path / "weights.pt"
    path.write_bytes(raw)
    assert "\n" not in complaint(path)


def test_entries_that_overlap_are_rejected(tmp_path, block):
    """Many entries over the same bytes would unpack to more than the file holds."""
    raw = content(block.tensors)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        entries = archive.infolist()
    directory = raw.index(b"PK\x01\x02")
    end = raw.rindex(b"PK\x05\x06")
    data = next(entry for entry in entries if entry.filename.endswith("data/0"))
    record = bytearray(raw[directory:end])
    copies = [
        bytes(record).replace(data.filename.encode(), data.filename[:-1].encode() + bytes([65 + i])) for i in range(20)
    ]
    tail = bytearray(raw[end : end + 22])
    total = len(entries) * 20
    tail[8:10] = tail[10:12] = total.to_bytes(2, "little")
    tail[12:16] = (len(record) * 20).to_bytes(4, "little")
    path = tmp_path / "bomb.pt"
    path.write_bytes(raw[:directory] + b"".join(copies) + bytes(tail))
    with pytest.raises(LoadError):
        from_reference(path)


def test_safetensors_that_are_none(tmp_path, block):
    path = tmp_path / "weights.safetensors"
    for raw in (b"", b"\xff" * 64, (10**12).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"{]"):
        path.write_bytes(raw)
        with pytest.raises(LoadError, match="safetensors"):
            from_reference(path)


def test_paths(tmp_path):
    with pytest.raises(LoadError, match="cannot be read: No such file"):
        from_reference(tmp_path / "none.pt")
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(LoadError, match="cannot be read"):
        from_reference(tmp_path / "folder.pt")
    with pytest.raises(LoadError, match=r"must end in one of \.pt"):
        from_reference(tmp_path / "weights.onnx")
