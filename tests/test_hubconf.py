"""The entry points of torch.hub."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import statespan
from statespan.models import find

ROOT = str(Path(__file__).parent.parent)
LAYERS = {"s4": statespan.S4, "s4d": statespan.S4D, "dss": statespan.DSS, "lssl": statespan.LSSL}
LAYERS |= {"s5": statespan.S5, "lru": statespan.LRU}


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_list_is_that_of_layers_and_published_models():
    entries = runpy.run_path(f"{ROOT}/hubconf.py")
    listed = {name: entry for name, entry in entries.items() if callable(entry) and not name.startswith("_")}
    assert sorted(listed) == sorted([*LAYERS, *find.names()])
    assert "digits-s4d" in listed
    assert all(name in entry.__doc__.lower() for name, entry in listed.items())
    assert entries["dependencies"] == ["torch", "numpy", "safetensors"]


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    torch.manual_seed(0)
    layer = torch.hub.load(ROOT, name, 6, d_state=4, source="local")
    torch.manual_seed(0)
    own = LAYERS[name](6, d_state=4)
    assert type(layer) is LAYERS[name]
    x = torch.randn(2, 9, 6)
    assert (layer(x) == own(x)).all()


@pytest.mark.parametrize("name", find.names())
def test_published_models(name):
    model = torch.hub.load(ROOT, name, source="local")
    own = statespan.load(name)
    assert type(model) is type(own)
    assert not model.training
    for key, value in own.state_dict().items():
        assert (model.state_dict()[key] == value).all()


def test_a_checkout_that_is_not_installed(tmp_path):
    """Isolated from the environment's own statespan: only the folder that was named can have it."""
    program = (
        "import sys; sys.path[:] = [p for p in sys.path if not p.endswith('src')]; sys.meta_path[:] = "
        "[f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
        f"import torch; print(torch.hub.load({ROOT!r}, 'digits-s4d', source='local')(torch.zeros(1, 64, 1)).shape)\n"
        "import statespan; print(statespan.__file__)"
    )
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert re.fullmatch(r"torch.Size\(\[1, 10\]\)\n(.*)\n", run.stdout)[1] == f"{ROOT}/src/statespan/__init__.py"
