"""When calls are replays, and what has a recording of its own."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from statespan.nn.capture import calls
from statespan.ops import use_path
from tests.nn.capture.make import Alone, CpuRecorder, Net, assert_eager, captured, count, quiet, replays

x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


# what has a recording of its own


def test_arguments():
    """Nested tensors by shape and dtype, everything else by value."""
    module = Alone(
        lambda self, pair, *, options, shift=0.0: (
            pair[0] * self.weight + options["z"][0] * shift if options["on"] else pair[1]
        )
    )
    eager, model = copy.deepcopy(module), captured(module)
    cases = [
        ((x, 2 * x), {"options": {"z": [x], "on": True}}),
        ((x, 2 * x), {"options": {"z": [x], "on": False}}),
        ((x, 2 * x), {"options": {"z": [x], "on": True}, "shift": 1.5}),
        ((x, 2 * x.double()), {"options": {"z": [x], "on": False}}),
        ([x, 2 * x], {"options": {"z": [x], "on": False}}),
    ]
    for _ in range(2):
        for pair, kwargs in cases:
            assert torch.equal(model(pair, **kwargs), eager(pair, **kwargs))
    assert count(model) == len(cases)
    assert replays(model) == 2 * len(cases)


def test_constants_of_different_kinds_are_different():
    model = captured(Alone(lambda self, x, value: (x * self.weight, type(value).__name__, value)), graphs=20)
    values = [1, 1.0, True, "1", b"1", 1j, None, 0.0, -0.0, torch.float32, torch.device("cpu")]
    for value in values * 2:
        name, same = model(x, value)[1:]
        assert (name, str(same)) == (type(value).__name__, str(value))
    assert count(model) == len(values)
    for _ in range(2):
        model(x, float("nan"))
    assert count(model) == len(values) + 1


def test_modes_and_paths():
    model = captured(quiet(0.3))
    with torch.no_grad():
        model(x)
        with torch.inference_mode():
            assert model(x)["y"].is_inference()
        assert count(model) == 1
        with use_path("fft"):
            model(x)
    model.eval()
    model(x)
    model.dropout.train()
    model(x)
    torch.use_deterministic_algorithms(True)
    try:
        model(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert count(model) == 5


def test_the_example_is_recorded_and_not_run():
    module = Net()
    model = captured(module)
    model._calls.plan((x,), {})
    assert (count(model), replays(model), int(module.norm.num_batches_tracked)) == (1, 0, 0)
    model(x)
    assert (count(model), replays(model), int(module.norm.num_batches_tracked)) == (1, 1, 1)


def test_more_kinds_of_calls_than_graphs():
    model, eager = captured(quiet(), graphs=2), quiet()
    eager.load_state_dict(model.state_dict())
    model(x[:1])
    model(x[:2])
    y = assert_eager(model, lambda m: m(x[:3])["y"], "more than graphs=2")
    assert torch.equal(y, eager(x[:3])["y"])
    model(x[:2])
    assert (count(model), replays(model)) == (2, 3)


# tensors and submodules that are replaced


def test_replaced_parameters():
    """Changes in place are seen; for everything else there are new recordings."""
    model, eager = captured(quiet()), quiet()

    def check(recordings):
        wanted = {name: value.detach().clone() for name, value in model.named_parameters()}
        assert torch.equal(model(x)["y"], torch.func.functional_call(eager, wanted, (x,))["y"])
        assert len(CpuRecorder.recorders) == recordings

    CpuRecorder.recorders.clear()
    check(1)
    with torch.no_grad():
        model.second.weight.mul_(2.0)
    model.load_state_dict({name: value + 1.0 for name, value in model.state_dict().items()})
    check(1)
    model.second.weight.data = torch.randn(3, 6)
    check(2)
    model.second.bias = nn.Parameter(torch.randn(3))
    check(3)
    model.load_state_dict({name: value - 1.0 for name, value in model.state_dict().items()}, assign=True)
    check(4)
    model.second = copy.deepcopy(model.second)
    check(5)
    model.norm = nn.Sequential()
    check(6)
    model.norm.append(nn.Identity())
    check(7)
    model(x)["y"].sum().backward()
    assert all(p.grad is not None for p in model.second.parameters())


def test_other_dtypes_and_buffers():
    model = captured(Net())
    model(x)
    model.double()
    assert model(x.double())["y"].dtype == torch.float64
    model.norm.running_mean = torch.full((6,), 3.0, dtype=torch.float64)
    model(x.double())
    assert model.norm.running_mean[0] > 2.0
    model.eval()
    model.norm.register_buffer("running_var", torch.full((6,), 1e9, dtype=torch.float64))
    eager = copy.deepcopy(model)
    assert torch.equal(model(x.double())["y"], eager(x.double())["y"])


def test_parameters_that_are_replaced_all_the_time():
    model = captured(quiet())

    def replace(model):
        model.second.weight.data = torch.randn(3, 6)
        return model(x)

    for _ in range(calls.RENEWALS):
        replace(model)
    assert replays(model) == calls.RENEWALS
    assert_eager(model, replace, "the memory of its parameters is replaced again and again")


def test_replacing_them_now_and_then_is_fine():
    model = captured(quiet())
    for _ in range(calls.RENEWALS + 2):
        model.second.weight.data = torch.randn(3, 6)
        for _ in range(calls.WORTH + 1):
            with torch.no_grad():
                model(x)
    assert count(model) == 1


# inside other things


def test_a_captured_part_of_a_captured_module():
    part = captured(quiet(0.2))
    whole = captured(nn.Sequential(nn.Linear(4, 4), part))
    whole(x)["y"].sum().backward()
    assert (count(part), replays(part)) == (0, 0)
    assert replays(whole) == 1
    part(x)
    assert replays(part) == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant):
    """The first pass of the one kind is a replay, and the second is eager; the other kind is eager."""
    model, eager = captured(Net()), Net()
    eager.load_state_dict(model.state_dict())

    def run(model):
        torch.manual_seed(1)
        z = x.clone().requires_grad_()
        checkpoint(lambda x: model(x)["y"], z, use_reentrant=reentrant).sum().backward()

    run(eager), run(eager)
    if reentrant:
        run(model), run(model)
    else:
        assert_eager(model, run, "hooks for saved tensors watch it")
    assert torch.equal(model.first.weight.grad, eager.first.weight.grad)
    assert replays(model) == 2 * reentrant


def test_while_another_graph_is_recorded(monkeypatch):
    model = captured(quiet())
    monkeypatch.setattr(CpuRecorder, "is_recording", staticmethod(lambda: True))
    model(x)
    assert replays(model) == 0
