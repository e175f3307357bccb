"""Casting, autocast, copying, saving: what people do to layers."""

import copy
import pickle

import pytest
import torch
from torch import nn

from statespan import DSS, LRU, LSSL, S4, S4D, S5, param_groups
from statespan.ops import use_path
from tests.nn.make import LAYER_IDS, LAYERS, assert_round_trip, peak_error, random_state

layers = pytest.mark.parametrize(("cls", "options"), LAYERS, ids=LAYER_IDS)


@layers
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_keeps_the_ssm_in_float32(cls, options, dtype):
    layer = cls(8, 16, mix="linear", **options)
    exact = {name: value.clone() for name, value in layer.ssm.state_dict().items()}
    x = torch.randn(2, 50, 8)
    wanted = layer(x)
    model = nn.Sequential(layer, nn.Linear(8, 8)).to(dtype)
    for name, value in layer.ssm.state_dict().items():
        assert value.dtype == torch.float32
        assert (value == exact[name]).all()
    assert layer.D.dtype == layer.mix.weight.dtype == dtype
    y = layer(x.to(dtype))
    assert y.dtype == dtype
    assert peak_error(y, wanted) < (0.03 if dtype == torch.bfloat16 else 0.004)
    model(x.to(dtype)).float().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    by_prefill, state = layer.prefill(x.to(dtype))
    by_step, _ = layer.step(x[:, 0].to(dtype), layer.initial_state(2))
    assert by_prefill.dtype == by_step.dtype == dtype
    assert state.dtype == torch.float64
    assert peak_error(by_prefill, wanted) < 0.03
    assert peak_error(by_step, wanted[:, 0]) < 0.03


def test_why_the_ssm_is_not_rounded():
    """Δ and A in bfloat16 would change the kernel by several percent."""
    layer = S4D(8, 64)
    exact = layer.structure().kernel(1000)
    with torch.no_grad():
        for parameter in layer.ssm.parameters():
            parameter.copy_(parameter.bfloat16())
    assert peak_error(layer.structure().kernel(1000), exact) > 0.02


@layers
def test_construction_in_low_precision(cls, options):
    layer = cls(8, 16, dtype=torch.bfloat16, **options)
    assert {v.dtype for v in layer.ssm.state_dict().values()} == {torch.float32}
    assert layer.D.dtype == torch.bfloat16
    assert layer(torch.randn(2, 10, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


@layers
def test_double_and_back(cls, options):
    layer = cls(8, 16, **options)
    x = torch.randn(2, 50, 8)
    single = layer(x)
    layer.double()
    assert {v.dtype for v in layer.state_dict().values()} == {torch.float64}
    assert peak_error(single, layer(x.double())) <= 2e-6
    layer.half()
    assert {v.dtype for v in layer.ssm.state_dict().values()} == {torch.float32}


@layers
def test_autocast(cls, options):
    """The SSM runs in float32 inside, so the only error is the mixing's bfloat16; gradients reach every parameter."""
    layer = cls(8, 16, **options)
    bare = cls(8, 16, mix=None, activation=None, **options)
    x = torch.randn(2, 50, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        start = random_state(layer, 2)
        ssm_only = [bare(x), *bare.prefill(x, start), *bare.step(x[:, 0], start)]
        by_prefill, _ = layer.prefill(x)
        by_step, _ = layer.step(x[:, 0], layer.initial_state(2))
        y.float().square().mean().backward()
        from_bfloat16 = layer(x.bfloat16())
    assert y.dtype == by_prefill.dtype == by_step.dtype == from_bfloat16.dtype == torch.bfloat16
    alone = [bare(x), *bare.prefill(x, start), *bare.step(x[:, 0], start)]
    assert all((a == b).all() for a, b in zip(ssm_only, alone, strict=True))
    for got in (y, by_prefill):
        assert peak_error(got, layer(x)) < 0.02
    assert peak_error(by_step, layer(x)[:, 0]) < 0.02
    assert all(torch.isfinite(p.grad).all() and (p.grad != 0).any() for p in layer.parameters())


@layers
def test_state_dict_round_trip(cls, options):
    first, second = cls(8, 16, **options), cls(8, 16, **options)
    assert_round_trip(first, second, torch.randn(2, 50, 8))


@layers
def test_state_dict_is_real_and_free_of_lengths(cls, options):
    layer = cls(8, 16, **options)
    shapes = {name: value.shape for name, value in layer.state_dict().items()}
    layer(torch.randn(1, 333, 8))
    assert {name: value.shape for name, value in layer.state_dict().items()} == shapes
    for value in layer.state_dict().values():
        assert not value.is_complex()
        assert value.is_contiguous()
        assert 333 not in value.shape


@layers
def test_deepcopy_and_pickle(cls, options):
    layer = cls(8, 16, **options)
    x = torch.randn(2, 50, 8)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert (other(x) == layer(x)).all()
        with torch.no_grad():
            other.ssm.C.add_(1)
        assert (other(x) != layer(x)).any()
        assert other.bfloat16().ssm.C.dtype == torch.float32


@layers
def test_a_deep_copy_keeps_its_parameter_groups(cls, options):
    layer = cls(8, 16, **options)
    models = (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)))
    sizes = [{g["name"]: len(g["params"]) for g in param_groups(model, lr=0.01)} for model in models]
    assert sizes[0] == sizes[1] == sizes[2]
    assert sizes[0]["ssm"] >= 2


def test_meta_device():
    layer = S4(8, 16, device="meta")
    assert {v.device.type for v in layer.state_dict().values()} == {"meta"}
    real = S4(8, 16)
    layer.to_empty(device="cpu").load_state_dict(real.state_dict())
    x = torch.randn(1, 10, 8)
    assert (layer(x) == real(x)).all()


@pytest.mark.parametrize(
    "where",
    [lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), lambda x: torch.cat([x, x], -1)[..., :8]],
    ids=["transposed", "sliced"],
)
def test_inputs_that_are_not_contiguous(where):
    layer, x = S4D(8, 16), torch.randn(2, 50, 8)
    assert not where(x).is_contiguous()
    torch.testing.assert_close(layer(where(x)), layer(x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(layer.prefill(where(x))[0], layer.prefill(x)[0], rtol=1e-6, atol=1e-6)


@layers
def test_same_bits_every_time(cls, options):
    layer, x = cls(8, 16, **options), torch.randn(2, 50, 8)
    runs = []
    for _ in range(3):
        layer.zero_grad()
        y = layer(x)
        y.square().sum().backward()
        runs.append([y.detach(), *(p.grad.clone() for p in layer.parameters())])
    for run in runs[1:]:
        assert all((a == b).all() for a, b in zip(run, runs[0], strict=True))


@layers
def test_hostile_parameters(cls, options):
    """log Δ from -30 to 10, and the modes as far out as their parameterization allows."""
    sizes = (4, 128) if cls in (S5, LRU) else (64, 4)  # 64 step sizes or 64 modes
    layer = cls(*sizes, **options)

    def spread(low, high, like):
        values = torch.linspace(low, high, 64)[torch.randperm(64)]
        return values if like.ndim == 1 else values[:, None].expand_as(like)

    ssm = layer.ssm
    with torch.no_grad():
        if cls is LRU:
            ssm.nu.copy_(spread(-110, 88, ssm.nu))
            ssm.theta.copy_(spread(-14, 14, ssm.theta))
        else:
            ssm.log_dt.copy_(torch.linspace(-30, 10, 64))
        if hasattr(ssm, "A_imag"):
            ssm.A_imag.copy_(10 ** spread(-6, 6, ssm.A_imag))
            log_real = spread(-110, 88, ssm.A_real)
            ssm.A_real.copy_(log_real if ssm.real_part == "exp" else -log_real.exp())
    x = torch.randn(2, 70, sizes[0])
    y, state = layer.prefill(x)
    total = layer(x).square().mean() + y.square().mean() + layer.step(x[:, 0], state)[0].square().mean()
    assert torch.isfinite(total)
    total.backward()
    for name, parameter in layer.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name


@layers
def test_channels_last(cls, options):
    layer, x = cls(8, 16, channels=2, **options), torch.randn(2, 50, 8)
    wanted = layer(x)
    torch.testing.assert_close(layer.to(memory_format=torch.channels_last)(x), wanted, rtol=1e-6, atol=1e-6)


@layers
def test_forward_on_the_meta_device(cls, options):
    layer = cls(8, 16, device="meta", **options)
    assert layer(torch.empty(2, 50, 8, device="meta")).shape == (2, 50, 8)


def test_an_empty_sequence_is_part_of_the_graph():
    layer = S4D(8, 16)
    assert layer(torch.zeros(2, 0, 8)).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.zeros(2, 0, 8)).dtype == layer(torch.zeros(2, 3, 8)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("cls", "options"),
    [(S4, {}), (S4, {"init": "legt"}), (S4D, {}), (DSS, {}), (LSSL, {}), (S5, {}), (LRU, {})],
    ids=str,
)
def test_one_graph(cls, options):
    """torch.compile traces prefill and step without a break; for forward see test_compile."""
    layer, x = cls(4, 8, **options), torch.randn(2, 70, 4)
    state = layer.initial_state(2)
    for function, arguments in ((layer.prefill, (x, state)), (layer.step, (x[:, 0], state))):
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"mix": None, "activation": None}], ids=str)
@pytest.mark.parametrize("cls", [S4, S4D])
def test_a_backward_pass_keeps_the_precision_of_its_forward_pass(cls, options):
    """Whoever calls it: in a block of autocast the same bits."""
    layer = cls(4, 8, **options)
    x, dy, found = torch.randn(2, 70, 4, requires_grad=True), torch.randn(2, 70, 4), []
    for enabled in (False, True):
        with use_path("chunks"):
            y = layer(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found.append(torch.autograd.grad(y, [x, *layer.parameters()], dy))
    for (name, _), one, other in zip([("x", x), *layer.named_parameters()], *found, strict=True):
        assert torch.equal(one, other), name


def test_autocast_decides_what_the_ssm_computes_in(monkeypatch):
    """A GPU's dtype depends on autocast, which is off inside: it has to be asked before."""
    layer, x, asked = S4D(4, 8), torch.randn(2, 20, 4), []
    decide = S4D.working_dtype
    monkeypatch.setattr(
        S4D, "working_dtype", lambda self, x: asked.append(torch.is_autocast_enabled("cpu")) or decide(self, x)
    )
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            layer(x)
            layer.prefill(x)
    assert asked == [True, True, False, False]
