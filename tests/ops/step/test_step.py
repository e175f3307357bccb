"""The step of all heads against a structure's own step in complex float64: plain, and by the kernel."""

import pytest
import torch
from torch.library import opcheck
from torch.nn.functional import gelu

from statespan.ops import Stepper, system_of, use_path
from statespan.ops.step.operator import StepOptions, System, _step, fused_step
from tests.ops.make import assert_near, poison
from tests.ssm.make import make

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
f32, f64 = torch.float32, torch.float64
KINDS = ["diagonal-trained", "dplr-legs", "dplr-legt", "dense-legs", "diagonal-trained foh", "dense-legs foh"]


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


def given(kind, batch, heads, d_state, channels):
    name, _, rule = kind.partition(" ")
    ssm = make(name, d_state, rule or "bilinear", H=heads, channels=channels)
    D, u = torch.randn(channels, heads), torch.randn(batch, heads)
    return ssm, D.to(DEVICE), u.to(DEVICE), torch.randn(batch, heads, d_state, dtype=f64).to(DEVICE)


def by_structure(ssm, D, u, state, activation):
    y, new = ssm.step(u.cpu().double(), state.cpu().double())
    y = y + D.cpu().double() * u.cpu().double()[:, None]
    return gelu(y) if activation else y, new


def moved(system):
    return type(system)(*(None if x is None else x.to(DEVICE) for x in system))


@pytest.mark.parametrize("path", ["chunks", "triton"])
@pytest.mark.parametrize("kind", KINDS)
def test_step(kind, path):
    """Several sizes, most of them odd; what lies around the state in memory is not touched."""
    if path == "triton":
        pytest.importorskip("triton")
    for batch, heads, d_state, channels, activation in [(1, 1, 2, 1, None), (5, 3, 6, 2, "gelu"), (21, 2, 34, 1, None)]:
        ssm, D, u, state = given(kind, batch, heads, d_state, channels)
        wanted = by_structure(ssm, D, u, state, activation)
        step = Stepper(moved(system_of(ssm)), D, activation)
        with use_path(path), torch.no_grad():
            y, new = step(u, state, f64)
            assert_near(y, wanted[0], 1e-13, "y")
            assert_near(new, wanted[1], 1e-13, "state")
            around = torch.full((batch + 2, heads, d_state), torch.nan, dtype=f32, device=DEVICE)
            inside = around[1:-1]
            inside.copy_(state)
            wanted = by_structure(ssm, D, u, inside, activation)
            y, new = step(u, inside, f32, in_place=True)
            assert y.dtype == f32
            assert new is inside
            assert_near(y, wanted[0], 2e-7, "y in float32")
            assert (inside.cpu() == wanted[1].float()).all()  # rounded once
            assert around[[0, -1]].isnan().all()


def test_many_rows():
    """More sequences than one program takes."""
    pytest.importorskip("triton")
    ssm, D, u, state = given("dplr-legs", 70, 2, 4, 1)
    system = moved(system_of(ssm))
    with use_path("triton"), torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("statespan.ops.step._triton.ELEMENTS", 128)
        y, new = Stepper(system, D, None)(u, state, f64)
    wanted = by_structure(ssm, D, u, state, None)
    assert_near(y, wanted[0], 1e-13)
    assert_near(new, wanted[1], 1e-13)


def test_a_first_order_hold_without_a_skip():
    ssm, _, u, state = given("diagonal-trained foh", 3, 2, 4, 2)
    y, new = Stepper(moved(system_of(ssm)))(u, state, f64)
    wanted = ssm.step(u.cpu().double(), state.cpu())
    assert_near(y, wanted[0], 1e-13)
    assert_near(new, wanted[1], 1e-13)


def test_gradients_go_through_the_plain_step():
    ssm, D, u, state = given("dplr-legs", 2, 2, 4, 1)
    u = u.double()
    leaves = [ssm.A, ssm.C, ssm.dt, u, state]
    for leaf in leaves:
        leaf.requires_grad_()
    with use_path("triton"):
        y, new = Stepper(moved(system_of(ssm)), D, "gelu")(u, state, f64)
    found = torch.autograd.grad(y.sum() + new.sum(), leaves)
    y, new = by_structure(ssm, D, u, state, "gelu")
    for one, other in zip(found, torch.autograd.grad(y.sum() + new.sum(), leaves), strict=True):
        assert_near(one, other, 1e-10)


def test_operator():
    pytest.importorskip("triton")
    ssm, D, u, state = given("dplr-legs", 3, 2, 4, 1)
    system = System(*(None if x is None else x.contiguous() for x in moved(system_of(ssm))._replace(D=D)))
    options = StepOptions(True, f32)
    packed = (u, state, system, options)
    assert all((a == b).all() for a, b in zip(fused_step(*packed), _step(*packed), strict=True))
    opcheck(torch.ops.statespan.step, (u, state, *system, *options), test_utils=("test_schema", "test_faketensor"))
