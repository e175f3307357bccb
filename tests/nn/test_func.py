"""torch.func on layers and models: gradients of each sample and ensembles, against a loop."""

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from statespan import DSS, LRU, LSSL, S4, S4D, S5
from statespan.ops.dispatch import use_path
from tests.models.make import inputs, make

f64 = torch.float64
LAYERS = {
    "S4": lambda **o: S4(4, 4, mix="glu", dtype=f64, **o),
    "S4 both ways": lambda **o: S4(4, 4, bidirectional=True, channels=2, n_ssm=2, dtype=f64, **o),
    "S4 cauchy": lambda **o: S4(4, 4, kernel="cauchy", dtype=f64, **o),
    "S4 zoh": lambda **o: S4(4, 4, discretization="zoh", dtype=f64, **o),
    "S4D": lambda **o: S4D(4, 4, dtype=f64, **o),
    "S4D both ways": lambda **o: S4D(4, 4, bidirectional=True, channels=2, n_ssm=2, mix="glu", dtype=f64, **o),
    "DSS": lambda **o: DSS(4, 4, dtype=f64, **o),
    "LSSL": lambda **o: LSSL(4, 4, dtype=f64, **o),
    "S5": lambda **o: S5(4, 4, dtype=f64, **o),
    "S5 both ways": lambda **o: S5(4, 4, bidirectional=True, channels=2, dtype=f64, **o),
    "LRU": lambda **o: LRU(4, 4, dtype=f64, **o),
}


def same(got, wanted):
    scale = max(1.0, wanted.abs().max().item())
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() <= 1e-11 * scale


def check_samples(module, x, more):
    """The gradient of every parameter for each sample alone, all at once and one after the other."""
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())

    def loss(parameters, x, more):
        more = {name: value[None] for name, value in more.items()}
        y = functional_call(module, (parameters, buffers), (x[None],), more)
        return y.square().sum()

    together = vmap(grad(loss), (None, 0, 0))(parameters, x, more)
    for i in range(len(x)):
        alone = torch.autograd.grad(
            loss(parameters, x[i], {name: value[i] for name, value in more.items()}), parameters.values()
        )
        for name, wanted in zip(parameters, alone):
            same(together[name][i], wanted)


def check_ensemble(modules, x, more):
    """Outputs and gradients of several modules of one kind on the same input."""
    parameters, buffers = stack_module_state(modules)

    def run(parameters, buffers):
        return functional_call(modules[0], (parameters, buffers), (x,), more)

    together = vmap(run)(parameters, buffers)
    together.square().sum().backward()
    inside = vmap(grad(lambda p, b: run(p, b).square().sum()))(parameters, buffers)
    for i, module in enumerate(modules):
        y = module(x, **more)
        same(together[i].detach(), y.detach())
        module.zero_grad()
        y.square().sum().backward()
        for name, parameter in module.named_parameters():
            same(parameters[name].grad[i], parameter.grad)
            same(inside[name][i].detach(), parameter.grad)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_each_sample(name):
    x = torch.randn(3, 75, 4, dtype=f64)
    check_samples(LAYERS[name](), x, {})


@pytest.mark.parametrize("name", LAYERS)
def test_ensembles(name):
    check_ensemble([LAYERS[name]() for _ in range(3)], torch.randn(2, 75, 4, dtype=f64), {})


@pytest.mark.parametrize("case", ["classifier", "regressor", "language", "masked", "pixels", "forecaster"])
def test_whole_models(case):
    model = make(case)
    x, more = inputs(model, 2, 70)
    check_samples(model, x, more)
    check_ensemble([model, make(case)], x, more)


@pytest.mark.parametrize("path", ["chunks", "fft"])
def test_other_paths_and_orders(path):
    """Through a path that is not the usual one, vmap below grad, and without gradients."""
    layer, x = LAYERS["S4D"](), torch.randn(3, 20, 4, dtype=f64)
    with use_path(path):
        check_samples(layer, x, {})
        total = grad(lambda x: vmap(lambda one: layer(one[None])[0])(x).square().sum())(x)
        leaf = x.clone().requires_grad_()
        layer(leaf).square().sum().backward()
        same(total.detach(), leaf.grad)
        with torch.no_grad():
            same(vmap(lambda one: layer(one[None])[0])(x), layer(x))
            per_sample = vmap(grad(lambda one: layer(one[None]).square().sum()))(x)
        same(per_sample, leaf.grad)


@pytest.mark.parametrize("name", ["S4", "S4D", "LSSL", "S5", "LRU"])
def test_prefill_and_step_of_each_sample(name):
    layer, x = LAYERS[name](), torch.randn(3, 70, 4, dtype=f64)
    with torch.no_grad():
        y, state = layer.prefill(x)
        got, after = vmap(lambda one: layer.prefill(one[None]))(x)
        same(got[:, 0], y)
        same(after[:, 0], state)
        got, _ = vmap(lambda one, s: layer.step(one[None], s))(x[:, 0], after)
        same(got[:, 0], layer.step(x[:, 0], state)[0])


@pytest.mark.soak
def test_gradients_of_each_sample_by_the_kernels():
    """A whole layer on a GPU's operators, interpreted; tests/ops/test_vmap.py has the quick share."""
    for layer in (S4(2, 2, n_ssm=1, mix="glu"), S4(2, 4, init="legt", n_ssm=1), S4D(2, 2, n_ssm=1)):
        with use_path("triton"):
            check_samples(layer.double(), torch.randn(2, 5, 2, dtype=f64), {})
