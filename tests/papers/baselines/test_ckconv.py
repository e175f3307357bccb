"""CKConv against its definition, one lag after the other; other sampling rates; its size in the paper."""

import math

import pytest
import torch

from statespan import models
from statespan.papers.baselines.ckconv import CKBlock, CKConv
from tests.nn.make import peak_error

f64 = torch.float64


def naive_kernel(layer, lag):
    """The network's value at one lag, from numbers."""
    if lag > layer.kernel_length - 1 + 1e-9:
        return torch.zeros(layer.d_model, layer.d_model, dtype=f64)
    y = torch.tensor([2 * lag / (layer.kernel_length - 1) - 1], dtype=f64)
    for number, part in enumerate(layer.layers):
        weight = part.v
        if number:
            weight = torch.stack([g * v / v.square().sum().sqrt() for g, v in zip(part.g, part.v, strict=True)])
        y = weight @ y + part.bias
        y = (layer.omega_0 * y).sin() if number < 2 else y
    return y.view(layer.d_model, layer.d_model)


def naive_convolution(layer, x, dt_scale=1.0):
    """``y_t = dt Σ_l K(l · dt)ᵀ x_{t − l} + b``."""
    kernels = [naive_kernel(layer, lag * dt_scale) for lag in range(x.shape[1])]
    rows = []
    for t in range(x.shape[1]):
        rows.append(dt_scale * sum(x[:, t - lag] @ kernels[lag] for lag in range(t + 1)) + layer.bias)
    return torch.stack(rows, 1)


def naive_block(block, x, dt_scale=1.0):
    y = x
    for convolution, norm in zip(block.convolutions, block.norms):
        y = naive_convolution(convolution, y, dt_scale)
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
        y = (y * norm.weight + norm.bias).clamp(min=0)
    return (x + y).clamp(min=0)


@pytest.mark.parametrize("dt_scale", [1.0, 2.0, 0.5, 1.5])
@pytest.mark.parametrize(("kernel_length", "length"), [(12, 12), (5, 17), (30, 7)])
def test_the_definition(dt_scale, kernel_length, length):
    """Longer and shorter than the kernel, at other rates; outputs and every gradient."""
    block = CKBlock(3, kernel_length=kernel_length, omega_0=4.0, d_hidden=5, dtype=f64)
    with torch.no_grad():
        for part in block.convolutions:
            part.bias.normal_()
            part.layers[1].g.mul_(1.3)
    x = torch.randn(2, length, 3, dtype=f64, requires_grad=True)
    wanted, probe = naive_block(block, x, dt_scale), torch.randn(2, length, 3, dtype=f64)
    assert peak_error(block(x, dt_scale=dt_scale), wanted) <= 1e-11
    inputs = [x, *block.parameters()]
    expected = torch.autograd.grad((wanted * probe).sum(), inputs)
    got = torch.autograd.grad((block(x, dt_scale=dt_scale) * probe).sum(), inputs)
    for one_got, one_wanted in zip(got, expected, strict=True):
        assert (one_wanted != 0).any()
        assert peak_error(one_got, one_wanted) <= 1e-9


def test_another_rate_is_the_same_integral():
    """A smooth signal at two and four times the rate: the outputs at the common times approach each other."""
    layer = CKConv(1, 40, omega_0=1.0, d_hidden=8, dtype=f64)
    with torch.no_grad():
        layer.bias.zero_()
        outputs = []
        for dt_scale in (1.0, 0.5, 0.25):
            t = torch.arange(round(80 / dt_scale), dtype=f64) * dt_scale
            x = (torch.sin(0.11 * t) ** 2 * torch.exp(-(((t - 35) / 12) ** 2)))[None, :, None]
            outputs.append(layer(x, dt_scale=dt_scale)[:, :: round(1 / dt_scale)])
        first, second = (peak_error(one, outputs[2]) for one in outputs[:2])
    assert first < 0.1
    assert 2 < first / second < 4  # the error of the sums is 3/4 and 1/4 of a step, of first order


def test_a_state_goes_on_at_another_rate():
    """Its pasts are cut or filled with zeros on the left, so that a stream that is longer than the kernel goes on."""
    block = CKBlock(2, kernel_length=9, omega_0=3.0, d_hidden=4, dtype=f64)
    x = torch.randn(1, 30, 2, dtype=f64)
    for dt_scale, samples in ((1.0, 8), (2.0, 4), (0.5, 16)):
        _, state = block.prefill(x, dt_scale=dt_scale)
        assert [past.shape for past in state] == [(1, samples, 2)] * 2
    _, long = block.prefill(x[:, :20], dt_scale=0.5)
    _, short = block.prefill(x[:, :20], dt_scale=1.0)
    assert peak_error(long[0][:, -8:], short[0]) <= 1e-12
    y, _ = block.prefill(x[:, 20:], tuple(past[:, -8:] for past in long), dt_scale=0.5)
    assert y.isfinite().all()
    for bad, error in (((long[0],), TypeError), ((long[0], long[1][..., :1]), ValueError)):
        with pytest.raises(error, match="state must"):
            block.prefill(x, bad)


def test_initial_kernel():
    """SIREN's initialization: frequencies up to ω₀ of the relative position, matrices in its bounds."""
    layer = CKConv(4, 1000, omega_0=30.0)
    for part, bound in zip(layer.layers, (1.0, math.sqrt(6 / 32) / 30, math.sqrt(6 / 32) / 30), strict=True):
        weight = part.v if part.g is None else part.v * (part.g / part.v.norm(dim=1))[:, None]
        assert 0.8 * bound < weight.abs().max() <= bound * 1.0001
        assert part.bias.abs().max() <= 1
    kernel = layer.kernel(1000).flatten(1).detach()
    moves = (kernel[1:] - kernel[:-1]).abs().amax() / (kernel.amax() - kernel.amin())
    assert 0 < moves < 0.1  # smooth


@pytest.mark.parametrize(("d_model", "wanted"), [(26, 98e3), (86, 1.01e6)])
def test_parameters_as_in_its_paper(d_model, wanted):
    """CKCNN has about 98K and 1M parameters with 30 and 100 channels, of which the first convolution reads one."""
    options = {"d_input": 1, "d_output": 10, "d_model": d_model, "n_layers": 2, "layer": "ckconv", "pool": "last"}
    model = models.build("classifier", options={**options, "residual": False, "norm": "none"}, device="meta")
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(wanted, rel=0.02)


def test_options():
    for call, message in (
        (lambda: CKBlock(4, kernel_length=1), "kernel_length must be an integer >= 2, got 1"),
        (lambda: CKBlock(4, omega_0=0.0), "omega_0 must be a number > 0, got 0.0"),
        (lambda: CKBlock(4, d_hidden=0), "d_hidden must be an integer >= 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
