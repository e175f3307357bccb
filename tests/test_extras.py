"""A package that is missing: one line, which names the extra that installs all that the call needs."""

import subprocess
import sys

import pytest

from statespan import _extras

OPTIONAL = (
    "scipy", "sklearn", "rich", "typer", "matplotlib", "triton", "lightning", "safetensors", "yaml", "tensorboard",
    "PIL", "pandas", "onnx", "onnxruntime", "onnxscript",
)  # fmt: skip
COMMAND_LINE = ("rich", "typer")  # what the extra [cli] installs

CALLS = {
    "statespan.load('digits-s4d')": ("safetensors", "train"),
    "models.build('classifier', options={{'d_input': 1, 'd_output': 2, 'd_model': 4}}).save_pretrained('{folder}')": (
        "safetensors",
        "train",
    ),
    "train.read_recipe('{folder}/recipe.yaml')": ("pyyaml", "train"),
    "train.recipes.read('digits-s4d')": ("pyyaml", "train"),
    "data.load('digits')": ("scikit-learn", "data"),
    "statespan.S4Classifier": ("scikit-learn", "timeseries"),
    "plot.kernels(plot.fresh('s4d', {{}}))": ("matplotlib", "plot"),
}
COMMANDS = {
    "train digits-s4d": "train,data",
    "eval digits-s4d": "train,data",
    "generate digits-s4d": "train,data",
    "stream digits-s4d": "train,data",
    "recipes": "train,data",
    "plot kernels": "train,data",
    "view digits-s4d": "train,data",
    "export digits-s4d": "train,data,export",
    "forecast {folder}/data.csv": "timeseries",
    "ablate digits-s4d": "papers",
    "reproduce --list": "papers",
    "publish runs/x": "papers",
}


def without(hidden, program):
    """Run a program as if these packages were not installed."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({list(hidden)}))\n"
    return subprocess.run([sys.executable, "-c", hide + program], capture_output=True, text=True)


def command(line, hidden):
    """Run ``statespan`` as if these packages were not installed."""
    return without(hidden, f"from statespan.cli import main\nsys.argv = {['statespan', *line.split()]}\nmain()")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    _extras.require("this needs", "train", "numpy")
    for modules, named in (("yaml",), "pyyaml"), (("PIL", "numpy", "yaml"), "pillow and pyyaml"):
        with pytest.raises(_extras.MissingPackageError) as caught:
            _extras.require("this needs", "train", *modules)
        assert str(caught.value) == f'this needs {named}: pip install "statespan[train]"'
        assert isinstance(caught.value, ModuleNotFoundError)
        assert caught.value.name == modules[0]


@pytest.mark.parametrize("call", CALLS)
def test_with_torch_and_numpy_alone_a_call_says_what_to_install(call, tmp_path):
    package, extra = CALLS[call]
    (tmp_path / "recipe.yaml").write_text("name: digits-s4d")
    lines = "import statespan\nfrom statespan import data, models, plot, train\nfrom statespan.train import recipes\n"
    done = without(OPTIONAL, lines + call.format(folder=tmp_path / "model" if "save" in call else tmp_path))
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("statespan._extras.MissingPackageError: ")
    assert package in last
    assert last.endswith(f': pip install "statespan[{extra}]"')
    assert "During handling" not in done.stderr


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("installed", [(), COMMAND_LINE], ids=["nothing", "cli"])
def test_a_command_names_everything_at_once(line, installed, tmp_path):
    """The extra is the same whatever is missing, so nobody has to install twice."""
    (tmp_path / "data.csv").write_text("time,x\n2020-01-01,1\n")
    done = command(line.format(folder=tmp_path), [name for name in OPTIONAL if name not in installed])
    assert done.returncode == 2
    assert done.stderr.startswith("statespan: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f': pip install "statespan[{COMMANDS[line]}]"\n')


def test_the_command_line_alone_lists_and_measures(tmp_path):
    """What the extra [cli] promises: it needs no package of training."""
    hidden = [name for name in OPTIONAL if name not in COMMAND_LINE]
    for line in ("models", "data digits", f"bench layer --quick --device cpu --no-plot --out {tmp_path}"):
        done = command(line, hidden)
        assert (done.returncode, done.stderr) == (0, ""), line
    assert [path.name for path in tmp_path.iterdir()] == ["layer-cpu-quick.json"]


def test_training_is_imported_without_its_packages():
    done = without(OPTIONAL, "import statespan.train as train; print(train.fit.__name__, train.Recipe.__name__)")
    assert (done.stdout, done.stderr) == ("fit Recipe\n", "")
