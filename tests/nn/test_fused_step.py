"""Steps of whole blocks in one function: the numbers of the modules, which are called where somebody would notice."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

from statespan import LSSL, S4, S4D, S5
from statespan.generation.rows import tiled
from statespan.nn import Backbone, FeedForward, ResidualBlock, fused_step
from statespan.ops import use_path
from statespan.ops.step import eager
from tests.nn.make import peak_error, perturb

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for a CPU")
f32, f64 = torch.float32, torch.float64
D, LENGTH = 16, 30
LAYERS = {
    "s4d-glu": lambda: S4D(D, 16), "s4-linear": lambda: S4(D, 16, mix="linear"),
    "s4d-none": lambda: S4D(D, 8, mix=None),
    "foh-plain": lambda: S4D(D, 8, discretization="foh", activation=None), "legt": lambda: S4(D, 8, init="legt"),
    "channels": lambda: S4(D, 16, channels=2), "dropout": lambda: S4D(D, 16, dropout=0.2),
}  # fmt: skip
STACKS = {
    "prenorm": {}, "postnorm": {"prenorm": False}, "batch": {"norm": "batch"}, "none": {"norm": "none"},
    "dropout": {"dropout": 0.3, "tie_dropout": False},
}  # fmt: skip


@pytest.fixture
def runs(monkeypatch):
    count = []
    original = fused_step.FusedSteps.__call__
    monkeypatch.setattr(fused_step.FusedSteps, "__call__", lambda *a: count.append(1) or original(*a))
    return count


def given(layer="s4d-glu", stack="prenorm", dtype=f32, count=2):
    torch.manual_seed(6)
    model = Backbone([LAYERS[layer]() for _ in range(count)], **STACKS[stack]).to(dtype)
    for name, buffer in model.named_buffers():
        buffer.uniform_(0.5, 2.0) if "running" in name else None
    return perturb(model, 0.1).eval()


def steps(model, x, *, in_place=False, dtype=f64):
    """The outputs at all positions, and the last state."""
    step, state, outputs = model.stepper(in_place=in_place), model.initial_state(x.shape[0], dtype=dtype), []
    for t in range(x.shape[1]):
        y, state = step(x[:, t], state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("layer", LAYERS)
@torch.no_grad()
def test_as_the_convolution(layer, stack, dtype, runs):
    """In each batch and way to keep states, to the tolerances that are promised."""
    model, bound = given(layer, stack, dtype), 1e-11 if dtype == f64 else 2e-6
    for batch in (1, 3):
        x = torch.randn(batch, LENGTH, D, dtype=dtype)
        wanted = model(x)
        runs.clear()
        y, state = steps(model, x)
        again, same = steps(model, x, in_place=True)
        assert len(runs) == 2 * LENGTH
        assert y.dtype == dtype
        assert peak_error(y, wanted) <= bound
        assert torch.equal(y, again)
        assert all(map(torch.equal, state, same))
        assert peak_error(steps(model, x, dtype=f32)[0], wanted) <= 2e-6


@torch.no_grad()
def test_states_are_those_of_before(runs):
    model = given()
    x = torch.randn(2, LENGTH, D)
    state = model.initial_state(2, dtype=f32)
    kept = [s.clone() for s in state]
    y, after = model.step(x[:, 0], state)
    assert all(map(torch.equal, state, kept))
    assert all(s.dtype == f32 and s.shape == k.shape and s.is_contiguous() for s, k in zip(after, kept))
    step = model.stepper(in_place=True)
    again, same = step(x[:, 0], state)
    assert all(a is b for a, b in zip(same, state))
    assert torch.equal(again, y)
    assert all(map(torch.equal, state, after))
    block, alone = model.blocks[0], model.blocks[0].initial_state(2)
    runs.clear()
    y, _ = block.step(x[:, 0], alone)
    assert len(runs) == 1
    assert peak_error(y, block(x[:, :1])[:, 0]) <= 2e-6


@pytest.mark.parametrize("batch", [1, 2])
@torch.no_grad()
def test_inputs_stay_as_they_are(batch):
    model = given()
    x = torch.randn(D, batch).T
    before = x.clone()
    model.step(x, model.initial_state(batch))
    assert torch.equal(x, before)


PLACES = ("norm", "blocks.0.norm", "blocks.1.dropout", "blocks.0.layer.dropout", "blocks.1.layer.mix")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
@pytest.mark.parametrize("place", [*PLACES, "blocks.1.layer.mix.0", "blocks.1.layer.mix.1"])
@torch.no_grad()
def test_hooks_fire(place, kind, when, runs):
    """Also those that come after the stepper was made."""
    model, seen, x = given(), [], torch.randn(1, D)
    state = model.initial_state(1)
    step = model.stepper()
    wanted, _ = step(x, state)
    runs.clear()
    handle = getattr(model.get_submodule(place), f"register_{kind}_hook")(lambda m, *_: seen.append(m))
    y, _ = (step if when == "after" else model.stepper())(x, state)
    assert seen == [model.get_submodule(place)]
    assert peak_error(y, wanted) <= 2e-6
    handle.remove()
    runs.clear()
    step(x, state)
    assert len(runs) == 1


@torch.no_grad()
def test_hooks_for_all_modules_fire(runs):
    model, seen = given(), []
    step, state = model.stepper(), model.initial_state(1)
    handle = torch_module.register_module_forward_hook(lambda m, *_: seen.append(m))
    try:
        step(torch.randn(1, D), state)
    finally:
        handle.remove()
    assert runs == []
    assert set(map(model.get_submodule, PLACES)) <= set(seen)


class Own(nn.Module):
    def forward(self, x):
        return 2 * x


class OwnBlock(ResidualBlock):
    pass


def parametrized(model):
    parametrize.register_parametrization(model.blocks[0].layer.mix[0], "weight", Own())


def replaced(model):
    model.blocks[1].layer.mix = nn.Sequential(nn.Linear(D, D), nn.Tanh())


def patched(model):
    model.blocks[0].norm.forward = lambda x, padding=None: 3 * x


def inherited(model):
    model.blocks[1].__class__ = OwnBlock


def without_bias(model):
    model.blocks[0].layer.mix[0].bias = None


@pytest.mark.parametrize("change", [parametrized, replaced, patched, inherited, without_bias])
@torch.no_grad()
def test_what_takes_the_place_of_a_module_is_called(change):
    model, x = given(), torch.randn(1, LENGTH, D)
    before = model(x)
    change(model)
    wanted = model(x)
    assert peak_error(steps(model, x)[0], wanted) <= 2e-6
    if change not in (inherited,):
        assert peak_error(wanted, before) > 1e-3


@pytest.mark.parametrize("cls", [LSSL, S5])
@torch.no_grad()
def test_other_layers_and_parts_step_as_before(cls, runs):
    model = Backbone([S4D(D, 8), FeedForward(D), cls(D, 8)]).eval()
    x = torch.randn(1, LENGTH, D)
    y, _ = steps(model, x)
    assert peak_error(y, model(x)) <= 2e-6
    assert len(runs) == LENGTH  # the first block alone


def test_where_modules_must_be_called(runs):
    """With gradients, in training with dropout, under autocast and transforms, for tiles, and on forced kernels."""
    model, x = given("dropout"), torch.randn(1, D)
    step, state = model.stepper(), model.initial_state(1)
    assert step(x, state)[0].requires_grad
    with torch.no_grad():
        assert not step(x, state)[0].requires_grad
        assert len(runs) == 1
        model.train()
        assert not torch.equal(step(x, state)[0], step(x, state)[0])
        model.eval()
        with torch.autocast("cpu", torch.bfloat16):
            step(x, state)
        torch.func.vmap(lambda one: step(one[None], state)[0])(x)
        torch.compile(model.stepper(), backend="eager")(x, state)
        twin = tiled(model)
        twin.stepper()(x, state)
        with pytest.raises(RuntimeError, match="mixed dtype"):
            model.double().stepper()(x, state)
    assert len(runs) == 1


@torch.no_grad()
def test_forced_kernels_run(runs):
    pytest.importorskip("triton")
    model = Backbone([S4D(2, 4)]).eval()
    with use_path("triton"):
        model.step(torch.randn(1, 2), model.initial_state(1))
    assert runs == []


@torch.no_grad()
def test_wrong_arguments_have_the_errors_of_the_modules():
    model = given()
    step, state = model.stepper(), model.initial_state(1)
    with pytest.raises(ValueError, match=r"x must have shape \(batch, 16\), got \(1, 3\)"):
        step(torch.randn(1, 3), state)
    with pytest.raises(ValueError, match="state must be a tuple of 2, one for each part, got 1"):
        step(torch.randn(1, D), state[:1])
    with pytest.raises(ValueError, match="state must have shape"):
        step(torch.randn(2, D), state)
    with pytest.raises(TypeError, match="state must be a tuple of 2"):
        step(torch.randn(1, D), state[0])


def test_modes_and_threads():
    """Made in inference mode, used outside of it and by several threads at once."""
    model = given()
    x = torch.randn(4, 1, D)
    with torch.inference_mode():
        step = model.stepper()
        step(x[0], model.initial_state(1))
    state, wrong = model.initial_state(1), []
    with torch.no_grad():
        wanted = [model.step(one, state)[0] for one in x]

    def work(i):
        with torch.no_grad():
            for _ in range(50):
                if not torch.equal(step(x[i], state)[0], wanted[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@torch.no_grad()
def test_a_large_batch_goes_through_the_modules(runs, monkeypatch):
    monkeypatch.setattr(eager, "BLOCK", 4 * D * 16)  # rows of states
    model, x = given(), torch.randn(5, 3, D)
    step = model.stepper()
    y, _ = step(x[:, 0], model.initial_state(5))
    assert peak_error(y, model(x)[:, 0]) <= 2e-6
    assert runs == []
    step(x[:4, 0], model.initial_state(4))
    assert len(runs) == 1
