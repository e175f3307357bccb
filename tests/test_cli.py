"""The command line teaches, and answers a mistake with one line."""

import re
import signal
import subprocess
import sys

import pytest
import torch

import statespan
from statespan.cli import main
from statespan.cli.app import _terminated
from statespan.papers.bench.catalog import CATALOG
from tests.papers.bench.run import invoke

# fmt: off
COMMANDS = [
    "train", "eval", "predict", "forecast", "generate", "stream", "export", "import-reference", "models", "plot",
    "view", "data",
    "ablate", "bench", "publish", "recipes", "reproduce",  # the workshop's, by entry point
]
# fmt: on


def test_version():
    done = invoke("--version")
    assert (done.exit_code, done.stdout) == (0, f"statespan {statespan.__version__}\n")


def test_alone_it_shows_its_commands():
    done = invoke()
    assert done.exit_code == 0
    shown = [line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()]
    assert shown == COMMANDS
    assert "..." not in done.stdout.partition("Commands:")[2]  # every line fits


def test_help_lists_every_benchmark_with_its_line_and_sizes():
    done = invoke("bench", "--help")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    joined = re.sub(r"\n {14}", " ", done.stdout).splitlines()  # long lines continue below their text
    for benchmark in CATALOG.values():
        assert f"    {benchmark.name:<10}{benchmark.summary}" in joined
        mine = [line.split() for line in joined if line.strip().startswith(f"{benchmark.name} ") and "=" in line]
        assert [word.partition("=")[0] for word in mine[0][1:]] == list(benchmark.sizes)
    assert sum(line.startswith("    statespan bench ") for line in lines) >= 4


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_fits_a_terminal(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    most = 80 if name == "bench" else 120  # a command to copy with its comment may be long
    assert [line for line in invoke(name, "--help").stdout.splitlines() if len(line) > most] == []


MISTAKES = {
    "unknown benchmark": (["bench", "scalling"], "did you mean scaling?"),
    "no benchmark": (["bench"], "name a benchmark: op, layer"),
    "bad device": (["bench", "op", "--device", "tpu"], "--device must be cpu, cuda"),
    "device for something else": (["bench", "cpu", "--device", "cuda"], "--device of cpu must be cpu, got 'cuda'"),
    "bad dtype": (["bench", "op", "--dtype", "int8"], "--dtype must be one of float64, float32"),
    "bad size": (["bench", "op", "--size", "shapes=12"], "'shapes=12' must be NxNxN"),
    "unknown size": (["bench", "op", "--size", "lengths=12"], "--size of op must be one of shapes, d_state"),
    "bad seed": (["bench", "op", "--seed", "-1"], "--seed must be an integer >= 0, got -1"),
    "seed no number": (["bench", "op", "--seed", "x"], "--seed"),
    "unwritable out": (["bench", "op", "--out", "{file}/x"], "--out must be a folder that can be written to"),
    "out is a file": (["bench", "op", "--out", "{file}"], "--out must be a folder that can be written to"),
    "unknown option": (["bench", "op", "--quik"], "--quick"),
    "unknown command": (["bech"], "bench"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line(name, tmp_path):
    arguments, said = MISTAKES[name]
    file = tmp_path / "file"
    file.write_text("")
    done = invoke(*(word.format(file=file) for word in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("statespan: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_device_that_is_not_there():
    done = invoke("bench", "op", "--device", "cuda")
    assert done.exit_code == 2
    assert "this machine has (0 CUDA devices and cpu), got 'cuda'" in done.stderr


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_missing_packages_are_named(module, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(sys, "argv", ["statespan"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == f'statespan: the command line needs {module}: pip install "statespan[cli]"\n'


def test_without_matplotlib_there_is_a_record_and_no_plot(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = invoke("bench", "scaling", "--quick", "--device", "cpu", "--size", "lengths=32", "--out", tmp_path)
    assert done.exit_code == 0
    assert 'pip install "statespan[plot]"' in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["scaling-cpu-quick.json"]


def test_ctrl_c_and_a_signal_to_end_have_their_exit_codes(monkeypatch):
    def stop(code):
        def raised(*args, **options):
            raise KeyboardInterrupt if code == 130 else SystemExit(code)

        return raised

    for code in (130, 143):
        monkeypatch.setattr("statespan.data.registry.status", stop(code))
        assert invoke("data").exit_code == code
    with pytest.raises(SystemExit, match="143"):
        _terminated(signal.SIGTERM, None)


HEAVY = "torch", "numpy", "lightning", "matplotlib", "sklearn", "triton", "yaml"
PROGRAM = f"""
import sys
from statespan.cli import main
for command in {[[], *([name] for name in COMMANDS)]}:
    sys.argv = ["statespan", *command, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
    print("imported:", *command, *(name for name in {HEAVY} if name in sys.modules))
"""


def test_help_waits_for_nothing_that_only_a_running_command_needs():
    """torch alone takes seconds; the names of the package itself are imported on first use."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert said == ["imported:", *(f"imported: {name}" for name in COMMANDS)]


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "statespan", "--help"], capture_output=True, text=True, check=True)
    assert "Commands:" in done.stdout


def test_the_package_s_names_are_imported_on_first_use():
    assert {*statespan.__all__} <= {*dir(statespan)}
    for name in statespan.__all__:
        assert getattr(statespan, name) is not None
    with pytest.raises(AttributeError, match="module 'statespan' has no attribute 'S5D'"):
        _ = statespan.S5D
