import json

import pytest

from statespan import _machine
from statespan.models import find
from statespan.train import fit, recipes, result

SMALL = ["train.steps=45", "train.validate_every=15", "train.log_every=5", "train.tensorboard=false"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def made(folder, *changes):
    """A finished run of a second, with a commit of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result, "_picture", lambda result: b"")
        patch.setattr(_machine, "commit", lambda: COMMIT)
        fit(recipes.read("digits-s4d", [*SMALL, *changes]), folder, progress=False, device="cpu")
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Two runs of one recipe with different seeds."""
    folder = tmp_path_factory.mktemp("runs")
    return [made(folder / f"seed{seed}", f"train.seed={seed}") for seed in (0, 1)]


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A folder in which models are found by name, and no others."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setattr(find, "folders", lambda: [folder])
    return folder


def read(path):
    return json.loads(path.read_text())
