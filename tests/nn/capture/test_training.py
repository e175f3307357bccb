"""Training a captured module gives the bits of the eager one, whatever the loop does."""

import copy

import pytest
import torch
from torch import nn

from statespan import models
from statespan.nn import S4D
from tests.nn.capture.make import CpuRecorder, Net, captured, count, replays

STEPS = 20
DEVICE = "cpu"  # test_cuda.py changes it


def batch(i, size=6):
    random = torch.Generator().manual_seed(i)
    return tuple(torch.randn(size, features, generator=random).to(DEVICE) for features in (4, 3))


def error(model, x, y):
    result = model(x)
    return (result["y"] - y).square().mean() + 0.1 * result["pair"].scores.square().mean()


def plain(model, optimizer, i):
    error(model, *batch(i)).backward()
    optimizer.step()
    optimizer.zero_grad()


def zeroed(model, optimizer, i):
    """Gradients that stay where they are."""
    error(model, *batch(i)).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def accumulated(model, optimizer, i):
    for piece in range(3):
        (error(model, *batch(3 * i + piece)) / 3).backward()
    optimizer.step()
    optimizer.zero_grad()


def clipped(model, optimizer, i):
    error(model, *batch(i)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()


def two_shapes(model, optimizer, i):
    error(model, *batch(i, 5 if i % 3 else 8)).backward()
    optimizer.step()
    optimizer.zero_grad()


def two_forwards(model, optimizer, i):
    """Both before a backward pass, as a siamese network has them."""
    first, second = error(model, *batch(2 * i)), error(model, *batch(2 * i + 1))
    (first * second).backward()
    optimizer.step()
    optimizer.zero_grad()


def crossed(model, optimizer, i):
    """Two forward passes of different shapes, whose backward passes come in the same order."""
    first, second = error(model, *batch(2 * i)), error(model, *batch(2 * i + 1, 9))
    first.backward()
    second.backward()
    optimizer.step()
    optimizer.zero_grad()


def dropped(model, optimizer, i):
    """Outputs that nobody differentiates."""
    error(model, *batch(100 + i))
    plain(model, optimizer, i)


def evaluated(model, optimizer, i):
    plain(model, optimizer, i)
    model.eval()
    with torch.no_grad():
        score = error(model, *batch(7))
    with torch.inference_mode():
        assert torch.equal(error(model, *batch(7)), score)
    model.train()


def partly_frozen(model, optimizer, i):
    model.first.requires_grad_(i % 2 == 0)
    model.norm.train(i % 3 == 0)
    plain(model, optimizer, i)


def in_16_bits(model, optimizer, i):
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = error(model, *batch(i))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def sometimes_in_16_bits(model, optimizer, i):
    (in_16_bits if i % 2 else plain)(model, optimizer, i)


def annealed(model, optimizer, i):
    model.dropout.p = 0.5 if i < STEPS // 2 else 0.1
    plain(model, optimizer, i)


def one_output(model, optimizer, i):
    """The parameters of the other have no gradient, so the optimizer leaves them alone."""
    x, y = batch(i)
    (model(x)["y"] - y).square().mean().backward()
    assert model.auxiliary.weight.grad is None
    optimizer.step()
    optimizer.zero_grad()


LOOPS = {
    plain: 1, zeroed: 1, accumulated: 1, clipped: 1, two_shapes: 2, two_forwards: 2, crossed: 2, dropped: 1,
    evaluated: 2, partly_frozen: 4, in_16_bits: 1, sometimes_in_16_bits: 2, annealed: 2, one_output: 1,
}  # fmt: skip


def train(model, step):
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), 0.05, weight_decay=0.1)
    for i in range(STEPS):
        step(model, optimizer, i)
    model.drawn = torch.rand((), device=DEVICE)  # as many random numbers were drawn


def assert_same_state(model, other):
    assert model.state_dict().keys() == other.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def train_both(capture, step):
    """A captured and an eager module after the same loop."""
    model = Net().to(DEVICE)
    start, eager = copy.deepcopy(model), copy.deepcopy(model)
    model = capture(model)
    train(eager, step)
    train(model, step)
    assert not torch.equal(model.first.weight, start.first.weight)
    assert int(model.norm.num_batches_tracked) == int(eager.norm.num_batches_tracked) > 0
    assert count(model) == LOOPS[step]
    assert replays(model) >= STEPS
    assert torch.equal(model.drawn, eager.drawn)
    return model, eager


@pytest.mark.parametrize("step", LOOPS, ids=lambda step: step.__name__)
def test_the_same_bits_as_the_eager_module(step):
    assert_same_state(*train_both(captured, step))


def test_gradients_that_stay():
    """Their memory is theirs: later replays, and other recordings, leave it alone."""
    model = captured(Net(0.0, norm=False))
    error(model, *batch(1)).backward()
    kept = {name: p.grad for name, p in model.named_parameters()}
    values = {name: gradient.clone() for name, gradient in kept.items()}
    model.zero_grad()
    error(model, *batch(2)).backward()
    assert all(torch.equal(kept[name], values[name]) for name in kept)
    assert all(p.grad is not kept[name] for name, p in model.named_parameters())


def test_gradients_are_kept_and_not_copied():
    """Autograd keeps a gradient whose strides suit it: the pieces of one dtype are views of one tensor."""
    module = nn.Linear(5, 3)
    module.weight.data = torch.randn(5, 3).t()  # dense, in another order
    model = captured(module)
    model(torch.randn(2, 5)).sum().backward()
    assert module.weight.grad.stride() == module.weight.stride() == (1, 3)
    assert module.weight.grad.untyped_storage().data_ptr() == module.bias.grad.untyped_storage().data_ptr()
    assert all(p.grad.data_ptr() % 16 == 0 for p in module.parameters())


def test_parameters_of_several_dtypes():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.randn(3))
            self.b = nn.Parameter(torch.randn(3, dtype=torch.complex64))
            self.c = nn.Parameter(torch.randn((), dtype=torch.float64))
            self.unused = nn.Parameter(torch.randn(2))

        def forward(self, x):
            return ((self.a * x) * self.b).real.double() * self.c

    module = Mixed()
    eager, x = copy.deepcopy(module), torch.randn(4, 3)
    model = captured(module)
    for each in (model, eager, model, eager):
        each(x).square().sum().backward()
    for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert (p.grad is None and q.grad is None) or torch.equal(p.grad, q.grad), name
    assert module.unused.grad is None


def test_the_gradient_of_the_input():
    model, x = captured(Net(0.0)), torch.randn(5, 4, requires_grad=True)
    eager = copy.deepcopy(model)
    for each in (model, eager):
        before = (x * 2.0).sin()  # also one that is computed
        (each(before)["y"] + each(x)["y"]).square().sum().backward()
        each.wanted, x.grad = x.grad, None
    assert replays(model) == 2
    assert torch.equal(model.wanted, eager.wanted)
    (by_name,) = torch.autograd.grad(model(x)["y"].sum(), [model.second.bias])
    assert torch.equal(by_name, torch.full((3,), 5.0))


def test_gradients_of_inputs_that_stay():
    model = captured(Net(0.0, norm=False))
    inputs = [batch(i)[0].requires_grad_() for i in range(3)]
    for i, x in enumerate(inputs):
        ((i + 1) * model(x)["y"]).sum().backward()
    first, second, third = (x.grad for x in inputs)
    assert first.any()
    found = [torch.autograd.grad(((i + 1) * model(x)["y"]).sum(), x)[0] for i, x in enumerate(inputs)]
    assert all(torch.equal(gradient, x.grad) for gradient, x in zip(found, inputs))
    eager, x = copy.deepcopy(model), batch(0)[0].requires_grad_()
    eager(x)["y"].sum().backward()
    assert torch.equal(first, x.grad)
    assert not torch.equal(second, third)


def test_outputs_that_are_used_in_turn():
    """A gradient of the last call is not that of an output which this call does not use."""
    model = captured(Net(0.0, norm=False))
    eager, (x, _) = copy.deepcopy(model), batch(1)
    for use in (lambda out: out["y"], lambda out: out["pair"].scores, lambda out: out["y"]):
        for each in (model, eager):
            each.zero_grad()
            use(each(x)).square().sum().backward()
        for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            assert p.grad is None or torch.equal(p.grad, q.grad), name
    assert count(model) == 1


def test_autocast_keeps_no_old_weights():
    """Inside one block of autocast, which in eager mode keeps 16-bit copies of the weights until its end."""
    model, (x, _) = captured(Net(0.0, norm=False)), batch(1)
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
        with torch.no_grad():
            model.second.weight.mul_(-3.0)
        y = model(x)["y"]
    with torch.autocast("cpu", torch.bfloat16):
        wanted = copy.deepcopy(model)(x)["y"]
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, wanted)


def test_hooks_of_tensors_fire_once_and_are_the_users():
    model, seen = captured(Net(0.0)), []
    model.second.bias.register_hook(lambda gradient: seen.append("bias") or 2 * gradient)
    model.second.weight.register_post_accumulate_grad_hook(lambda parameter: seen.append("weight"))
    model(torch.randn(5, 4))["y"].sum().backward()
    assert sorted(seen) == ["bias", "weight"]
    assert torch.equal(model.second.bias.grad, torch.full((3,), 10.0))
    assert replays(model) == 1


def test_a_scaler_skips_steps_with_infinite_gradients():
    results = []
    for make in (captured, lambda module: module):
        torch.manual_seed(0)
        model = make(Net())
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.05), torch.amp.GradScaler("cpu", 2.0**10)
        for i in range(STEPS):
            x, y = batch(i)
            loss = error(model, x * (torch.inf if i == 7 else 1.0), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            model.norm.reset_running_stats() if i == 7 else None
        results.append((model.state_dict(), scaler.get_scale()))
    (first, scale), (second, other) = results
    assert scale == other == 2.0**9
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("layer", ["s4", "s4d", "s5", "lru", "lssl", "dss"])
def test_models_of_statespan(layer, norm):
    options = {"d_model": 8, "d_state": 4, "n_layers": 2, "layer": layer, "norm": norm, "dropout": 0.2}
    module = models.build("classifier", None, {"d_input": 2, "d_output": 3, **options})
    eager = copy.deepcopy(module)
    model = captured(module)
    lengths = torch.tensor([70, 3, 41])
    for each in (model, eager):
        torch.manual_seed(5)
        optimizer = torch.optim.AdamW(each.parameters(), 0.01)
        for i in range(4):
            x = torch.randn(3, 70, 2)
            given = {} if layer in ("dss",) or i % 2 else {"lengths": lengths}
            nn.functional.cross_entropy(each(x, **given), torch.tensor([0, 2, 1])).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert replays(model) == 4
    assert_same_state(model, eager)


def test_a_layer_of_ones_own_module():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.rnn, self.head = S4D(4, 8), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 2)
            self.tied = nn.Linear(4, 4)
            self.head.weight = nn.Parameter(self.tied.weight[:2].detach().clone())
            self.again = self.tied
            nn.utils.parametrizations.weight_norm(self.head)

        def forward(self, x):
            return self.head(self.again(self.rnn(self.tied(self.layer(x)))[0])).mean(1)

    module = Own()
    eager = copy.deepcopy(module)
    model = captured(module)
    for each in (model, eager):
        torch.manual_seed(5)
        optimizer = torch.optim.SGD(each.parameters(), 0.1)
        for _ in range(4):
            each(torch.randn(3, 20, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert replays(model) == 4
    assert_same_state(model, eager)


def test_recording_leaves_no_traces():
    module = Net()
    model = captured(module)
    module.first.weight.grad = torch.ones(6, 4)
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    versions = [p._version for p in module.parameters()]
    model._calls.plan((torch.randn(5, 4, generator=torch.Generator().manual_seed(0)),), {})
    assert count(model) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [p._version for p in module.parameters()] == versions
    assert torch.equal(module.first.weight.grad, torch.ones(6, 4))
    assert all(p.grad is None for name, p in module.named_parameters() if name != "first.weight")
    assert CpuRecorder.recorders[-1].warmed == 3
