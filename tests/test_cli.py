"""The command line teaches, and answers a mistake with one line."""

import subprocess
import sys

import pytest
import torch

import statespan
from statespan.bench import BENCHMARKS
from tests.bench.run import invoke


def test_version():
    done = invoke("--version")
    assert (done.exit_code, done.stdout) == (0, f"statespan {statespan.__version__}\n")


def test_alone_it_shows_its_commands():
    done = invoke()
    assert done.exit_code == 0
    assert "bench" in done.stdout


def test_help_lists_every_benchmark_with_its_line_and_sizes():
    done = invoke("bench", "--help")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    for benchmark in BENCHMARKS.values():
        assert f"    {benchmark.name:<9}{benchmark.summary}" in lines
        mine = [line.split() for line in lines if line.strip().startswith(f"{benchmark.name} ") and "=" in line]
        assert [word.partition("=")[0] for word in mine[0][1:]] == list(benchmark.sizes)
    assert sum(line.startswith("    statespan bench ") for line in lines) >= 4


MISTAKES = {
    "unknown benchmark": (["bench", "scalling"], "did you mean 'scaling'?"),
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
def test_missing_packages_are_named(module):
    program = f"import sys; sys.modules['{module}'] = None; from statespan.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f'statespan: the command line needs {module}: pip install "statespan[cli]"\n'


def test_without_matplotlib_there_is_a_record_and_no_plot(tmp_path):
    program = "import sys; sys.modules['matplotlib'] = None; from statespan.cli import main; main()"
    arguments = ["bench", "scaling", "--quick", "--device", "cpu", "--size", "lengths=32", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert 'pip install "statespan[plot]"' in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["scaling-cpu-quick.json"]


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "statespan", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"statespan {statespan.__version__}\n"
