"""Models in folders: bit for bit, whole or not at all, and one error for everything that is wrong."""

import hashlib
import json
import os
import random
import time

import pytest
import torch
from safetensors.torch import load_file, save

from statespan import _io as io
from statespan import models
from statespan.models import LoadError, pretrained
from tests.models.make import ALL, inputs, make


def identical(one, other):
    one, other = one.state_dict(), other.state_dict()
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype
        assert (value == other[name]).all()


@pytest.mark.parametrize("case", ALL)
def test_round_trip(case, tmp_path):
    """Also that nothing random is drawn, and that what was loaded can be trained."""
    model = make(case, dtype=torch.float32)
    model.save_pretrained(tmp_path / "a" / "b")
    generator = torch.get_rng_state()
    loaded = models.from_pretrained(tmp_path / "a" / "b")
    assert (torch.get_rng_state() == generator).all()
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert not loaded.training
    identical(loaded, model)
    x, more = inputs(model, 2, 11)
    y = loaded(x, **more)
    assert (y == model(x, **more)).all()
    y.sum().backward()
    torch.optim.SGD(loaded.parameters(), 0.1).step()
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]
    identical(type(model).from_pretrained(tmp_path / "a" / "b"), model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype, tmp_path):
    model = make("classifier", dtype=torch.float32).to(dtype)
    model.save_pretrained(tmp_path)
    identical(models.from_pretrained(tmp_path), model)


def test_saving_again_replaces(tmp_path):
    first, second = make("regressor"), make("classifier")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model-mine.safetensors").write_text("mine")
    (tmp_path / f"{io.TEMPORARY}1234").write_text("left by a crash")
    first.save_pretrained(tmp_path)
    second.save_pretrained(tmp_path)
    second.save_pretrained(tmp_path)
    identical(models.from_pretrained(tmp_path), second)
    found = sorted(path.name for path in tmp_path.iterdir())
    assert [name[:8] for name in found] == ["config.j", "model-" + found[1][6:8], "model-mi", "notes.tx"]
    with pytest.raises(LoadError, match="holds the model 'classifier', not 'regressor'"):
        models.Regressor.from_pretrained(tmp_path)


def test_a_failure_at_any_call_keeps_the_old_model_or_gives_the_new_one(tmp_path, monkeypatch):
    old, new = make("regressor"), make("regressor")
    outcomes = set()
    for count in range(20):
        folder = tmp_path / str(count)
        old.save_pretrained(folder)
        calls = iter(range(100))

        def fail(real, stop=count, calls=calls):
            def call(*arguments, **keywords):
                if next(calls) == stop:
                    raise OSError(28, "No space left on device")
                return real(*arguments, **keywords)

            return call

        with monkeypatch.context() as patch:
            for module, name in ((os, "fsync"), (os, "open"), (os, "write"), (os, "replace")):
                patch.setattr(module, name, fail(getattr(module, name)))
            try:
                new.save_pretrained(folder)
                failed = False
            except io.CheckpointError:
                failed = True
        loaded = models.from_pretrained(folder).state_dict()
        is_new = all((value == loaded[name]).all() for name, value in new.state_dict().items())
        is_old = all((value == loaded[name]).all() for name, value in old.state_dict().items())
        assert is_new or (is_old and failed)
        assert not any(path.name.startswith(io.TEMPORARY) for path in folder.iterdir())
        outcomes.add((is_new, failed))
        if not failed:
            break
    assert outcomes == {(False, True), (True, True), (True, False)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    model = make("forecaster", dtype=torch.float32)
    model.save_pretrained(folder)
    (weights,) = folder.glob("*.safetensors")
    return model, folder / "config.json", weights


def test_damage_is_noticed(saved, tmp_path):
    """Bits flipped, bytes cut, added or written over: the same values or a LoadError."""
    model, config, weights = saved
    choose, harmless = random.Random(0), 0
    for trial in range(300):
        files = {path.name: bytearray(path.read_bytes()) for path in (config, weights)}
        content = files[config.name if trial % 3 else weights.name]
        place = choose.randrange(len(content))
        kind = trial % 4
        if kind == 0:
            content[place] ^= 1 << choose.randrange(8)
        elif kind == 1:
            del content[place : place + choose.randrange(1, 9)]
        elif kind == 2:
            content[place:place] = choose.randbytes(choose.randrange(1, 9))
        else:
            content[place] = choose.choice(b"0123456789 ,:{}[]\"'\n")
        for name, raw in files.items():
            (tmp_path / name).write_bytes(raw)
        try:
            loaded = models.from_pretrained(tmp_path)
        except LoadError:
            continue
        harmless += 1
        assert loaded.config == model.config
        identical(loaded, model)
    assert harmless < 20  # white space, or a byte written over by itself


def rewrite(saved, folder, change, tensors=None):
    """The folder with another config or other weights and digests that fit them."""
    _, config, weights = saved
    content = json.loads(config.read_text())
    raw = weights.read_bytes() if tensors is None else save(tensors)
    digest = hashlib.sha256(raw).hexdigest()
    content["weights"] = {"file": f"model-{digest[:16]}.safetensors", "bytes": len(raw), "sha256": digest}
    (folder / content["weights"]["file"]).write_bytes(raw)
    content.pop("digest")
    content = change(content) or content
    content["digest"] = pretrained._digest(content)
    (folder / "config.json").write_text(json.dumps(content))


def put(key, value):
    def change(content):
        target = content
        *path, last = key.split(".")
        for part in path:
            target = target[part]
        target[last] = value

    return change


HOSTILE = {
    "another format": (put("format", 2), "format 2"),
    "format text": (put("format", "1"), "format must be of type int"),
    "another model": (put("model", "os.system"), "holds the model 'os.system': name must be one of"),
    "not its config": (put("model", "regressor"), "cannot be built: options has no 'horizon'"),
    "another dtype": (put("dtype", "complex64"), "dtype 'complex64'"),
    "dtype of other weights": (put("dtype", "float64"), "must be torch.float64"),
    "path": (put("weights.file", "../model.safetensors"), "names weights"),
    "extra key": (put("code", "print()"), "must have the keys"),
    "unknown option": (put("config.d_modle", 3), "did you mean d_model"),
    "other size": (put("config.d_model", 8), "must be torch.float32 of shape"),
    "huge width": (put("config.d_model", 10**7), "more than the"),
    "huge state": (put("config.d_state", 10**30), "more than the"),
    "huge depth": (put("config.n_layers", 10**9), "more than the"),
    "huge input": (put("config.d_input", 10**12), "must be torch.float32 of shape"),
    "impossible input": (put("config.d_input", 10**30), "cannot be built"),
    "more layers": (put("config.n_layers", 3), "are missing"),
    "fewer layers": (put("config.n_layers", 1), "are unknown"),
    "huge number": (put("weights.bytes", 10**30), "damaged"),
    "negative number": (put("weights.bytes", -5), "at most -5 bytes"),
}


@pytest.mark.parametrize("layer", ["s4", "s4d"])
def test_a_config_of_thousands_of_layers_is_refused_before_it_is_built(saved, tmp_path, layer):
    """30,000 layers of 2 numbers each took more than 40 seconds to build and to refuse."""

    def change(content):
        content["config"] |= {"n_layers": 30_000, "d_model": 1, "d_state": 2, "layer": layer}

    rewrite(saved, tmp_path, change, {f"w{i}": torch.zeros(100) for i in range(1000)})
    begun = time.process_time()
    with pytest.raises(LoadError, match=r"30000 layers must have \d+ weights by name, got 1000"):
        models.from_pretrained(tmp_path)
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize("case", ALL)
def test_the_number_of_tensors_is_linear_in_the_layers(case, tmp_path, monkeypatch):
    """So that a config is refused for its number of weights only if it is not theirs."""
    monkeypatch.setattr(pretrained, "FEW_LAYERS", 1)
    model = make(case, dtype=torch.float32, n_layers=4)
    model.save_pretrained(tmp_path)
    identical(models.from_pretrained(tmp_path), model)


def test_a_long_header_is_refused_before_it_is_read(saved, tmp_path):
    tensors = {f"{i:060d}": torch.zeros(0) for i in range(2500)}
    rewrite(saved, tmp_path, lambda content: None, tensors)
    with pytest.raises(LoadError, match="header must have at most 262144 bytes, got"):
        models.from_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    stored = pretrained.StoredModel("classifier", {}, torch.float32, tensors)
    with pytest.raises(LoadError, match="header must have at most 262144 bytes"):  # nor is one written
        pretrained.write(tmp_path, stored)
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_configs(case, saved, tmp_path):
    change, words = HOSTILE[case]
    rewrite(saved, tmp_path, change)
    with pytest.raises(LoadError, match=words):
        models.from_pretrained(tmp_path)


def test_weights_that_do_not_fit(saved, tmp_path):
    tensors = load_file(saved[2])
    name = next(iter(tensors))
    for changed in (
        {**tensors, "more": torch.zeros(1)},
        {key: value for key, value in tensors.items() if key != name},
        {**tensors, name: tensors[name].double()},
        {**tensors, name: tensors[name][..., None].contiguous()},
    ):
        rewrite(saved, tmp_path, lambda content: None, changed)
        with pytest.raises(LoadError, match="weight"):
            models.from_pretrained(tmp_path)


NOT_JSON = ["", "[]", "{", '{"a": 1, "a": 2}', '{"a": NaN}', "[" * 100000, "\xff", " " * (2 << 20)]


@pytest.mark.parametrize("text", NOT_JSON, ids=range(len(NOT_JSON)))
def test_not_a_config(text, tmp_path):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(LoadError, match=r"config\.json"):
        models.from_pretrained(tmp_path)


def test_nothing_there(saved, tmp_path):
    with pytest.raises(LoadError, match="No such file"):
        models.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes(saved[1].read_bytes())
    with pytest.raises(LoadError, match="No such file"):
        models.from_pretrained(tmp_path)
