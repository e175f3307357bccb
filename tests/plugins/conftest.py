"""A folder on the path for packages, which are forgotten after the test."""

import sys

import pytest

from statespan.data.registry import REGISTRY
from statespan.models.config import ADDED_LAYERS
from statespan.models.registry import ADDED_MODELS
from statespan.ssm.inits import ADDED_INITS
from statespan.train.parts import METRICS, OPTIMIZERS, SCHEDULES
from tests.plugins.install import forget

REGISTRIES = (ADDED_INITS, ADDED_LAYERS, ADDED_MODELS, METRICS, OPTIMIZERS, REGISTRY, SCHEDULES)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Stands for the folder of installed packages."""
    REGISTRY.names()  # our own modules are imported once, and register their names then
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    before = set(sys.modules)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    forget()
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    forget()
