"""Kernels as power series against the structures' own, with every gradient against autograd's."""

import math

import pytest
import torch

from statespan import S4, S4D
from statespan.ssm import series
from statespan.ssm.powers import block_length
from statespan.ssm.series import SeriesOptions, SeriesTensors
from tests.ops.make import assert_near, poison

LENGTHS = [1, 2, 5, 37, 64, 129]
PARTS = ["exp", "softplus", "relu", "none"]


def given(cls, length, *, dt_scale=1.5, **options):
    """A layer with parameters away from their start, some of which share their modes, and what the series takes."""
    torch.manual_seed(3)
    ssm = cls(6, 10, n_ssm=2, dt_max=1.0, dtype=torch.float64, **options).ssm
    with torch.no_grad():
        for p in ssm.parameters():
            p.add_(0.1 * torch.randn_like(p))
    modal = ssm.modal(dt_scale)
    P = modal.parameters.P
    x = SeriesTensors(*modal.parameters[:5], None if P is None else P[0])
    return ssm, x, SeriesOptions(length, modal.real_part, modal.log_dt, dt_scale)


def check(ssm, x, options, dt_scale=1.5):
    wanted = ssm.structure(dt_scale).kernel(options.length)
    slopes = torch.randn_like(wanted)
    leaves = [ssm.log_dt, ssm.A_real, ssm.A_imag, ssm.B, ssm.C, *([] if x.P is None else [ssm.P])]
    found = torch.autograd.grad(wanted, leaves, slopes, materialize_grads=True)
    with torch.no_grad():
        kernel, saved = series.kernel(x, options)
        got = series.gradients(x, options, saved, slopes)
    assert_near(kernel, wanted, 1e-12, "kernel")
    for name, leaf, one, other in zip(SeriesTensors._fields, leaves, got, found):
        assert_near(one.view_as(leaf), other, 1e-11, f"gradient of {name}")


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("cls", [S4D, S4])
def test_kernel_and_gradients(cls, length, monkeypatch):
    given_ = given(cls, length, channels=2)
    poison(monkeypatch)
    check(*given_)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("cls", [S4D, S4])
def test_each_constraint_of_the_real_part(cls, part):
    check(*given(cls, 20, real_part=part))


@pytest.mark.parametrize("cls", [S4D, S4])
def test_growth_is_capped_as_in_the_structures(cls):
    ssm, x, options = given(cls, 6, real_part="none")
    with torch.no_grad():
        ssm.A_real[:, 0] = torch.tensor([0.5, 40.0])
        ssm.A_imag[:, 0] = 0.1
        ssm.log_dt.fill_(0.0)
    structure = ssm.structure(1.5)
    assert (structure.dt[:, None] * structure.A.real).max() > 1
    check(ssm, x, options)


@pytest.mark.parametrize("log_dt", [-30.0, -7.0, 0.0, 10.0])
@pytest.mark.parametrize("cls", [S4D, S4])
def test_any_step_size(cls, log_dt):
    """The inverse of the series is bounded however large Δ is."""
    ssm, x, options = given(cls, 40)
    with torch.no_grad():
        ssm.log_dt.fill_(log_dt)
    check(ssm, x, options)


def test_step_sizes_that_are_not_logarithms():
    ssm, x, options = given(S4, 9)
    dt = ssm.log_dt.detach().exp().requires_grad_()
    with torch.no_grad():
        by_log, saved = series.kernel(x, options)
        slopes = torch.randn_like(by_log)
        wanted = series.gradients(x, options, saved, slopes)
        plain, plain_options = x._replace(dt=dt), options._replace(log_dt=False)
        kernel, saved = series.kernel(plain, plain_options)
        got = series.gradients(plain, plain_options, saved, slopes)
    assert_near(kernel, by_log, 1e-14)
    assert_near(got.dt * dt, wanted.dt, 1e-13)


def test_the_tables_have_as_many_rows_as_columns(monkeypatch):
    """A factor of the cost: 4 lists of 64 numbers are a product of 16 by 16, not of 32 by 8."""
    shapes: list[int] = []
    original = series.power_table
    monkeypatch.setattr(series, "power_table", lambda d, n: shapes.append(n) or original(d, n))
    _, x, options = given(S4, 64)
    with torch.no_grad():
        series.kernel(x, options)
    assert shapes == [block_length(4 * 64), 64 // 16] == [16, 4]
    assert math.prod(shapes) == 64
