"""A module is called wherever somebody would notice: hooks fire, and what replaces a module is what runs.

Each test compares with the layer as it is, by the fused path, so both ways give the same numbers.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

from statespan import S4D, models
from statespan.nn import FeedForward, ResidualBlock, TiedDropout
from statespan.nn.norm import BatchNorm, LayerNorm
from statespan.nn.padding import Padding
from statespan.ops.dispatch import use_path
from statespan.ops.fusion import GLU
from tests.models.make import ALL, inputs, make

f64 = torch.float64
PATHS = ("chunks", "fft")
PLACES = {"linear": ("mix", "dropout"), "glu": ("mix", "mix.0", "mix.1", "dropout"), None: ("mix", "dropout")}
KINDS = ("forward", "forward_pre", "full_backward", "full_backward_pre")
GLOBAL = {
    "forward": torch_module.register_module_forward_hook,
    "forward_pre": torch_module.register_module_forward_pre_hook,
    "full_backward": torch_module.register_module_full_backward_hook,
    "full_backward_pre": torch_module.register_module_full_backward_pre_hook,
}


def layer_of(mix, **options):
    torch.manual_seed(1)
    return S4D(4, 4, mix=mix, dtype=f64, **options)


def signal():
    return torch.randn(2, 70, 4, dtype=f64, generator=torch.Generator().manual_seed(2))


def gradients(module, x):
    """The output, and the gradient of every parameter and of x."""
    x = x.clone().requires_grad_()
    y = module(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in module.parameters())]


def same(got, wanted):
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mix", PLACES)
def test_each_kind_of_hook_fires_once_in_each_place(mix, path):
    """Each alone: one kind could keep the module from being bypassed for all."""
    x = signal()[:, :20]
    with use_path(path):
        wanted = gradients(layer_of(mix), x)
        for place in PLACES[mix]:
            for kind in KINDS:
                layer, seen = layer_of(mix), []
                getattr(layer.get_submodule(place), f"register_{kind}_hook")(lambda m, *_, seen=seen: seen.append(m))
                same(gradients(layer, x), wanted)
                assert seen == [layer.get_submodule(place)], (place, kind)


@pytest.mark.parametrize("place", ["0", "1"])
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_in_front_of_the_gate_s_kernel_fire(kind, place):
    mix, seen = GLU(nn.Linear(4, 8, dtype=torch.bfloat16)), []
    x = torch.randn(6, 4, dtype=torch.bfloat16, requires_grad=True)
    with use_path("triton"):
        wanted = mix(x)
        getattr(mix.get_submodule(place), f"register_{kind}_hook")(lambda m, *_: seen.append(m))
        y = mix(x)
        y.sum().backward()
    assert seen == [mix.get_submodule(place)]
    torch.testing.assert_close(y, wanted, rtol=0.02, atol=0.02)


def test_a_layer_on_kernels_calls_what_is_hooked():
    layer, seen = S4D(1, 2, mix="glu"), set()
    for place in PLACES["glu"]:
        layer.get_submodule(place).register_full_backward_hook(lambda m, *_: seen.add(m))
    with use_path("triton"):
        layer(torch.randn(1, 3, 1)).sum().backward()
    assert seen == {layer.get_submodule(place) for place in PLACES["glu"]}


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_for_all_modules_see_the_parts_of_a_mix(kind):
    layer, seen = layer_of("glu"), []
    handle = GLOBAL[kind](lambda module, *_: seen.append(module))
    try:
        got = gradients(layer, signal())
    finally:
        handle.remove()
    assert {layer.dropout, layer.mix, layer.mix[0], layer.mix[1]} <= set(seen)
    same(got, gradients(layer_of("glu"), signal()))


def test_a_hook_on_dropout_sees_what_is_activated():
    layer, seen = layer_of("linear", dropout=0.5).eval(), []
    layer.dropout.register_forward_hook(lambda module, args, y: seen.append(y))
    y = layer(signal())
    torch.testing.assert_close(layer.mix(seen[0]), y, rtol=1e-12, atol=1e-12)


def test_dropout_that_trains_in_a_layer_that_does_not_comes_after_the_activation():
    """As in Monte Carlo dropout: it scales what it keeps, and GELU(2y) is not 2 GELU(y)."""
    layer = layer_of("linear", dropout=0.5).eval()
    layer.dropout.train()
    torch.manual_seed(3)
    got = layer(signal())
    layer.mix, activated = nn.Identity(), layer.dropout
    layer.dropout = nn.Identity()
    features = layer(signal())
    linear = layer_of("linear").mix
    torch.manual_seed(3)
    wanted = linear(activated(features))
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


class Adapter(nn.Module):
    """What libraries for low-rank adaptation put in the place of a linear layer."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, dtype=f64)
        self.up = nn.Linear(rank, base.out_features, bias=False, dtype=f64)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def whole(adapter):
    """The linear layer that an adapter amounts to."""
    linear = copy.deepcopy(adapter.base)
    with torch.no_grad():
        linear.weight += adapter.up.weight @ adapter.down.weight
    return linear


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mix", ["linear", "glu"])
def test_an_adapter_in_the_place_of_a_linear_layer_is_what_runs(mix, path):
    layer, other = layer_of(mix), layer_of(mix)
    if mix == "glu":
        layer.mix[0] = Adapter(layer.mix[0])
        other.mix[0] = whole(layer.mix[0])
    else:
        layer.mix = Adapter(layer.mix)
        other.mix = whole(layer.mix)
    x = signal()[:, :20]
    with use_path(path):
        same(gradients(layer, x)[:2], gradients(other, x)[:2])
    state = layer.initial_state(2)
    same([layer.step(x[:, 0], state)[0]], [other.step(x[:, 0], state)[0]])


def test_a_linear_layer_without_a_bias_will_do():
    for mix in ("linear", "glu"):
        layer, other = layer_of(mix), layer_of(mix)
        linear = other.mix[0] if mix == "glu" else other.mix
        with torch.no_grad():
            linear.bias.zero_()
        without = nn.Linear(linear.in_features, linear.out_features, bias=False, dtype=f64)
        without.weight = linear.weight
        if mix == "glu":
            layer.mix[0] = without
        else:
            layer.mix = without
        for path in PATHS:
            with use_path(path):
                same([layer(signal()[:, :20])], [other(signal()[:, :20])])


class Twice(nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize("mix", ["linear", "glu"])
def test_a_parametrized_mix_and_one_with_a_forward_of_its_own(mix):
    other = layer_of(mix)
    with torch.no_grad():
        (other.mix[0] if mix == "glu" else other.mix).weight.mul_(2)
    layer, calls = layer_of(mix), []
    linear = layer.mix[0] if mix == "glu" else layer.mix
    parametrize.register_parametrization(linear, "weight", Twice())
    same([layer(signal())], [other(signal())])
    layer = layer_of(mix)
    linear = layer.mix[0] if mix == "glu" else layer.mix
    plain = linear.forward
    linear.forward = lambda x: (calls.append(x), plain(x))[1]  # as libraries that move weights about do
    same([layer(signal())], [layer_of(mix)(signal())])
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("mix", ["linear", "glu"])
def test_a_layer_with_quantized_linear_layers(mix):
    torch.manual_seed(1)
    layer = S4D(8, 6, mix=mix)
    x = torch.randn(2, 70, 8)
    quantized = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, dtype=torch.qint8)
    error = (quantized(x) - layer(x)).abs().max() / layer(x).abs().max()
    assert 0 < error < 0.03


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("case", ALL)
def test_every_model_runs_with_quantized_linear_layers(case):
    model = make(case, torch.float32)
    x, more = inputs(model, 4, 12)
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    wanted = model(x, **more)
    error = (quantized(x, **more) - wanted).abs().max() / wanted.abs().max()
    assert 0 < error < 0.2  # 8 bits of small models
    got, wanted = (m.prefill(x, m.initial_state(4), **more)[0] for m in (quantized, model))
    assert 0 < (got - wanted).abs().max() / wanted.abs().max() < 0.2


def test_every_module_of_a_model_that_computes_is_called():
    """All that have a forward of their own, in each of the models; containers and what only holds parameters apart."""
    for case in ALL:
        model, seen = make(case), []
        x, more = inputs(model, 4, 12)
        for module in model.modules():
            module.register_forward_hook(lambda module, *_, seen=seen: seen.append(module))
        model(x, **more)
        silent = [name for name, module in model.named_modules() if module not in seen]
        assert [name for name in silent if not isinstance(model.get_submodule(name), nn.ModuleList)] == [], case


NORMS = {"layer": LayerNorm, "batch": BatchNorm}


@pytest.mark.parametrize("kind", ["full_backward", "full_backward_pre", "forward", "forward_pre"])
@pytest.mark.parametrize("norm", NORMS)
def test_hooks_on_a_norm_in_front_of_a_layer_fire(norm, kind):
    module, seen = NORMS[norm](6), []
    getattr(module, f"register_{kind}_hook")(lambda m, *_: seen.append(m))
    x = torch.randn(2, 20, 6, requires_grad=True)
    with use_path("triton"):
        _, y = module.before(x, None, torch.bfloat16)
        y.float().sum().backward()
    assert seen == [module]


@pytest.mark.parametrize("norm", NORMS)
def test_a_parametrized_norm_is_called(norm):
    module = NORMS[norm](6)
    parametrize.register_parametrization(module, "weight", Twice())
    x = torch.randn(2, 20, 6)
    with use_path("triton"):
        _, y = module.before(x, None, torch.bfloat16)
    assert y.dtype == torch.float32  # the kernel would give 16 bits
    other = NORMS[norm](6)
    torch.testing.assert_close(y, 2 * other(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["norm", "dropout"])
def test_hooks_behind_a_layer_fire(place, kind):
    torch.manual_seed(1)
    block, seen = ResidualBlock(FeedForward(6), prenorm=False, dropout=0.3), []
    getattr(getattr(block, place), f"register_{kind}_hook")(lambda m, *_: seen.append(m))
    x = torch.randn(2, 20, 6, requires_grad=True)
    with use_path("triton"):
        block(x).sum().backward()
    assert seen == [getattr(block, place)]


def test_a_dropout_of_another_kind_behind_a_layer_is_called():
    class Halved(TiedDropout):
        def forward(self, x):
            return x / 2

    torch.manual_seed(1)
    block = ResidualBlock(FeedForward(6), prenorm=False)
    block.dropout = Halved(0.0)
    x = torch.randn(2, 20, 6)
    with use_path("triton"):
        got = block(x)
    torch.testing.assert_close(got, block.norm(x + block.layer(x) / 2), rtol=1e-5, atol=1e-5)


def test_padding_is_kept_by_a_hooked_batch_norm():
    module = BatchNorm(6)
    module.register_full_backward_hook(lambda *_: None)
    x = torch.randn(2, 20, 6)
    with use_path("triton"):
        _, y = module.before(x, Padding.of(x, [20, 3]), torch.bfloat16)
    assert (y[1, 3:] == 0).all()


def test_a_classifier_gives_the_pooled_features_to_a_hook():
    model = models.build("classifier", None, {"d_input": 2, "d_output": 3, "d_model": 4, "n_layers": 1}, dtype=f64)
    seen = []
    model.head.pool.register_forward_hook(lambda module, args, y: seen.append(y))
    y = model(torch.randn(2, 30, 2, dtype=f64))
    torch.testing.assert_close(model.head.linear(seen[0]), y)
