"""Gradients over irregular times: those of the recorded form, with the states of √L samples in memory."""

import os
import subprocess
import sys

import pytest
import torch

from statespan import S4D
from statespan.models import Classifier, ClassifierConfig, Regressor
from statespan.models import irregular as models
from statespan.models.irregular import answer_with_gaps, training_cost
from statespan.ssm import Diagonal
from statespan.ssm.gap_steps import GapModes
from statespan.ssm.irregular import scan_gaps, scan_recorded
from statespan.ssm.packed import unpack

f64 = torch.float64
DEFAULT = {
    "d_input": 1, "d_output": 2, "d_model": 64, "d_state": 16, "n_layers": 3, "layer": "s4d", "mix": "glu",
    "ssm": {"init": "lin", "dt_min": 1 / 560, "dt_max": 0.5}, "norm": "batch", "bidirectional": True, "pool": "mean",
}  # fmt: skip


def drawn(rule, batch=3, length=70, heads=2, modes=3, channels=2):
    """Inputs of a scan with what is hard: equal times, long gaps, tiny steps, a mode that grows and is capped."""
    torch.manual_seed(0)
    A = torch.complex(-torch.rand(heads, modes, dtype=f64), 4 * torch.randn(heads, modes, dtype=f64))
    A[0, 0] = 3.0 + 1.0j
    A[1, 1] = -1e-9
    B, C = torch.randn(heads, modes, dtype=A.dtype), torch.randn(channels, heads, modes, dtype=A.dtype)
    gaps = torch.rand(batch, length, dtype=f64) * 2
    gaps[0, 5], gaps[1, 7:9], gaps[-1, 0] = 0.0, 40.0, 0.0
    dt = torch.linspace(0.01, 0.3, heads, dtype=f64)
    state = torch.complex(*torch.randn(2, batch, heads, modes, dtype=f64))
    tensors = [torch.randn(batch, length, heads, dtype=f64), gaps, state, A, B, C, dt]
    return [x.requires_grad_() for x in tensors], rule


def scan(inputs, rule, chunk):
    u, gaps, state, A, B, C, dt = inputs
    y, last = scan_gaps(
        Diagonal(A, B, C, dt, discretization=rule), u, gaps, torch.cat([state.real, state.imag], -1), chunk=chunk
    )
    return y, unpack(last)


@pytest.mark.parametrize("chunk", [None, 1, 7, 100])
@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_outputs_and_gradients_are_those_of_the_recorded_form(rule, chunk):
    inputs, rule = drawn(rule)
    wanted, got = scan_recorded(*inputs[:3], GapModes(*inputs[3:], rule)), scan(inputs, rule, chunk)
    weights = [torch.randn_like(x) for x in wanted]
    for one, other in zip(got, wanted, strict=True):
        assert (one - other).abs().max() < 1e-11 * other.abs().max()
    gradients = [torch.autograd.grad(outputs, inputs, weights) for outputs in (got, wanted)]
    for one, other in zip(*gradients, strict=True):
        assert (one - other).abs().max() < 1e-11 * other.abs().max()


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_second_derivatives_and_torch_func(rule):
    torch.manual_seed(0)
    ssm = S4D(1, 4, discretization=rule, dt_min=0.3, dt_max=0.3).double().structure()
    parts = [x.detach() for x in (ssm.A, ssm.B, ssm.C, ssm.dt)]
    u = torch.randn(1, 3, 1, dtype=f64, requires_grad=True)
    gaps = torch.tensor([[0.5, 1.0, 2.0]], dtype=f64, requires_grad=True)

    def loss(u, gaps):
        return scan_gaps(Diagonal(*parts, discretization=rule), u, gaps)[0].square().sum()

    assert torch.autograd.gradgradcheck(loss, (u, gaps))
    wanted = torch.autograd.grad(loss(u, gaps), (u, gaps))
    got = torch.func.grad(loss, argnums=(0, 1))(u.detach(), gaps.detach())
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def saved_bytes(run):
    """What autograd keeps of a call, each piece of memory counted once."""
    pieces = {}

    def pack(x):
        pieces[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = run()
    return sum(pieces.values()), result


def test_only_inputs_and_the_square_root_of_states_are_kept():
    inputs, rule = drawn("bilinear", batch=2, length=400, heads=4, modes=8, channels=1)
    u, gaps, _, *parameters = inputs
    ssm = Diagonal(*parameters, discretization=rule)
    kept, _ = saved_bytes(lambda: scan_gaps(ssm, u, gaps))
    states = 20 * 2 * 4 * 8 * 16  # √400 states of 2 sequences, 4 heads, 8 complex modes
    expected = states + sum(x.numel() * x.element_size() for x in (u, gaps, *parameters))
    assert expected <= kept <= expected + 2000  # the scale factors of casts


@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_memory_of_a_whole_model_grows_like_that_of_its_activations(kind):
    model = kind(ClassifierConfig(**{**DEFAULT, "d_model": 16, "dropout": 0.1}))
    found = {}
    for length in (64, 256, 1024):
        x, gaps = torch.randn(2, length, 1), torch.rand(2, length) + 0.5
        found[length], _ = saved_bytes(lambda x=x, gaps=gaps: answer_with_gaps(model, x, gaps))
    activation = {length: 4 * 2 * length * 16 for length in found}  # one tensor of a layer
    state = 2 * 16 * 8 * 16
    for length, kept in found.items():
        assert kept < 3 * (models.ACTIVATIONS * activation[length] + 2 * (length**0.5) * state)
        assert kept < training_cost(model, 2, length).memory
    assert found[1024] < 4 * found[256] < 16 * found[64]  # all states would be 60 times this, and the same share


def test_a_large_cost_is_announced(capsys, monkeypatch):
    model = Classifier(ClassifierConfig(**{**DEFAULT, "d_model": 8, "n_layers": 1}))
    models.announce_cost(model, 4, 50, updates=2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(models, "training_cost", lambda *_: models.Cost(2_340_000_000, 1.5))
    models.announce_cost(model, 4, 50, updates=400)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "irregular times: about 2.3 GB of memory and 1.5 s an update, 10 minutes for up to 400 updates"
    )


def test_the_estimate_of_memory_is_counted():
    model = Classifier(ClassifierConfig(**DEFAULT))
    before = torch.random.get_rng_state()
    cost = training_cost(model, 16, 560)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert 0.2e9 < cost.memory < 0.5e9  # measured: 0.3 GB over the 0.2 GB of torch itself
    assert cost.seconds > 0
    assert all(p.grad is None for p in model.parameters())


# not ru_maxrss, which a process begins with that of the one that forked it
PROGRAM = """
import re, torch
from statespan.models import Classifier, ClassifierConfig
from statespan.models.irregular import answer_with_gaps
model = Classifier(ClassifierConfig(**{options!r}))
answer_with_gaps(model, torch.randn(16, 560, 1), torch.rand(16, 560) + 0.5).square().sum().backward()
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024)
"""


@pytest.mark.soak
def test_peak_memory_of_the_default_model():
    """16 series of 560 samples: all of the process, torch itself included, stays below 1 GB."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(options={**DEFAULT, "dropout": 0.1})],
        check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert int(done.stdout) < 1_000_000_000
