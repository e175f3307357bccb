"""Which calls are eager, and the warnings that say why."""

import copy
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from tests.nn.capture.make import Alone, CpuRecorder, Net, assert_eager, captured, count, quiet, replays, wait

x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


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


def test_functional_call_runs_eagerly_and_keeps_the_recordings():
    model = captured(quiet())
    model(x)
    weights = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    file = torch.nn.utils.stateless.__file__
    y = assert_eager(model, lambda m: torch.func.functional_call(m, weights, (x,))["y"], "weight is not a param", file)
    assert not y.any()
    model(x)
    assert (count(model), replays(model)) == (1, 2)


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


def test_unsettled_numbers_cannot_be_keys():
    module = Hooked()
    module.number = 3
    model = captured(module)
    model(x)
    module.number = [3]
    assert_eager(model, lambda m: m(x), "became something else")
