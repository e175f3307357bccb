"""The papers' public code, stood in for by modules with its files' and classes' names that hold our layers."""

import logging
import re
import sys
import types
from importlib import import_module

import pytest
import torch

from statespan import to_reference
from statespan.papers.bench import public_code
from statespan.papers.bench.options import choose_options, find
from tests.papers.bench.run import invoke, quick

BLOCK = """
import logging
from functools import partial
from torch import nn
import statespan
from src.models.nn import SCALE
from extensions.kernels.cauchy import has_cuda_extension
has_pykeops = True
logging.getLogger("s4").warning("an extension is missing")

class S4Block(nn.Module):
    def __init__(self, d_model, *, mode, d_state, final_act, bidirectional, dropout):
        super().__init__()
        assert (final_act, bidirectional, dropout) == ("glu", False, 0.0)
        make = {"diag": partial(statespan.S4D, discretization="zoh"), "nplr": statespan.S4}[mode]
        self.ours = make(d_model, d_state)

    def state_dict(self):
        return statespan.to_reference(self.ours, l_kernel=4096)

    def forward(self, x):
        return SCALE * self.ours(x.mT).mT, None
"""
MINIMAL = """
from torch import nn
import statespan
from src.models.nn import SCALE

class S4D(nn.Module):
    def __init__(self, d_model, d_state=64, dropout=0.0):
        super().__init__()
        self.ours = statespan.S4D(d_model, d_state, discretization="zoh")

    def state_dict(self):
        return statespan.to_reference(self.ours)

    def forward(self, x):
        return self.ours(x.mT).mT, None
"""
FILES = {
    "models/s4/s4.py": BLOCK,
    "models/s4/s4d.py": MINIMAL,
    "src/models/nn/__init__.py": "SCALE = 1.0",
    "extensions/kernels/cauchy.py": "has_cuda_extension = False",
}
ROWS = ["S4D, papers' code", "S4D minimal, papers' code", "S4, papers' code"]


@pytest.fixture
def folder(tmp_path):
    """A folder with the repository's layout."""
    for file, text in FILES.items():
        path = tmp_path / "s4" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "s4"


def run(tmp_path, folder):
    return quick(tmp_path, "eager", "--reference", folder, "--no-plot", "--size", "shapes=2x60x8")


def test_its_layers_are_measured_beside_ours(tmp_path, folder, capfd):
    done, record = run(tmp_path, folder)
    assert done.exit_code == 0, done.output
    rows = {row["name"]: row for row in record["rows"]}
    assert [name for name in rows if name.endswith("papers' code")] == ROWS
    for name in ROWS:
        row = rows[name]
        assert (row["status"], row["tolerance"]) == ("ok", 5e-2)
        assert row["time_ms"] > 0
        assert set(row["compared"]) == {"output", "input gradient"}
        assert 0 < row["error"] < 2e-5
        assert re.search(r"SHA-256 [0-9a-f]{12}…", row["notes"])
    assert "models/s4/s4.py" in rows[ROWS[0]]["notes"]
    assert "kernel: pykeops" in rows[ROWS[2]]["notes"]
    assert "models/s4/s4d.py" in rows[ROWS[1]]["notes"]
    assert "kernel: naive" in rows[ROWS[1]]["notes"]
    assert "an extension is missing" not in done.output + capfd.readouterr().err
    assert rows["S4D"]["parameters"] == rows[ROWS[0]]["parameters"]


def test_another_map_gets_no_time(tmp_path, folder):
    (folder / "src/models/nn/__init__.py").write_text("SCALE = 1.2")
    done, record = run(tmp_path, folder)
    assert done.exit_code == 1
    rows = {row["name"]: row for row in record["rows"]}
    for name, status in zip(ROWS, ("wrong", "ok", "wrong")):
        assert rows[name]["status"] == status
    assert rows[ROWS[0]]["time_ms"] is None
    assert rows[ROWS[0]]["error"] == pytest.approx(0.2, rel=1e-3)
    assert rows["S4D"]["time_ms"] > 0


def test_a_layer_that_fails_is_a_finding(tmp_path, folder):
    """What cannot be imported behind the main file fails in its own row, with the package that is missing."""
    (folder / "models/s4/s4d.py").write_text("import not_a_package\nclass S4D: pass\n")
    done, record = run(tmp_path, folder)
    assert done.exit_code == 0
    rows = {row["name"]: row for row in record["rows"]}
    assert (rows[ROWS[1]]["status"], rows[ROWS[1]]["time_ms"]) == ("failed", None)
    assert rows[ROWS[1]]["reason"] == "ModuleNotFoundError: No module named 'not_a_package'"
    assert rows[ROWS[0]]["status"] == rows[ROWS[2]]["status"] == "ok"


@pytest.mark.parametrize("breaks", [False, True])
def test_importing_leaves_no_trace(folder, monkeypatch, breaks):
    own = types.ModuleType("src")
    monkeypatch.setitem(sys.modules, "src", own)  # somebody else's package of that name
    if breaks:
        (folder / "src/models/nn/__init__.py").write_text("raise RuntimeError('broken')")
    paths, modules, disabled = list(sys.path), set(sys.modules), logging.root.manager.disable
    if breaks:
        with pytest.raises(RuntimeError, match="broken"):
            public_code.load(folder, public_code.MAIN)
    else:
        assert public_code.load(folder, public_code.MAIN).SCALE == 1.0
    assert sys.path == paths
    assert set(sys.modules) == modules
    assert import_module("src") is own
    assert logging.root.manager.disable == disabled


def test_layers_have_the_papers_options():
    """Called with what their classes accept: d_model first, and both S4 and S4D with the same state size."""
    calls = []
    module = types.SimpleNamespace(
        S4Block=lambda *sizes, **options: calls.append((sizes, options)),
        S4D=lambda *sizes, **options: calls.append((sizes, options)),
    )
    for layer in public_code.LAYERS:
        layer.make(module, 128, 64)
    block = {"d_state": 64, "final_act": "glu", "bidirectional": False, "dropout": 0.0}
    assert calls == [
        ((128,), {"mode": "diag", **block}),
        ((128,), {"d_state": 64, "dropout": 0.0}),
        ((128,), {"mode": "nplr", **block}),
    ]


def test_the_stand_in_has_the_names_of_the_weights(folder):
    """So that the comparison runs through the same conversion as that of the real code."""
    module = public_code.load(folder, public_code.MAIN)
    torch.manual_seed(0)
    layer = public_code.LAYERS[2].make(module, 4, 8)
    names = layer.state_dict().keys()
    assert {"layer.D", "layer.kernel.C", "layer.kernel.P", "output_linear.0.weight"} <= set(names)
    assert names == to_reference(layer.ours, l_kernel=4096).keys()


@pytest.mark.parametrize(
    ("has_cuda", "has_pykeops", "name"),
    [(True, True, "CUDA extension"), (False, True, "pykeops"), (False, False, "naive")],
)
def test_backends(has_cuda, has_pykeops, name):
    module = types.SimpleNamespace(has_cuda_extension=has_cuda, has_pykeops=has_pykeops)
    assert public_code.backend(module) == name


MISTAKES = {
    "no folder": (lambda folder: folder / "nowhere", "which is not there"),
    "a file": (lambda folder: folder / "models/s4/s4.py", "which is a file"),
    "another folder": (lambda folder: folder / "models", "which has no models/s4/s4.py"),
    "no minimal": (lambda folder: remove(folder, "models/s4/s4d.py"), "which has no models/s4/s4d.py"),
    "no class": (lambda folder: write(folder, "x = 1"), "whose models/s4/s4.py has no class S4Block"),
    "no package": (
        lambda folder: write(folder, "import not_a_package.inner\nclass S4Block: pass"),
        "s4.py needs the package not_a_package, which is not installed",
    ),
    "broken": (
        lambda folder: write(folder, "class S4Block: pass\nraise RuntimeError('too new')"),
        "s4.py cannot be imported: RuntimeError: too new",
    ),
}


def remove(folder, file):
    (folder / file).unlink()
    return folder


def write(folder, text):
    (folder / "models/s4/s4.py").write_text(text)
    return folder


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_folder_is_one_line_before_anything_runs(name, folder, tmp_path):
    make, said = MISTAKES[name]
    done = invoke("bench", "eager", "--quick", "--device", "cpu", "--out", tmp_path, "--reference", make(folder))
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "--reference" in done.stderr
    assert said in done.stderr
    assert list(tmp_path.glob("*.json")) == []


def test_only_eager_takes_it(folder):
    done = invoke("bench", "op", "--quick", "--device", "cpu", "--reference", folder)
    assert done.exit_code == 2
    assert "--reference goes with the benchmark eager, not with op" in done.stderr
    assert choose_options(find("eager"), device="cpu", reference=folder).reference == folder.resolve()
    assert choose_options(find("eager"), device="cpu").reference is None
