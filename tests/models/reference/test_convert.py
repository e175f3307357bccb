"""Converted weights compute what the published formulas give, to 1e-11."""

import inspect
from pathlib import Path

import pytest
import torch

import statespan
from statespan import S4, S4D, from_reference, models, nn, to_reference
from statespan.models.reference import names
from statespan.models.reference.kernel import convert
from statespan.models.reference.options import ReferenceOptions
from tests.models.reference import brute
from tests.models.reference.brute import Block, FeedForward, Sizes, Stack, draw, error, f64, rand

LENGTH = 37
CLOSE = 1e-11


def agrees(layer, tensors, **options):
    """Convert, compare, and compare again after the way back and forth."""
    module = from_reference(tensors, **options)
    d = getattr(module, "d_model", None) or module.config.d_input
    x = rand(2, LENGTH, d)
    with torch.no_grad():
        wanted = layer(x)
        assert error(module(x), wanted) <= CLOSE
        assert not module.training
    return module, x, wanted


@pytest.mark.parametrize("length", [0, 37, 64, 501])
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("S", [1, 2, 6])
def test_s4_block(length, rank, S):
    sizes = Sizes(S=S, R=rank)
    ssm = draw(sizes)
    block = Block(ssm, brute.v4(ssm, length=length))
    module, *_ = agrees(block, block.tensors)
    assert isinstance(module, S4)
    assert error(module.structure().kernel(5), kernel(ssm, 5)) <= CLOSE


def kernel(ssm, length):
    """The kernel by an impulse."""
    u = torch.zeros(1, length, ssm.C.shape[1], dtype=f64)
    u[:, 0] = 1.0
    return ssm.run(u)[0].permute(1, 2, 0)


def test_the_stored_C_is_not_the_one_of_the_SSM():
    """Without the correction every shape fits, and the outputs are wrong."""
    ssm = draw(Sizes())
    block = Block(ssm, brute.v4(ssm, length=40))
    x = rand(2, LENGTH, 6)
    wrong = from_reference({**block.tensors, "layer.kernel.l_kernel": torch.tensor(0)})
    assert error(wrong(x), block(x)) > 1e-3
    agrees(block, block.tensors)


def test_weights_are_solved_for_where_they_are():
    """Weights on a GPU stay there: nothing is created on the default device, here one without numbers."""
    ssm = draw(Sizes())
    block = Block(ssm, brute.v4(ssm, length=40))
    kernel = {name.rpartition(".")[2]: value for name, value in block.tensors.items() if ".kernel." in name}
    with torch.device("meta"):
        found = convert(kernel, ReferenceOptions(), "kernel.")
    assert {x.device.type for x in (found.C, found.A_real, found.B, found.P, found.log_dt)} == {"cpu"}


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pytest.mark.parametrize("real", ["exp", "softplus", "relu", "sigmoid", "none"])
def test_transforms(rule, real):
    ssm = draw(Sizes(S=3), low_rank=False, rule=rule)
    ssm.A = ssm.A.real * 0.6 - 1j * ssm.A.imag.abs()  # sigmoid is below 1, exp above 0
    for dt in ("exp", "softplus"):
        block = Block(ssm, brute.v4(ssm, real=real, dt=dt, imag="exp"))
        module, *_ = agrees(block, block.tensors, disc=rule, real_transform=real, dt_transform=dt, imag_transform="exp")
        assert isinstance(module, S4D)
    ssm.P = draw(Sizes(S=3)).P
    ssm.rule = "bilinear"
    block = Block(ssm, brute.v4(ssm, real=real))
    agrees(block, block.tensors, real_transform=real)


@pytest.mark.parametrize("mix", ["glu", "linear"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("layout", ["v4", "v3"])
def test_channels_directions_and_mixes(mix, bidirectional, K, layout):
    ssm = draw(Sizes(S=2, K=K, bidirectional=bidirectional))
    block = Block(ssm, getattr(brute, layout)(ssm), layout, mix, bidirectional)
    module, *_ = agrees(block, block.tensors)
    assert (module.channels, module.bidirectional) == (K, bidirectional)


OLDER = {
    "v3": ("v3", brute.v3, {}),
    "v2": ("v3", brute.v2, {}),
    "v2, free": ("v3", lambda ssm: brute.v2(ssm, free=True), {}),
    "v1": ("v1", brute.v1, {}),
}


@pytest.mark.parametrize("name", OLDER)
@pytest.mark.parametrize("rank", [1, 2])
def test_older_versions(name, rank):
    layout, make, options = OLDER[name]
    ssm = draw(Sizes(R=rank))
    block = Block(ssm, make(ssm), layout)
    agrees(block, block.tensors, **options)


@pytest.mark.parametrize("real", ["exp", "softplus", "relu", "sigmoid", "none"])
def test_version_3(real):
    ssm = draw(Sizes(S=3))
    ssm.A = torch.complex(ssm.A.real * 0.6, ssm.A.imag)
    block = Block(ssm, brute.v3(ssm, real=real), "v3")
    agrees(block, block.tensors, real_transform=real)
    ssm.P = None
    for rule, options in (("bilinear", {}), ("zoh", {"disc": "zoh"})):
        ssm.rule = rule
        block = Block(ssm, brute.v3(ssm, real=real), "v3")
        agrees(block, block.tensors, real_transform=real, **options)


def test_standalone_s4d():
    ssm = draw(Sizes(), low_rank=False, rule="zoh")
    block = Block(ssm, brute.s4d(ssm), "s4d")
    module, *_ = agrees(block, block.tensors)
    assert "ssm.B" in dict(module.named_buffers())  # it is part of C, so it is not trained
    back = to_reference(module, layout="s4d")
    assert back.keys() == block.tensors.keys()
    assert all(torch.allclose(back[name], value, rtol=1e-12) for name, value in block.tensors.items())


@pytest.mark.parametrize("norm", ["layer", "batch", "none"])
@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize("layout", ["v4", "v3", "s4d"])
def test_stacks(norm, prenorm, layout):
    layers = []
    for _ in range(2):
        ssm = draw(Sizes(), low_rank=layout != "s4d", rule="zoh" if layout == "s4d" else "bilinear")
        layers += [Block(ssm, getattr(brute, layout)(ssm), layout), FeedForward(6, 2)]
    stack = Stack(layers, norm, prenorm)
    module, x, wanted = agrees(stack, stack.tensors)
    assert isinstance(module, nn.Backbone)
    if layout != "s4d":
        back = to_reference(module, l_kernel=40)
        assert back.keys() == {name.replace("kernel.kernel", "layer.kernel") for name in back}
        assert error(from_reference(back)(x), wanted) <= CLOSE
    if layout == "v4":
        assert back.keys() == stack.tensors.keys()
        for name, value in stack.tensors.items():
            assert "tracked" in name or torch.allclose(back[name], value, rtol=1e-9, atol=1e-12), name


PREFIXES = ["", "model.", "module.", "_orig_mod.", "net.backbone.", "module.model."]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes(prefix):
    ssms = [draw(Sizes()) for _ in range(2)]
    stack = Stack([Block(ssm, brute.v4(ssm)) for ssm in ssms])
    for layer in (stack, stack.layers[0]):
        named = {prefix + name: value for name, value in layer.tensors.items()}
        agrees(layer, named)
        agrees(layer, {"state_dict": named, "epoch": 3})
    beside = {"encoder.x": rand(2), **{f"s4.{name}": value for name, value in stack.layers[0].tensors.items()}}
    agrees(stack.layers[0], beside, prefix="s4.")


def whole(**options):
    """A Lightning module: an encoder, a stack, a decoder."""
    ssms = [draw(Sizes(bidirectional=True)) for _ in range(2)]
    stack = Stack([Block(ssm, brute.v4(ssm, dt="softplus"), bidirectional=True) for ssm in ssms], **options)
    return stack, {f"model.{name}": value for name, value in stack.tensors.items()}


POOLS = {"mean": lambda y: y.mean(1), "last": lambda y: y[:, -1], "first": lambda y: y[:, 0], "none": lambda y: y}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("outputs", [1, 5])
def test_classifiers_and_regressors(pool, outputs):
    stack, tensors = whole(norm="batch", prenorm=outputs == 1)
    W, b, V, c = rand(6, 3), rand(6), rand(outputs, 6), rand(outputs)
    tensors |= {"encoder.0.weight": W, "encoder.0.bias": b}
    tensors |= {"decoder.0.output_transform.weight": V, "decoder.0.output_transform.bias": c}
    module = from_reference(tensors, pool=pool)
    x = rand(2, LENGTH, 3)
    wanted = POOLS[pool](stack(x @ W.T + b)) @ V.T + c
    assert error(module(x), wanted) <= CLOSE
    kinds = {"none": models.Transducer}
    assert type(module) is kinds.get(pool, models.Regressor if outputs == 1 else models.Classifier)
    if pool != "none":
        other = from_reference(tensors, pool=pool, task="regression")
        assert type(other) is models.Regressor
        assert error(other(x), wanted) <= CLOSE
    back = to_reference(module, l_kernel=40)
    assert back.keys() == tensors.keys()
    assert error(from_reference(back, pool=pool)(x), wanted) <= CLOSE


def test_the_default_of_a_lightning_module_is_that_of_its_configs():
    stack, tensors = whole()
    x = rand(2, LENGTH, 6)
    assert error(from_reference(tensors, dt_transform="softplus")(x), stack(x)) <= CLOSE
    assert error(from_reference(tensors)(x), stack(x)) > 1e-5  # a prefix alone says nothing
    tensors |= {"encoder.0.weight": torch.eye(6, dtype=f64), "encoder.0.bias": torch.zeros(6, dtype=f64)}
    assert error(from_reference(tensors)(x), stack(x)) <= CLOSE
    assert error(from_reference(tensors, dt_transform="exp")(x), stack(x)) > 1e-5


def test_tokens_and_pairs():
    stack, tensors = whole()
    table, W, b, V, c = rand(9, 6), rand(6, 24), rand(6), rand(2, 6), rand(2)
    tensors |= {"encoder.0.weight": table}
    head = {"0.weight": W, "0.bias": b, "2.weight": V, "2.bias": c}
    tensors |= {f"decoder.0.retrieval.classifier.{name}": value for name, value in head.items()}
    x = torch.randint(9, (4, LENGTH))
    u, v = stack(table[x]).mean(1).chunk(2)
    hidden = torch.nn.functional.gelu(torch.cat([u, v, u - v, u * v], -1) @ W.T + b)
    module = from_reference(tensors)
    assert error(module(x), hidden @ V.T + c) <= CLOSE
    assert to_reference(module).keys() == tensors.keys()


def test_the_example_of_the_public_code():
    """Layers and norms in two lists, after the sum; the mean of all positions."""
    ssms = [draw(Sizes(), low_rank=False, rule="zoh") for _ in range(3)]
    stack = Stack([Block(ssm, brute.s4d(ssm), "s4d") for ssm in ssms], prenorm=False)
    W, b, V, c = rand(6, 2), rand(6), rand(10, 6), rand(10)
    tensors = {"encoder.weight": W, "encoder.bias": b, "decoder.weight": V, "decoder.bias": c}
    for name, value in stack.tensors.items():
        tensors[name.replace("layers.", "s4_layers.").replace(".layer.", ".") if ".layer." in name else
                name.replace("layers.", "norms.").replace(".norm.norm.", ".")] = value  # fmt: skip
    x = rand(2, LENGTH, 2)
    for source in (tensors, {"model": tensors, "acc": 81.2, "epoch": 3}):
        assert error(from_reference(source)(x), stack(x @ W.T + b).mean(1) @ V.T + c) <= CLOSE


def test_shared_tensors_are_repeated_for_the_SSMs():
    """A and P of one SSM beside B of several."""
    ssm = draw(Sizes(S=2))
    kernel = brute.v4(ssm)
    ssm.A = ssm.A[:1].repeat(2, 1)
    kernel = {**brute.v4(ssm), "A_real": (-ssm.A.real[:1]).log(), "A_imag": -ssm.A.imag[:1]}
    block = Block(ssm, kernel)
    agrees(block, block.tensors)


def test_weight_norm_is_folded():
    ssm = draw(Sizes())
    block = Block(ssm, brute.v4(ssm))
    g, v = 0.5 + torch.rand(12, 1, dtype=f64), rand(12, 6)
    block.weight = g * v / v.norm(dim=1, keepdim=True)
    for parts in (("weight_g", "weight_v"), ("parametrizations.weight.original0", "parametrizations.weight.original1")):
        tensors = {k: x for k, x in block.tensors.items() if k != "output_linear.0.weight"}
        agrees(block, tensors | {f"output_linear.0.{name}": x for name, x in zip(parts, (g, v))})


def test_no_activation():
    ssm = draw(Sizes())
    block = Block(ssm, brute.v4(ssm))
    x = rand(2, LENGTH, 6)
    y = (ssm.run(x)[:, :, 0] + x * block.D) @ block.weight.T + block.bias
    value, gate = y.chunk(2, -1)
    assert error(from_reference(block.tensors, activation="none")(x), value * torch.sigmoid(gate)) <= CLOSE


def test_float32_weights_stay_float32_and_dtype_changes_them():
    ssm = draw(Sizes())
    block = Block(ssm, brute.v4(ssm))
    tensors = {name: x.float() if x.is_floating_point() else x for name, x in block.tensors.items()}
    module = from_reference(tensors)
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    x = rand(2, LENGTH, 6)
    assert error(module(x.float()).double(), block(x)) < 2e-5
    assert {p.dtype for p in from_reference(tensors, dtype=f64).parameters()} == {f64}
    assert from_reference(tensors, dropout=0.25).dropout.p == 0.25


def test_steps_continue_the_sequence():
    ssm = draw(Sizes())
    block = Block(ssm, brute.v4(ssm))
    module, x, wanted = agrees(block, block.tensors)
    with torch.no_grad():
        y, state = module.prefill(x[:, :20])
        for t in range(20, LENGTH):
            y, state = module.step(x[:, t], state)
    assert error(y, wanted[:, -1]) <= CLOSE


def test_gradients_flow_after_conversion():
    ssm = draw(Sizes())
    module = from_reference(Block(ssm, brute.v4(ssm)).tensors).train()
    module(rand(2, LENGTH, 6)).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())


LAYERS = {
    "s4": lambda: S4(6, 8, dtype=f64),
    "legt": lambda: S4(6, 8, init="legt", n_ssm=2, channels=2, bidirectional=True, mix="linear", dtype=f64),
    "softplus": lambda: S4(6, 8, real_part="softplus", activation=None, dtype=f64),
    "s4d": lambda: S4D(6, 8, discretization="zoh", n_ssm=3, real_part="relu", dtype=f64),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("l_kernel", [None, 37, 1000])
@pytest.mark.parametrize("dt", ["exp", "softplus"])
def test_to_reference_and_back(name, l_kernel, dt):
    layer = LAYERS[name]().eval()
    weights = to_reference(layer, l_kernel=l_kernel, dt_transform=dt)
    activation = "none" if layer.activation is None else "gelu"
    x = rand(2, LENGTH, 6)
    back = from_reference(weights, dt_transform=dt, activation=activation)
    assert error(back(x), layer(x)) <= CLOSE
    if name != "s4d":
        assert int(weights["layer.kernel.l_kernel"]) == (l_kernel or 0)
    assert not any(value.requires_grad for value in weights.values())


def test_what_is_written_is_truncated_as_published():
    layer = S4(6, 6, init="legs", dtype=f64)
    ssm = layer.structure()
    plain = brute.SSM(ssm.A.detach(), ssm.B.detach(), ssm.C.detach(), ssm.P.detach(), ssm.dt.detach())
    stored = torch.view_as_complex(to_reference(layer, l_kernel=37)["layer.kernel.C"])
    assert error(torch.view_as_real(stored), brute.pairs(plain.truncated(37))) <= CLOSE


def test_names_at_the_top():
    assert statespan.from_reference is from_reference
    assert statespan.to_reference is to_reference


def test_the_documented_table_has_every_name():
    page = (Path(__file__).parents[3] / "docs" / "reference.md").read_text(encoding="utf-8")
    table = page[page.index("## Names") : page.index("## What cannot be expressed")]
    for version in names.VERSIONS:
        for name in (version.dt, version.A_real, version.A_imag):
            assert f"`{name}`" in table or (name in ("", "w") and "Re `w`" in table), name
    options = set(inspect.signature(from_reference).parameters) - {"source", "prefix", "device", "dtype"}
    section = page[page.index("## What the weights do not say") : page.index("## The stored C")]
    assert all(f"`{name}`" in section for name in options)
