"""Models on the Hub: what was pushed is what is loaded, with the limits of a folder and not a file more."""

import json
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import close_session, constants

import statespan
from statespan import models
from statespan.models import LoadError, hub
from statespan.models.pretrained import CONFIG, LARGEST_CONFIG
from tests.models.hub_server import Hub
from tests.models.make import inputs, make

TOKEN = "hf_right"


def move(monkeypatch, url):
    """Send huggingface_hub to another server, as HF_ENDPOINT does, which is read once only."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template.replace(constants.ENDPOINT, url))
    monkeypatch.setattr(constants, "ENDPOINT", url)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A Hub, an empty cache, and no token but the one that a test gives."""
    with Hub() as running:
        move(monkeypatch, running.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running
        close_session()


def identical(one, other):
    assert type(one) is type(other)
    assert one.config == other.config
    for name, value in one.state_dict().items():
        assert (other.state_dict()[name] == value).all()


def test_push_and_load(server):
    model = make("classifier", dtype=torch.float32)
    version = model.push_to_hub("me/model", token=TOKEN)
    files = server.files("me/model")
    assert version == f"hf://me/model@{server.refs['me/model']['main']}"
    weights = json.loads(files[CONFIG])["weights"]
    assert files.keys() == {".gitattributes", "README.md", CONFIG, weights["file"]}
    for load in (statespan.load, models.from_pretrained, models.Classifier.from_pretrained):
        for name in ("hf://me/model", version, "hf://me/model@main"):
            loaded = load(name)
            identical(loaded, model)
            assert not loaded.training
    x, more = inputs(model, 2, 9)
    assert (loaded(x, **more) - model(x, **more)).abs().max() < 1e-6
    fetched = [path for method, path in server.requests if method == "GET" and "/resolve/" in path]
    commit = server.refs["me/model"]["main"]
    assert fetched == [f"me/model/resolve/main/{CONFIG}", f"me/model/resolve/{commit}/{weights['file']}"]
    assert server.private == {"me/model": False}


def test_pushing_again_replaces_the_weights_in_one_commit_and_keeps_the_rest(server):
    first, second = make("regressor"), make("classifier")
    old = first.push_to_hub("me/model", token=TOKEN, private=True)
    server.put(
        "me/model", "main", {**server.files("me/model"), "README.md": b"mine", "model-mine.safetensors": b"mine"}
    )
    count = len(server.commits["me/model"])
    new = second.push_to_hub("hf://me/model", token=TOKEN, message="better")
    assert len(server.commits["me/model"]) == count + 1
    files = server.files("me/model")
    assert files["README.md"] == files["model-mine.safetensors"] == b"mine"
    assert len(files) == 5
    identical(statespan.load("hf://me/model"), second)
    identical(statespan.load(new), second)
    identical(statespan.load(old), first)
    assert server.private == {"me/model": True}
    with pytest.raises(LoadError, match="hf://me/model holds the model 'classifier', not 'regressor'"):
        models.Regressor.from_pretrained("hf://me/model")


def test_the_card_says_how_to_load_it(server):
    make("classifier").push_to_hub("me/model", token=TOKEN)
    card = server.files("me/model")["README.md"].decode()
    assert card.startswith("---\nlibrary_name: statespan\n")
    assert 'statespan.load("hf://me/model")' in card


def test_branches(server):
    first, second = make("regressor"), make("classifier")
    first.push_to_hub("me/model", token=TOKEN)
    second.push_to_hub("me/model", revision="wide", token=TOKEN)
    identical(statespan.load("hf://me/model"), first)
    identical(statespan.load("hf://me/model@wide"), second)
    with pytest.raises(LoadError, match="hf://me/model@slim is not a model of statespan on the Hub"):
        statespan.load("hf://me/model@slim")


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "STATESPAN_OFFLINE"])
def test_without_the_hub_the_cache_is_read(switch, server, monkeypatch):
    model = make("classifier")
    model.push_to_hub("me/model", token=TOKEN)
    statespan.load("hf://me/model")
    if switch == "STATESPAN_OFFLINE":
        monkeypatch.setenv(switch, "1")
    else:
        monkeypatch.setattr(constants, switch, True)
    server.requests.clear()
    identical(statespan.load("hf://me/model"), model)
    with pytest.raises(OSError, match="hf://me/other is not in the cache, and the Hub cannot be reached"):
        statespan.load("hf://me/other")
    assert server.requests == []


def changed(server, **values):
    """Change an entry of the weights in config.json, with a new digest."""
    from statespan.models.pretrained import _digest

    files = dict(server.files("me/model"))
    content = json.loads(files[CONFIG])
    content.pop("digest")
    content["weights"] |= values
    files[CONFIG] = json.dumps({**content, "digest": _digest(content)}).encode()
    server.put("me/model", "main", files)
    return files


def test_files_that_are_too_large_are_not_downloaded(server):
    make("classifier").push_to_hub("me/model", token=TOKEN)
    size = json.loads(server.files("me/model")[CONFIG])["weights"]["bytes"]
    files = changed(server, bytes=size - 1)
    with pytest.raises(LoadError, match=f"must have at most {size - 1} bytes, got {size}"):
        statespan.load("hf://me/model")
    server.put("me/model", "main", {**files, CONFIG: b" " * (LARGEST_CONFIG + 1)})
    with pytest.raises(LoadError, match=f"config.json must have at most {LARGEST_CONFIG} bytes, got"):
        statespan.load("hf://me/model")
    fetched = [path for method, path in server.requests if method == "GET" and "/resolve/" in path]
    assert [path.rpartition("/")[2] for path in fetched] == [CONFIG]  # the first one, which was small


def test_what_is_damaged_or_another_file_is_rejected(server):
    make("classifier").push_to_hub("me/model", token=TOKEN)
    files = dict(server.files("me/model"))
    name = json.loads(files[CONFIG])["weights"]["file"]
    server.put("me/model", "main", {**files, name: files[name][:-1] + b"?"})
    with pytest.raises(LoadError, match="is damaged: it is not what config"):
        statespan.load("hf://me/model")
    server.put("me/model", "main", {**files, "evil.bin": b"cos\nsystem"})
    changed(server, file="evil.bin")
    with pytest.raises(LoadError, match=r"names weights 'evil.bin'; allowed: model-DIGEST.safetensors"):
        statespan.load("hf://me/model")
    server.put("me/model", "main", {CONFIG: b'{"model_type": "bert"}'})
    with pytest.raises(LoadError, match="must have the keys format, statespan, model"):
        statespan.load("hf://me/model")
    server.put("me/model", "main", {"x": b""})
    with pytest.raises(LoadError, match="hf://me/model is not a model of statespan on the Hub"):
        statespan.load("hf://me/model")
    assert not [path for _, path in server.requests if path.endswith("evil.bin")]


@pytest.mark.parametrize(
    "name", ["hf://", "hf://model", "hf://a/b/c", "hf://a/../b", "hf://a/b@", "hf://../x", "hf://a/b@x y"]
)
def test_names(name):
    with pytest.raises(LoadError, match=r"name must be hf://user/name or hf://user/name@revision"):
        statespan.load(name)


def test_other_names_mean_what_they_meant(tmp_path, monkeypatch):
    assert hub.locate(tmp_path) == tmp_path
    assert hub.locate(Path("user/name")) == Path("user/name")  # as commands give folders
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(LoadError, match=r"user/name/config.json cannot be read"):
        models.from_pretrained("user/name")


def test_a_plain_name_is_that_of_a_folder_or_else_of_the_hub(server, tmp_path, monkeypatch):
    there, here = make("classifier"), make("regressor")
    there.push_to_hub("me/model", token=TOKEN)
    monkeypatch.chdir(tmp_path)
    identical(models.from_pretrained("me/model"), there)
    identical(type(there).from_pretrained("me/model@main"), there)
    with pytest.raises(LoadError, match="there is no folder me/other, and hf://me/other is not a model of statespan"):
        models.from_pretrained("me/other")
    here.save_pretrained("me/model")
    server.requests.clear()
    identical(models.from_pretrained("me/model"), here)
    for folder in (Path("me/none"), "./none", "../none", "me/a/none"):
        with pytest.raises(LoadError, match="cannot be read"):
            models.from_pretrained(folder)
    assert server.requests == []


def test_mistakes_in_pushing(server, monkeypatch):
    model = make("classifier")
    with pytest.raises(ValueError, match="repository must be user/name, got 'model'"):
        model.push_to_hub("model")
    with pytest.raises(ValueError, match="repository must be user/name, got 'me/model@main'"):
        model.push_to_hub("me/model@main")
    with pytest.raises(OSError, match="401"):
        model.push_to_hub("me/model", token="hf_wrong")
    assert server.commits == {}
    with pytest.raises(ValueError, match=r"repository must be user/name, got '\.\./x'"):
        model.push_to_hub("../x", token=TOKEN)
    move(monkeypatch, "http://127.0.0.1:9")  # where nobody listens
    with pytest.raises(OSError, match="the Hub cannot be reached"):
        model.push_to_hub("me/model", token=TOKEN)


def test_without_huggingface_hub_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    statespan.load("digits-s4d")
    with pytest.raises(
        ModuleNotFoundError, match=r'models of the Hub need huggingface_hub: pip install "statespan\[hub\]"'
    ):
        statespan.load("hf://a/b")
