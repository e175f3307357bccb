"""When calls are replays, when they are eager, and what is an error."""

import copy
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from statespan.nn.capture import calls
from statespan.nn.capture.recorder import CannotCaptureError
from statespan.ops import use_path
from tests.nn.capture.make import CpuRecorder, Net, captured, count, replays, wait

x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def quiet(dropout=0.0):
    return Net(dropout, norm=False)


def assert_eager(model, call, reason, file=__file__):
    """The call gives what the module itself gives, with one warning that names the reason, however often it comes."""
    before = replays(model)
    with pytest.warns(UserWarning, match=rf"runs without CUDA graphs here: .*{reason}") as seen:
        results = [call(model) for _ in range(2)]
    assert len(seen) == 1
    assert seen[0].filename == file
    assert replays(model) == before
    return results[0]


class Alone(nn.Module):
    """One parameter and a function of it."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


# outputs and gradients in flight


def test_outputs_are_tensors_of_their_own():
    model = captured(quiet())
    first = model(x)
    kept = first["y"].clone(), first["pair"].hidden.clone()
    first["y"].data.add_(0.0)
    second = model(2 * x)
    assert torch.equal(first["y"], kept[0])
    assert torch.equal(first["pair"].hidden, kept[1])
    assert not torch.equal(second["y"], first["y"])
    with torch.no_grad():
        model(x)["y"].zero_()
        assert torch.equal(model(x)["y"], first["y"])


def test_losses_of_several_steps_may_be_kept():
    model, eager = captured(quiet()), quiet()
    eager.load_state_dict(model.state_dict())
    pairs = [(model(i * x)["y"].sum(), eager(i * x)["y"].sum()) for i in range(3)]
    assert count(model) == 3
    for loss, wanted in reversed(pairs):  # backward in another order than forward
        loss.backward()
        wanted.backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.first.parameters(), eager.first.parameters()))


def test_a_lane_is_free_after_backward_or_without_outputs():
    model = captured(quiet())
    for _ in range(3):
        loss = model(x)["y"].sum()
        loss.backward()  # the loss stays alive
    for _ in range(3):
        model(x)
    result = model(x)["y"]
    with torch.no_grad():
        model(x)  # which needs another lane for its moment
    assert [lane.is_busy for lane in model._calls.lanes] == [True, False]
    del result
    assert [lane.is_busy for lane in model._calls.lanes] == [False, False]
    assert count(model) == 2


def test_shapes_share_the_memory_of_a_lane_and_flights_do_not():
    model = captured(quiet())
    for size in (2, 3, 4):
        model(x[:size])["y"].sum().backward()
    assert len(model._calls.lanes) == 1
    assert count(model) == 3
    waiting = model(x[:2])["y"], model(x[:3])["y"]
    assert len(model._calls.lanes) == 2
    for y in waiting:
        y.sum().backward()


def test_more_calls_in_flight_than_lanes():
    model, eager = captured(quiet(), graphs=20), quiet()
    eager.load_state_dict(model.state_dict())
    waiting = [model(i * x)["y"].sum() for i in range(calls.LANES)]
    extra = assert_eager(model, lambda m: m(9 * x)["y"].sum(), f"{calls.LANES} calls already wait")
    for loss in (extra, *waiting):
        loss.backward()
    for i in (9, *range(calls.LANES)):
        eager(i * x)["y"].sum().backward()
    torch.testing.assert_close(model.first.weight.grad, eager.first.weight.grad)
    assert count(model) == calls.LANES
    model(x)["y"].sum().backward()  # and graphs again
    assert replays(model) == calls.LANES + 1


def test_a_second_backward_pass_is_an_error():
    model = captured(quiet())
    loss = model(x)["y"].sum()
    loss.backward(retain_graph=True)
    model(x)
    with pytest.raises(RuntimeError, match=r"once for each forward pass.*retain_graph"):
        loss.backward()


def test_second_derivatives_are_an_error():
    model, z = captured(quiet()), x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"no second derivatives \(create_graph=True\)"):
        torch.autograd.grad(model(z)["y"].sum(), z, create_graph=True)
    model(z)["y"].sum().backward()


@pytest.mark.parametrize("name", ["weight", "buffer"])
def test_a_step_between_forward_and_backward_is_an_error(name):
    """The graph of the backward pass would read the new values."""
    module = Alone(lambda self, x: x * self.weight.exp() * self.buffer)
    module.register_buffer("buffer", torch.ones(4))
    model = captured(module)
    loss = model(x).sum()
    with torch.no_grad():
        getattr(model, name).add_(1.0)
    with pytest.raises(RuntimeError, match=r"changed in place between a forward pass and its backward pass"):
        loss.backward()
    model(x).sum().backward()


def test_replaced_parameters_between_forward_and_backward():
    """The backward pass still has the old ones."""
    model = captured(Alone(lambda self, x: x * self.weight.exp()))
    z = x.clone().requires_grad_()
    loss, old = model(z).sum(), model.weight.detach().clone()
    model.weight.data = torch.zeros(4)
    model(x).sum().backward()
    loss.backward()
    torch.testing.assert_close(z.grad, old.exp().expand(5, 4))


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


def test_functional_call_runs_eagerly_and_keeps_the_recordings():
    model = captured(quiet())
    model(x)
    weights = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    file = torch.nn.utils.stateless.__file__
    y = assert_eager(model, lambda m: torch.func.functional_call(m, weights, (x,))["y"], "weight is not a param", file)
    assert not y.any()
    model(x)
    assert (count(model), replays(model)) == (1, 2)


# what runs eagerly


def once_more(function):
    """A module that is like this only in strict trial runs or in a recording."""
    return lambda self, x: (function(), x * self.weight)[1]


class Odd(torch.Tensor):
    pass


REFUSED = {
    "waits": (lambda self, x: (wait(), x * self.weight)[1], "synchronizing"),
    "random": (lambda self, x: x * self.weight * random.random(), "random numbers on the CPU"),
    "numpy": (lambda self, x: x * self.weight * np.random.rand(), "random numbers on the CPU"),
    "in place": (lambda self, x: x.mul_(2.0) * self.weight.detach(), "changes an argument in place"),
    "an object": (lambda self, x: (x * self.weight, object()), "returns a object"),
    "a subclass": (lambda self, x: (x * self.weight).as_subclass(Odd), "returns a Odd"),
    "another leaf": (lambda self, x: x * self.weight * leaf, r"a tensor of shape \(1,\) that requires a gradient"),
    "another graph": (lambda self, x: x * self.weight * (2 * leaf).exp(), r"a tensor of shape \(1,\)"),
    "no backward": (lambda self, x: NoBackward.apply(x * self.weight), "its backward pass fails: no way back"),
}
leaf = torch.ones(1, requires_grad=True)


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no way back\nmore")


@pytest.mark.parametrize("case", REFUSED)
def test_functions_that_no_graph_can_have(case):
    function, reason = REFUSED[case]
    module = Alone(function)
    model = captured(copy.deepcopy(module))
    random.seed(1), np.random.seed(1)
    state = random.getstate()
    result = assert_eager(model, lambda m: m(x.clone()), reason)
    random.setstate(state), np.random.seed(1)
    wanted = module(x.clone())
    first, second = (each[0] if isinstance(each, tuple) else each for each in (result, wanted))
    assert torch.equal(first, second)
    assert model._calls.lanes == []


def test_sparse_gradients():
    model = captured(nn.Embedding(7, 3, sparse=True))
    assert_eager(model, lambda m: m(torch.tensor([1, 2])).sum().backward(), "sparse gradients")
    assert model.weight.grad.is_sparse


def test_results_that_change():
    answers = iter(range(100))
    model = captured(Alone(lambda self, x: (x * self.weight, next(answers))))
    assert_eager(model, lambda m: m(x), "returns something else in each call")
    assert next(answers) == 4  # two trial runs and two calls


def test_a_recording_that_fails(monkeypatch):
    monkeypatch.setattr(CpuRecorder, "fails", True)
    model = captured(quiet())
    y = assert_eager(
        model, lambda m: m(x)["y"], "recording it fails: operation not permitted when stream is capturing$"
    )
    y.sum().backward()
    assert model.second.bias.grad is not None
    monkeypatch.undo()
    model(x)
    assert replays(model) == 0  # nobody tries again
    model(x[:2])
    assert replays(model) == 1


def test_not_enough_memory(monkeypatch):
    failed = []

    def full(self, function, *, strict=False):
        failed.append(1)
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(CpuRecorder, "warm", full)
    assert_eager(captured(quiet()), lambda m: m(x), "not enough memory")
    assert len(failed) == 1


def test_errors_of_the_module_are_its_own():
    """And leave everything as it was."""
    model, state = captured(Net()), torch.get_rng_state()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state)
    model(x)
    assert replays(model) == 1
    assert int(model.norm.num_batches_tracked) == 1


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_of_modules(kind):
    model, seen = captured(Hooked()), []
    model(x)
    handle = getattr(model.inner, f"register_{kind}_hook")(lambda *arguments: seen.append(1) and None)
    assert_eager(model, lambda m: m(x.clone().requires_grad_()).sum().backward(), "a hook is registered on inner")
    assert len(seen) == 2
    handle.remove()
    model(x)
    assert replays(model) == 2


def test_a_new_submodule_with_a_hook():
    model, seen = captured(Hooked()), []
    model(x)
    model.inner = nn.Linear(4, 4)
    model.inner.register_forward_hook(lambda *arguments: seen.append(1) and None)
    assert_eager(model, lambda m: m(x), "a hook is registered on inner")
    assert len(seen) == 2


def test_hooks_of_all_modules():
    model, seen = captured(Hooked()), []
    handle = nn.modules.module.register_module_forward_hook(lambda *arguments: seen.append(1) and None)
    try:
        assert_eager(model, lambda m: m(x), "a hook is registered on all modules")
    finally:
        handle.remove()
    assert len(seen) == 4


def test_transforms_of_torch_func():
    model, eager = captured(quiet()), quiet()
    eager.load_state_dict(model.state_dict())
    y = assert_eager(model, lambda m: torch.func.vmap(lambda row: m(row)["y"])(x[:, None]), "torch.func transforms it")
    torch.testing.assert_close(y, eager(x)["y"][:, None])


def test_modes_of_torch():
    model = captured(quiet())
    with FlopCounterMode(display=False) as counter:
        assert_eager(model, lambda m: m(x), "a TorchDispatchMode watches it")
    assert counter.get_total_flops() == 2 * 2 * 5 * (4 * 6 + 6 * 3 + 6 * 2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection")
        with torch.autograd.detect_anomaly():
            assert_eager(model, lambda m: m(x), "detects anomalies")
    with torch.autograd.forward_ad.dual_level():
        assert_eager(model, lambda m: m(x), "forward_ad")
    with torch.autograd.graph.save_on_cpu():
        assert_eager(model, lambda m: m(x), "hooks for saved tensors")
    with parametrize.cached():
        assert_eager(model, lambda m: m(x), "cached")
    model(x)
    assert replays(model) == 1


def test_arguments_that_are_not_plain_tensors():
    model = captured(Alone(lambda self, x, other=None: x * self.weight))
    assert_eager(model, lambda m: m(x, object()), "an argument is a object, which is neither a tensor nor a constant")
    assert_eager(model, lambda m: m(x, x.as_subclass(Odd)), "an argument is a Odd, not a plain tensor")
    assert_eager(model, lambda m: m(x, torch.eye(3).to_sparse()), "not a plain tensor")
    assert_eager(model, lambda m: m(x, torch.ones(2, device="meta")), "an argument is on meta and the module on cpu")


def test_modules_that_are_not_plain():
    module = Hooked()
    module.extra = torch.ones(2, device="meta")
    assert_eager(captured(module), lambda m: m(x), "several devices: extra on meta, inner.weight on cpu")
    module = Hooked()
    module.inner.weight = nn.Parameter(torch.ones(4, 4).as_subclass(Odd))
    assert_eager(captured(module), lambda m: m(x), "inner.weight is a Odd")
    module = Hooked()
    module.extra = torch.ones(2, requires_grad=True)
    assert_eager(captured(module), lambda m: m(x), "extra is not a parameter")
    with torch.inference_mode():
        module = Hooked()
    with torch.no_grad():
        assert_eager(captured(module), lambda m: m(x), "inner.weight was made in inference mode")
    assert_eager(captured(nn.DataParallel(Hooked())), lambda m: m(x), r"DataParallel\(statespan.capture\(model\)\)")
    assert_eager(captured(Alone(lambda self, *args: len(args)).to("meta")), lambda m: m(), "it is on meta")
    assert_eager(captured(nn.Identity()), lambda m: m(3), "neither it nor its arguments have tensors")


# modules that change themselves


def test_numbers_that_a_first_call_sets():
    """The first call is eager, without a warning; the others are replays."""

    def function(self, x):
        if not self.is_ready:
            self.is_ready = True
            self.weight.data.copy_(x.mean(0))
        return x * self.weight

    module = Alone(function)
    module.is_ready = False
    model = captured(module)
    for _ in range(3):
        assert torch.equal(model(x), x * x.mean(0))
    assert replays(model) == 2
    assert count(model) == 1


def test_a_tensor_that_a_first_call_keeps():
    def function(self, x):
        if self.mask is None or len(self.mask) != len(x):
            self.mask = torch.arange(len(x))[:, None]
        return x * self.weight * self.mask

    module = Alone(function)
    module.mask = None
    model = captured(module)

    def check(size):
        assert torch.equal(model(x[:size]), x[:size] * model.weight * torch.arange(size)[:, None])

    for size in (5, 5, 5):
        check(size)
    assert replays(model) == 2
    with pytest.warns(UserWarning, match="a forward pass changes mask"):
        check(3)
    for size in (3, 3):
        check(size)
    assert replays(model) == 4


def test_numbers_that_change_in_every_call():
    module = Alone(lambda self, x: (setattr(self, "calls", self.calls + 1), x * self.weight * self.calls)[1])
    module.calls = 0
    model = captured(module)
    model(x)  # which might have been to set up the module
    assert module.calls == 1
    assert_eager(model, lambda m: m(x), "a forward pass changes calls")
    assert torch.equal(model(x), x * model.weight * 4)


@pytest.mark.parametrize("name", ["weight", "buffer", "inner"])
def test_members_that_a_forward_pass_replaces(name):
    def function(self, x):
        if name == "weight":
            self.weight = nn.Parameter(self.weight.detach() + 1.0)
        elif name == "buffer":
            self.buffer = self.buffer + 1.0
        else:
            self.inner = nn.Identity()
        return self.inner(x) * self.weight * self.buffer

    module = Alone(function)
    module.register_buffer("buffer", torch.ones(4))
    module.inner = nn.Identity()
    eager, model = copy.deepcopy(module), captured(module)
    with pytest.warns(UserWarning, match=f"a forward pass replaces {name}"):
        y = model(x)
    assert torch.equal(y, eager(x))


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


def test_unsettled_numbers_cannot_be_keys():
    module = Hooked()
    module.number = 3
    model = captured(module)
    model(x)
    module.number = [3]
    assert_eager(model, lambda m: m(x), "became something else")


def test_the_error_is_a_runtime_error():
    assert issubclass(CannotCaptureError, RuntimeError)
