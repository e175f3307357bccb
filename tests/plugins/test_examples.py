"""The packages in examples/plugins, used from the command line without a change of the library."""

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import statespan
from statespan import param_groups
from statespan.generation import Stream
from statespan.models import build, from_pretrained
from statespan.models.config import layer_class
from statespan.train import Train, evaluate, fit, read_recipe
from statespan.train import recipes as named
from statespan.train.checkpoint import latest
from statespan.train.optim import rate
from tests.nn.make import peak_error
from tests.papers.bench.run import invoke
from tests.plugins.install import EXAMPLES, forget, install, install_examples
from tests.plugins.test_registry import PARTS

SMALL = {"d_input": 1, "d_output": 3, "d_model": 6, "d_state": 8, "n_layers": 2}
QUICK = "train.steps=8 train.batch=16 train.validate_every=4 train.save_every=2 train.keep=9 train.tensorboard=false"
USES = {
    "my-gru": 'model.layer=my-gru "model.ssm={hidden: 12}"',
    "mimo": 'model.layer=mimo model.d_state=16 "model.ssm={dt_max: 0.3}"',
    "octaves": "model.ssm.init=octaves",
    "restarts": 'train.schedule=restarts "train.schedule_options={cycles: 3}"',
}


@pytest.fixture
def examples(site):
    install_examples(site)
    return site


def command(folder, path, text, **options):
    """Run ``statespan`` in another process, with the packages in ``path``."""
    paths = [str(path), *filter(None, [os.environ.get("PYTHONPATH"), str(Path(statespan.__file__).parents[1])])]
    return subprocess.run(
        [sys.executable, "-m", "statespan", *shlex.split(text)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, **options,
    )  # fmt: skip


def weights(folder):
    return latest(folder / "checkpoints")[0]


def test_foreign_parts_from_the_command_line(examples, tmp_path, monkeypatch):
    parts = {"optimizers": {"sgd": "torch.optim:SGD"}, "metrics": {"top2": "top_two:top2"}}
    install(examples, "parts", parts, top_two=PARTS)
    uses = f'{USES["my-gru"]} {USES["restarts"]} train.optimizer=sgd "train.optimizer_options={{momentum: 0.9}}"'
    done = command(
        tmp_path, examples, f'train digits-s4d {uses} "train.metrics=[top2]" {QUICK} model.dropout=0.2 name=whole'
    )
    assert done.returncode == 0, done.stderr
    assert "classifier of MY-GRU, 2 layers" in done.stdout
    run = tmp_path / "runs" / "whole"
    result = json.loads((run / "result.json").read_text())
    assert 0 < result["test"]["accuracy"] <= result["test"]["top2"] <= 1
    with (run / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["valid_top2"] != "" for row in rows].count(True) == 2

    line = next(line for line in invoke("eval", run).stdout.splitlines() if "top2" in line)
    assert float(line.split()[1]) == pytest.approx(result["test"]["top2"], abs=1e-4)
    at_half = invoke("eval", run, "--dt-scale", "2")
    assert at_half.exit_code == 2
    assert at_half.stderr == "statespan: dt_scale must be 1 for a GRU, which has no step size, got 2.0\n"

    whole = weights(run)  # the same bits after going back to step 4
    for path in (run / "checkpoints").iterdir():
        if int(path.name.partition("-")[0]) > 4:
            path.rename(tmp_path / path.name)
    (run / "result.json").unlink()
    resumed = command(tmp_path, examples, "train runs/whole --resume")
    assert resumed.returncode == 0, resumed.stderr
    again = weights(run)
    assert set(again) == set(whole)
    assert [key for key in whole if not torch.equal(whole[key], again[key])] == []
    assert any(key.startswith("optimizer/") and key.endswith("momentum_buffer") for key in whole)

    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(examples)])  # uninstalled
    forget()
    without = invoke("eval", run)
    assert without.exit_code == 2
    assert without.stderr == "statespan: train.optimizer is sgd; allowed: one of adamw, lamb\n"


@pytest.mark.parametrize("name", USES)
def test_each_package_trains_evaluates_and_loads(name, examples, tmp_path):
    overrides = [*shlex.split(USES[name]), *QUICK.split()]
    result = fit(named.read("digits-s4d", overrides), tmp_path / "run", progress=False)
    assert result.steps == 8
    assert evaluate(tmp_path / "run") == result.test
    model = statespan.load(tmp_path / "run")
    x = torch.rand(4, 64, 1)
    assert torch.equal(model(x), from_pretrained(tmp_path / "run" / "model")(x))
    assert all(np.isfinite(value) for value in result.test.values())
    if name == "mimo":
        done = invoke("stream", tmp_path / "run")
        assert done.exit_code == 2
        assert done.stderr == "statespan: step needs a module with a recurrence, got MIMO\n"


def test_the_examples_of_commands_in_the_packages_parse():
    for path in EXAMPLES.glob("*.py"):
        lines = [line.strip() for line in path.read_text().splitlines() if line.startswith("    statespan train ")]
        assert len(lines) == 1, path
        assert lines[0].split()[2] == "digits-s4d"
    assert len(list(EXAMPLES.glob("*.py"))) == len(USES)


@pytest.mark.parametrize("layer", ["my-gru", "mimo"])
def test_padding_does_not_matter(layer, examples):
    model = build("classifier", options={**SMALL, "layer": layer}, dtype=torch.float64).eval()
    x = torch.randn(3, 40, 1, dtype=torch.float64)
    y = model(x, lengths=[40, 17, 1])
    for row, length in enumerate((40, 17, 1)):
        assert peak_error(y[row], model(x[row : row + 1, :length])[0]) < 1e-11


def test_the_gru_answers_the_same_in_blocks_and_steps(examples):
    layer = layer_class("my-gru")(5, hidden=7, dtype=torch.float64)
    x = torch.randn(3, 20, 5, dtype=torch.float64)
    y = layer(x)
    lengths = torch.tensor([20, 9, 0])
    _, after = layer.prefill(x, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        assert peak_error(after[row], layer.prefill(x[row : row + 1, :length])[1][0]) < 1e-12 or length == 0
    assert not after[2].any()
    parts, state = [], None
    for block in x.split((6, 0, 14), 1):
        out, state = layer.prefill(block, state)
        parts.append(out)
    assert peak_error(torch.cat(parts, 1), y) < 1e-12
    state, step = layer.initial_state(3), layer.stepper()
    for t in range(20):
        out, state = step(x[:, t], state)
        assert peak_error(out, y[:, t]) < 1e-12


def test_a_model_of_grus_streams(examples):
    model = build("classifier", options={**SMALL, "layer": "my-gru"}).eval()
    x = torch.randn(2, 12, 1)
    stream = Stream(model, streams=2)
    for t in range(12):
        answer = stream.push(x[:, t])
    assert peak_error(answer, model(x)) < 2e-6


def test_a_layer_without_a_step_says_so(examples):
    model = build("classifier", options={**SMALL, "layer": "mimo"}).eval()
    said = "needs a module with a recurrence, got MIMO"
    with pytest.raises(TypeError, match=f"step {said}"):
        Stream(model)
    with pytest.raises(TypeError, match=f"step {said}"):
        model.stepper()
    with pytest.raises(TypeError, match=f"initial_state {said}"):
        model.initial_state(2)
    with pytest.raises(TypeError, match=f"prefill {said}"):
        model.prefill(torch.randn(2, 5, 1))


def test_the_mimo_layer_is_the_recurrence_of_its_modes(examples):
    layer = layer_class("mimo")(3, 8, dt_min=0.05).double()
    x = torch.randn(2, 15, 3, dtype=torch.float64)
    A = torch.complex(-layer.log_decay.exp(), layer.frequency)
    B, C = torch.view_as_complex(layer.B), torch.view_as_complex(layer.C)
    for dt_scale in (1.0, 2.0):
        dt = dt_scale * layer.log_dt.exp()
        Abar = torch.exp(dt * A)
        Bbar = ((Abar - 1) / A)[:, None] * B
        state, ys = torch.zeros(2, 4, dtype=torch.complex128), []
        for u in x.unbind(1):
            state = Abar * state + u.to(Bbar.dtype) @ Bbar.T
            ys.append(torch.nn.functional.gelu(2 * (state @ C.T).real + layer.D * u))
        assert peak_error(layer(x, dt_scale=dt_scale), torch.stack(ys, 1)) < 1e-12


def test_a_layers_parameters_are_grouped_as_it_says(examples):
    groups = {group["name"]: group for group in param_groups(layer_class("mimo")(3, 8), 0.01, 0.05)}
    assert {name: len(group["params"]) for name, group in groups.items()} == {"ssm": 4, "decay": 2}
    assert groups["ssm"]["lr"] == 0.001


def test_the_schedule_restarts(examples):
    train = Train(schedule="restarts", schedule_options={"cycles": 2}, warmup=2, min_lr=0.1)
    rates = [rate(train, step, 10, 5) for step in range(10)]
    cosine = [0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * k / 4)) for k in range(4)]
    assert rates == pytest.approx([0.5, 1.0, *cosine, *cosine])


TEXT = "{name: a, data: {name: digits}, model: {name: classifier, layer: %s}, train: {%s}}"
MISTAKES = {
    "no such option": ("s4d", "schedule: restarts, schedule_options: {cycle: 2}", "train: schedule_options has no "
                       "'cycle'; did you mean cycles? (allowed: cycles)"),
    "a value": ("s4d", "schedule: restarts, schedule_options: {cycles: 0}", "train: cycles must be at least 1, got 0"),
    "an option of the optimizer": ("s4d", "optimizer: sgd, optimizer_options: {momentun: 1}", "train: "
                                   "optimizer_options has no 'momentun'; did you mean momentum?"),
    "its value": ("s4d", "optimizer: sgd, optimizer_options: {momentum: -1}", "train: Invalid momentum value: -1"),
    "captured": ("s4d", "optimizer: sgd, compile: graph", "train.compile is graph; allowed: auto, none or compile"),
    "the data's task": ("s4d", "metrics: [error]", "train: the metric 'error' is for regression, got data for classif"),
    "sums": ("s4d", "metrics: [three]", "the metric three must return 2 sums, got shape (3,)"),
    "the rate": ("s4d", "schedule: negative", "train.schedule is negative; allowed: factors >= 0, got -1"),
    "the optimizer": ("s4d", "optimizer: none", "train: the optimizer 'none' must make a torch.optim.Optimizer, got"),
    "its groups": ("s4d", "optimizer: fresh", "train: the optimizer 'fresh' must keep the groups it is given"),
    "width": ("wide", "", "model: the layer 'wide' must have d_model and d_output of 128, got d_model=129, d_output"),
}  # fmt: skip
ODD = """
import torch
from statespan.nn import SequenceLayer
from statespan.train import Metric

class Error(Metric):
    tasks = ("regression",)
    def add(self, answer, y):
        return torch.ones(2)
    def value(self, sums):
        return 1.0

class Three(Error):
    tasks = ("classification",)
    def add(self, answer, y):
        return torch.ones(3)

class Wide(SequenceLayer):
    def __init__(self, d_model):
        super().__init__()
        self.d_model = d_model + 1
    def forward(self, x, *, lengths=None, dt_scale=1.0):
        return x

error, three = Error(), Three()
def negative(train, step, total, steps_per_epoch):
    return -1
def none(groups):
    return None
def fresh(groups):
    return torch.optim.SGD([p for group in groups for p in group["params"]], lr=0.1)
"""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_get_one_line(mistake, examples, tmp_path):
    named_here = {
        "metrics": {"error": "odd:error", "three": "odd:three"},
        "schedules": {"negative": "odd:negative"},
        "optimizers": {"none": "odd:none", "fresh": "odd:fresh", "sgd": "torch.optim:SGD"},
        "layers": {"wide": "odd:Wide"},
    }
    install(examples, "odd", named_here, odd=ODD)
    layer, train, said = MISTAKES[mistake]
    recipe = read_recipe(TEXT % (layer, train), ["train.steps=2", "train.batch=8", "model.n_layers=1"])
    with pytest.raises(statespan.train.ConfigError) as error:
        fit(recipe, tmp_path / "run", progress=False)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_registered_optimizer_never_sees_a_step_that_is_not_finite(examples, tmp_path):
    install(examples, "sgd", {"optimizers": {"sgd": "torch.optim:SGD"}})
    recipe = named.read("digits-s4d", [*QUICK.split(), "train.optimizer=sgd", "train.lr=1e30", "train.warmup=0"])
    with pytest.raises(statespan.train.NonFiniteError, match="nothing was updated"):
        fit(recipe, tmp_path / "run", progress=False)


def test_a_state_that_cannot_be_saved_is_named(examples, tmp_path):
    text = """
import torch
class Counting(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["count"] = self.state[p].get("count", 0) + 1
"""
    install(examples, "counting", {"optimizers": {"counting": "counting:Counting"}}, counting=text)
    recipe = named.read("digits-s4d", [*QUICK.split(), "train.optimizer=counting"])
    said = "the state of Counting must consist of tensors to be saved, and count is none"
    with pytest.raises(statespan.train.CheckpointError, match=said):
        fit(recipe, tmp_path / "run", progress=False)


def test_metrics_do_not_depend_on_how_rows_are_cut(examples, tmp_path):
    install(examples, "parts", {"metrics": {"top2": "top_two:top2"}}, top_two=PARTS)
    recipe = named.read("digits-s4d", [*QUICK.split(), "train.metrics=[top2]"])
    result = fit(recipe, tmp_path / "run", progress=False)
    cut = evaluate(tmp_path / "run", overrides=["train.valid_batch=7"])
    assert cut == pytest.approx(result.test)
    model, _, dataset = statespan.train.load_run(tmp_path / "run")
    batch = dataset.test.batch(list(range(len(dataset.test))))
    best = model(batch.x).topk(2).indices
    assert result.test["top2"] == pytest.approx((best == batch.y[:, None]).any(1).double().mean().item())
    assert list(result.test) == ["loss", "accuracy", "top2"]
    assert list(evaluate(tmp_path / "run", overrides=["train.metrics=[]"])) == ["loss", "accuracy"]
