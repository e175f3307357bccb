"""The step in memory of its own: the bits of the plain one, in any batch, from any thread and mode."""

import copy
import threading

import pytest
import torch

from statespan.ops import Stepper, system_of
from statespan.ops.step import eager, operator
from tests.ops.make import poison
from tests.ssm.make import make

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for a CPU")
f32, f64 = torch.float32, torch.float64
KINDS = ["diagonal-trained", "dplr-legs", "dplr-legt", "diagonal-trained foh"]


def given(kind="dplr-legs", batch=3, *, channels=2, dtype=f64, heads=3, d_state=10):
    torch.manual_seed(4)
    name, _, rule = kind.partition(" ")
    ssm = make(name, d_state, rule or "bilinear", H=heads, channels=channels)
    step = Stepper(system_of(ssm), torch.randn(channels, heads), "gelu")
    return step, torch.randn(batch, heads), torch.randn(batch, heads, d_state, dtype=f64).to(dtype)


@pytest.fixture
def runs(monkeypatch):
    """The rows of every block."""
    count = []
    original = eager.EagerStep.advance
    monkeypatch.setattr(
        eager.EagerStep, "advance", lambda self, rows, state: count.append(rows.count) or original(self, rows, state)
    )
    return count


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_as_the_plain_step(kind, dtype, runs, monkeypatch):
    poison(monkeypatch)
    step, u, state = given(kind, 7, dtype=dtype)
    wanted, new = step._plain(u, state, f32)
    monkeypatch.setattr(step.eager, "most", 3)
    before = state.clone()
    y, after = step(u, state, f32)
    assert runs == [3, 3, 1]
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-7 * wanted.abs().max().item())
    torch.testing.assert_close(after, new, rtol=0, atol=(1e-7 if dtype == f32 else 1e-15) * new.abs().max().item())
    assert torch.equal(state, before)
    again, same = step(u, state, f32, in_place=True)
    assert same is state
    assert torch.equal(state, after)
    assert torch.equal(again, y)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_same_bits_in_any_batch_and_layout(kind, runs):
    step, u, state = given(kind, 9, heads=16, d_state=64)
    y, after = step(u, state, f32)
    for i in range(9):
        one, new = step(u[i : i + 1], state[i : i + 1], f32)
        assert torch.equal(one[0], y[i])
        assert torch.equal(new[0], after[i])
    strided = state.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(step(u.mT.contiguous().mT, strided, f32)[1], after)
    assert runs == [9, *[1] * 9, 9]
    empty, none = step(u[:0], state[:0], f32)
    assert empty.shape == (0, 2, 16)
    assert none.shape == (0, 16, 64)


def test_memory_is_no_part_of_results_or_copies():
    step, u, state = given()
    with torch.no_grad():
        first, after = step(u, state, f32)
        kept = first.clone(), after.clone()
        step(u + 1, state + 1, f32)
        assert torch.equal(first, kept[0])
        assert torch.equal(after, kept[1])
        assert len(step.eager._spares) == 1
        twin = copy.deepcopy(step)
        assert twin.eager._spares == []
        assert torch.equal(twin(u, state, f32)[0], first)


def test_modes(runs):
    """Memory made in inference mode can be written to outside of it, and gradients take the plain step."""
    with torch.inference_mode():
        step, u, state = given()
        wanted, _ = step(u, state, f32)
    with torch.no_grad():
        y, _ = step(u.clone(), state.clone(), f32)
    assert torch.equal(y, wanted)
    assert len(runs) == 2
    step, u, state = given()
    y, _ = step(u, state.requires_grad_(), f32)
    assert y.requires_grad
    with torch.no_grad():
        torch.func.vmap(lambda one: step(one, state.detach(), f32)[0])(u[None])
    assert len(runs) == 2


def test_threads():
    step, u, state = given(heads=16, d_state=64)
    with torch.no_grad():
        wanted = [step._plain(u + i, state, f32)[0] for i in range(4)]
    wrong = []

    def work(i):
        with torch.no_grad():
            for _ in range(100):
                if (step(u + i, state, f32)[0] - wanted[i]).abs().max() > 1e-5:
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(step.eager._spares) <= eager.SPARES


def test_a_dense_system_has_none():
    ssm = make("dense-legs", 4, "bilinear", H=2, channels=1)
    assert operator.Stepper(system_of(ssm)).eager is None
