"""What importing statespan costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import statespan

PROGRAM = """
import sys
import numpy, torch
before = {name.partition(".")[0] for name in sys.modules}
import statespan
after = {name.partition(".")[0] for name in sys.modules}
print(*sorted(after - before - sys.stdlib_module_names))
"""


def test_import_needs_only_torch_and_numpy():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["statespan"]


def test_import_without_anything_else_installed():
    """With the packages that only tests, examples and kernels use hidden."""
    hidden = ("scipy", "sklearn", "hypothesis", "rich", "typer", "matplotlib", "mpmath", "triton")
    hidden += ("lightning", "safetensors", "yaml", "tensorboard", "PIL", "pandas")
    hidden += ("onnx", "onnxruntime", "onnxscript", "transformers", "huggingface_hub")
    hide = f"sys.modules.update(dict.fromkeys({hidden}))"
    program = f"import sys; {hide}; import statespan; print(statespan.S4D(2).d_model)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "2\n"


def test_public_names():
    modules = {"ssm", "ops", "nn", "models", "generation", "data", "train"}
    names = {"S4", "S4D", "S5", "DSS", "LRU", "LSSL", "SSMLayer", "Stream", "generate", "load", "use_path"}
    names |= {"S4Classifier", "S4Regressor", "S4Forecaster", "from_reference", "to_reference", "param_groups"}
    names |= {"__version__", "capture", "packed", "sequence_parallel"}
    assert {*names, *modules} == set(statespan.__all__)
    assert all(hasattr(statespan, name) for name in statespan.__all__)


FLOORS = ["ssm", "ops", "nn", "data", "models", "generation", "export", "train", "estimators", "plot", "view", "cli"]
WORKSHOP = ["datasets", "baselines", "recipes", "bench", "records", "runs", "tables", "cli"]
PRIVATE = {path.stem for path in Path(statespan.__file__).parent.glob("_*.py")}


def imported(folder):
    """What the modules below a folder import of statespan: (file, dotted name below statespan)."""
    for path in (Path(statespan.__file__).parent / folder).glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "statespan":
                base = node.module.partition(".")[2]
                for name in node.names:
                    yield path.name, f"{base}.{name.name}".lstrip(".")


@pytest.mark.parametrize("floor", FLOORS)
def test_lower_floors_never_import_upper_ones(floor):
    allowed = {*PRIVATE, *FLOORS[: FLOORS.index(floor) + 1]}
    if floor == "data":
        allowed -= {"ssm", "ops", "nn"}  # data know nothing of who learns from them
    for file, name in imported(floor):
        assert name.partition(".")[0] in allowed, f"{file} imports {name}"


@pytest.mark.parametrize("floor", WORKSHOP)
def test_the_workshop_has_floors_too(floor):
    allowed = {"markdown", *WORKSHOP[: WORKSHOP.index(floor) + 1]}  # which is below all of them
    for file, name in imported(f"papers/{floor}"):
        if name.startswith("papers."):
            assert name.split(".")[1] in allowed, f"{file} imports {name}"
