"""Thousands of steps stay with the parallel model; millions need no more memory than one."""

import gc

import pytest
import torch

from statespan import Stream
from statespan.nn.norm import BatchNorm
from tests.models.make import ALL, inputs, make

f32 = torch.float32
POOLED = ("classifier", "regressor", "mean of tokens", "one SSM", "positions")


def _take_statistics(model, x, more):
    """Let batch norms normalize these inputs, as those of a trained model do: as they begin, nothing is kept small."""
    norms = [part for part in model.modules() if isinstance(part, BatchNorm)]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms:
        model(x, **more)
    model.eval()


def check(case, length, **options):
    """Forward, prefill and steps of a float32 model, within 2e-6 of the peak at every position."""
    torch.manual_seed(0)
    model = make(case, dtype=f32, **options)
    x, more = inputs(model, 2, length)
    with torch.no_grad():
        _take_statistics(model, x, more)
        whole, _ = model.prefill(x, **more)
        step, state = model.stepper(in_place=True), model.initial_state(2, dtype=None)
        outputs = []
        for t in range(length):
            y, state = step(x[:, t], state, **{name: value[:, t] for name, value in more.items()})
            outputs.append(y)
        stepped = torch.stack(outputs, 1)
        peak = stepped.abs().max()  # of all answers: the last few numbers alone may be small by chance
        pooled = case in (*POOLED, "retrieval")
        assert (stepped[:, -1] if pooled else stepped).sub(whole).abs().max() <= 2e-6 * peak
        if case not in ("forecaster", "no marks"):
            assert model(x).sub(whole).abs().max() <= 2e-6 * peak


@pytest.mark.parametrize("case", ALL)
def test_steps(case):
    check(case, 400)


@pytest.mark.soak
@pytest.mark.parametrize("layer", ["s4", "s4d"])
@pytest.mark.parametrize("case", ALL)
def test_16384_steps(case, layer):
    """Wide enough for a norm over the features not to enlarge the rounding of all float32 arithmetic."""
    check(case, 16384, layer=layer, d_state=64, d_model=64, ssm={})


def _memory():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.soak
def test_a_stream_of_10_million_samples():
    """In blocks and sample by sample; what a stream holds does not grow."""
    model = make("classifier", dtype=f32)
    stream = Stream(model)
    x = torch.randn(1, 50_000, 3)
    stream.prefill(x)
    before = _memory()
    for _ in range(200):
        stream.prefill(x)
    for t in range(10_000):
        y = stream.push(x[:, t])
    assert _memory() < before + (16 << 20)
    assert y.isfinite().all()
    seen = [leaf for leaf in stream._state[1] if leaf.dtype == torch.int64]
    assert seen[0].max() == 201 * 50_000 + 10_000
