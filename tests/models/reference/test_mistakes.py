"""Weights that cannot be converted get one error that names what is wrong."""

import pytest
import torch

from statespan import DSS, LRU, LSSL, S4, S4D, S5, from_reference, models, nn, to_reference
from statespan.models import LoadError
from statespan.models.reference import NotExpressibleError
from tests.models.reference import brute
from tests.models.reference.brute import Block, FeedForward, Sizes, Stack, draw, f64, rand


def block(**options):
    ssm = draw(Sizes())
    return Block(ssm, brute.v4(ssm, **options)).tensors


def stack():
    return Stack([Block(ssm, brute.v4(ssm)) for ssm in (draw(Sizes()), draw(Sizes()))]).tensors


def without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


def renamed(tensors, old, new):
    return {key.replace(old, new): value for key, value in tensors.items()}


def diagonal():
    ssm = draw(Sizes(), low_rank=False)
    return Block(ssm, brute.v4(ssm)).tensors


def standalone():
    ssm = draw(Sizes(), low_rank=False, rule="zoh")
    return Block(ssm, brute.s4d(ssm), "s4d").tensors


def older(version, **options):
    ssm = draw(Sizes())
    return Block(ssm, getattr(brute, version)(ssm, **options), "v1" if version == "v1" else "v3").tensors


def first_rows():
    """Version 1 without the rows of its low-rank term."""
    return {k: v[:, :1] if k.endswith(("krylov.B", "krylov.C")) else v for k, v in older("v1").items()}


def spoilt(tensors, name, value=float("nan")):
    tensors[name].flatten()[0] = value
    return tensors


def mixed():
    tensors = stack()
    return {**tensors, "layers.1.layer.layer.kernel.inv_dt": rand(5, 1)}


def different_norms():
    tensors = stack()
    return tensors | {f"layers.0.norm.norm.running_{name}": rand(6) for name in ("mean", "var")}


def classifier():
    tensors = {f"model.{name}": value for name, value in stack().items()}
    tensors |= {"encoder.0.weight": rand(6, 2), "encoder.0.bias": rand(6)}
    return tensors | {"decoder.0.output_transform.weight": rand(3, 6), "decoder.0.output_transform.bias": rand(3)}


def real_modes():
    tensors = without(block(), "layer.kernel.A_imag")
    return tensors | {"layer.kernel.C": rand(1, 6, 3), "layer.kernel.B": rand(1, 6, 3)}


CASES = {
    "no layer": (lambda: {"weight": rand(3, 3)}, {}, LoadError, "no name ends in kernel.C"),
    "empty": (dict, {}, LoadError, "must hold tensors"),
    "wrong kind": (lambda: 3, {}, TypeError, "source must be a state_dict or a file, got int"),
    "not a tensor": (lambda: {**block(), "x": 3}, {}, LoadError, "got int for 'x'"),
    "missing Δ": (lambda: without(block(), "layer.kernel.inv_dt"), {}, LoadError, "layer.kernel.inv_dt is missing"),
    "missing A": (lambda: without(block(), "layer.kernel.A_real"), {}, LoadError, "layer.kernel.A_real is missing"),
    "missing B": (lambda: without(block(), "layer.kernel.B"), {}, LoadError, "layer.kernel.B is missing"),
    "missing D": (lambda: without(block(), "layer.D"), {}, LoadError, "layer.D is missing"),
    "missing length": (lambda: without(block(), "layer.kernel.l_kernel"), {}, LoadError, "l_kernel is missing; give"),
    "missing bias": (lambda: without(block(), "output_linear.0.bias"), {}, LoadError, "a weight and a bias"),
    "missing layer": (lambda: renamed(stack(), "layers.1.", "layers.2."), {}, LoadError, "layers.1 is missing"),
    "missing norm": (
        lambda: {k: v for k, v in stack().items() if not k.startswith("layers.1.norm")},
        {}, NotExpressibleError, "norms of several kinds: layer, none",
    ),
    "missing of the norm": (
        lambda: without(stack(), "layers.1.norm.norm.bias"), {}, LoadError, "layers.1. has a norm with weight",
    ),
    "extra of the kernel": (lambda: {**block(), "layer.kernel.foo": rand(2)}, {}, LoadError, "layer.kernel. has foo"),
    "extra of the layer": (lambda: {**block(), "foo.weight": rand(2)},
    {}, LoadError, "foo.weight is none of the names"),
    "extra of the block": (lambda: {**stack(), "layers.0.foo": rand(2)}, {}, LoadError, "layers.0.foo is none"),
    "extra beside": (lambda: {**stack(), "foo": rand(2)}, {}, LoadError, "foo is none of the names"),
    "shape of C": (lambda: {**block(), "layer.kernel.C": rand(1, 6, 2, 2)}, {}, LoadError, "C must have 3 modes"),
    "heads of C": (lambda: {**block(), "layer.kernel.C": rand(1, 5, 3, 2)}, {}, LoadError, "inv_dt must be one Δ for"),
    "pairs": (lambda: {**block(), "layer.kernel.C": rand(1, 6, 3)}, {}, LoadError, "a last axis of 2"),
    "shape of A": (lambda: {**block(), "layer.kernel.A_real": rand(4, 3)}, {}, LoadError, "layer.kernel."),
    "shape of B": (lambda: {**block(), "layer.kernel.B": rand(1, 6, 2, 2)}, {}, LoadError, "layer.kernel."),
    "shape of D": (lambda: {**block(), "layer.D": rand(1, 5)}, {}, LoadError, "layer.D must have shape (channels, 6)"),
    "shape of the mix": (
        lambda: {**block(), "output_linear.0.weight": rand(12, 5)}, {}, NotExpressibleError, "shape (12, 5)",
    ),
    "shape of a norm": (lambda: {**stack(), "layers.0.norm.norm.bias": rand(5)}, {}, LoadError, "must have shape (6,)"),
    "length": (lambda: {**block(), "layer.kernel.l_kernel": torch.tensor(-1)}, {}, LoadError, "whole number >= 0"),
    "Δ of 0": (lambda: block(), {"dt_transform": "none"}, LoadError, "must give step sizes > 0"),
    "mixed layers": (mixed, {}, LoadError, "layers.1.layer.layer.kernel.inv_dt must be one Δ"),
    "two kernels": (lambda: {**block(), **renamed(block(), "layer.", "other.")}, {}, NotExpressibleError, "several"),
    "untied Δ": (lambda: {**block(), "layer.kernel.inv_dt": rand(6, 3)}, {}, NotExpressibleError, "dt_tie=False"),
    "partial v4": (lambda: without(block(), "layer.kernel.P"), {}, LoadError, "P is missing, which a kernel with l_k"),
    "diagonal with a length": (
        lambda: {**diagonal(), "layer.kernel.l_kernel": torch.tensor(40)}, {}, LoadError, "layer.kernel.P is missing",
    ),
    "partial v3": (lambda: without(older("v3"), "kernel.kernel.P"), {}, LoadError, "P is missing, which a kernel"),
    "partial v2": (lambda: without(older("v2"), "kernel.kernel.P"), {}, LoadError, "kernel.kernel.P is missing"),
    "partial v2, free": (
        lambda: without(older("v2", free=True), "kernel.kernel.P"), {}, LoadError, "kernel.kernel.P is missing",
    ),
    "partial v1": (first_rows, {}, LoadError, "got (6, 1, 3) and (6, 1, 3)"),
    "modes of B in v1": (
        lambda: {**older("v1"), "kernel.krylov.B": rand(6, 2, 5, 2)}, {}, LoadError, "got (6, 2, 5) and (6, 2, 3)",
    ),
    "NaN in C": (lambda: spoilt(diagonal(), "layer.kernel.C"), {}, LoadError, "kernel.C must be finite, got 1 of"),
    "NaN in C of S4": (lambda: spoilt(block(), "layer.kernel.C"), {}, LoadError, "layer.kernel.C must be finite"),
    "infinite bias": (
        lambda: spoilt(stack(), "layers.1.layer.output_linear.0.bias", float("inf")),
        {}, LoadError, "layers.1.layer.output_linear.0.bias must be finite",
    ),
    "NaN under a prefix": (
        lambda: {f"net.{k}": v for k, v in spoilt(block(), "layer.D").items()},
        {"prefix": "net."}, LoadError, "net.layer.D must be finite",
    ),
    "float8": (
        lambda: {**block(), "layer.D": torch.full((1, 6), float("nan")).to(torch.float8_e5m2)},
        {}, LoadError, "layer.D must be finite, got 6 of 6",
    ),
    "meta": (lambda: {**block(), "layer.D": rand(1, 6).to("meta")}, {}, LoadError, "layer.D must be a dense tensor"),
    "sparse": (lambda: {**block(), "layer.D": rand(1, 6).to_sparse()}, {}, LoadError, "got one of layout torch.sparse"),
    "huge A": (
        lambda: {**block(), "layer.kernel.A_real": torch.full((6, 3), 400.0, dtype=f64)},
        {}, LoadError, "layer.kernel.A_real gives |A| up to 5.22147e+173",
    ),
    "infinite A": (
        lambda: {**diagonal(), "layer.kernel.A_real": torch.full((6, 3), 800.0, dtype=f64)},
        {}, LoadError, "layer.kernel.A_real must give finite Re A, got up to 800",
    ),
    "modes of B": (
        lambda: {**block(), "layer.kernel.B": rand(1, 6, 5, 2)},
        {}, LoadError, "kernel.B must have 3 modes, as layer.kernel.C has of shape (1, 6, 3, 2), got shape (1, 6, 5",
    ),
    "modes of P": (
        lambda: {**block(), "layer.kernel.P": rand(1, 6, 5, 2)}, {}, LoadError, "layer.kernel.P must have 3 modes",
    ),
    "disc of S4": (block, {"disc": "zoh"}, LoadError, "disc must be 'bilinear' or None for S4"),
    "disc of a stack of S4": (stack, {"disc": "zoh"}, LoadError, "disc must be 'bilinear' or None for S4"),
    "rank 3": (
        lambda: {**block(), "layer.kernel.P": rand(3, 6, 3, 2)}, {}, NotExpressibleError, "rank 1 or 2",
    ),
    "real modes": (real_modes, {}, NotExpressibleError, "is_real=True"),
    "gate": (lambda: {**block(), "input_gate.weight": rand(2)}, {}, NotExpressibleError, "a gate around the SSM"),
    "bottleneck": (lambda: {**block(), "input_linear.weight": rand(2)}, {}, NotExpressibleError, "bottleneck"),
    "Mega": (
        lambda: {f"layer.kernel.{n}": rand(2, 2) for n in ("alpha", "beta", "gamma", "delta", "C")},
        {}, NotExpressibleError, "Mega",
    ),
    "dense": (
        lambda: {f"layer.kernel.{n}": rand(2, 2, 2) for n in ("A", "B", "C", "inv_dt")},
        {}, NotExpressibleError, "dense",
    ),
    "U-Net": (lambda: renamed(stack(), "layers.0.", "d_layers.0."), {}, NotExpressibleError, "U-Net and SaShiMi"),
    "two directions": (
        lambda: {**stack(), "layers.0.reverse_layer.D": rand(2)}, {}, NotExpressibleError, "reads backwards",
    ),
    "residual": (lambda: {**stack(), "layers.0.residual.affine": rand(1)},
    {}, NotExpressibleError, "residual function"),
    "pool": (lambda: {**stack(), "layers.0.pool.linear.weight": rand(1)}, {}, NotExpressibleError, "a pool between"),
    "scalar norm": (
        lambda: {k.replace("norm.weight", "norm.m").replace("norm.bias", "norm.s"): v for k, v in stack().items()},
        {}, NotExpressibleError, "one scale and one shift",
    ),
    "norms": (different_norms, {}, NotExpressibleError, "norms of several kinds: batch, layer"),
    "attention": (
        lambda: {**stack(), "layers.2.layer.in_proj.weight": rand(2)}, {}, NotExpressibleError, "neither an S4 nor",
    ),
    "no last norm": (
        lambda: {k: v for k, v in stack().items() if not k.startswith("norm.")},
        {"prenorm": True}, NotExpressibleError, "needs a last norm",
    ),
    "a last norm": (stack, {"prenorm": False}, LoadError, "prenorm must be True"),
    "prefix": (stack, {"prefix": "nothing."}, LoadError, "no name that begins with prefix='nothing.'"),
    "position": (lambda: {**classifier(), "encoder.1.pe": rand(9, 6)}, {}, NotExpressibleError, "encoder has"),
    "two encoders": (
        lambda: {**classifier(), "encoder.1.weight": rand(6, 6)}, {}, NotExpressibleError, "several encoders",
    ),
    "encoder": (lambda: {**classifier(), "encoder.0.weight": rand(5, 2)}, {}, LoadError, "map to 6 features"),
    "decoder": (
        lambda: {**classifier(), "decoder.0.output_transform.weight": rand(3, 5)}, {}, LoadError, "map 6 features",
    ),
    "other decoder": (lambda: {**classifier(), "decoder.1.x": rand(2)}, {}, NotExpressibleError, "decoder has"),
    "language": (
        lambda: {
            **{k: v for k, v in classifier().items() if "coder" not in k},
            "encoder.0.weight": rand(9, 6), "decoder.0.weight": rand(9, 6), "decoder.0.bias": rand(9),
        },
        {}, NotExpressibleError, "language model",
    ),
    "bad option": (block, {"dt_transform": "tanh"}, ValueError, "dt_transform must be one of"),
    "bad pool": (classifier, {"pool": "max"}, ValueError, "pool must be one of"),
    "bad length": (block, {"l_kernel": 0}, ValueError, "l_kernel must be an integer >= 1"),
    "bad dtype": (block, {"dtype": torch.int8}, ValueError, "dtype must be one of"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_mistakes(name):
    make, options, kind, text = CASES[name]
    with pytest.raises(kind) as found:
        from_reference(make(), **options)
    assert text in str(found.value)
    assert "\n" not in str(found.value)
    assert kind is not LoadError or not isinstance(found.value, NotExpressibleError)


def test_low_rank_terms_of_version_2():
    ssm = draw(Sizes())
    tensors = Block(ssm, brute.v2(ssm, free=True), "v3").tensors
    tensors["kernel.kernel.Q"] = tensors["kernel.kernel.Q"][:, :1, :-1]
    with pytest.raises(LoadError, match=r"P and .*Q must have equal shapes"):
        from_reference(tensors)
    tensors = Block(ssm, brute.v2(ssm, length=41), "v3").tensors
    with pytest.raises(NotExpressibleError, match="odd length, 41"):
        from_reference(tensors)


def test_layers_of_different_settings_have_no_config_but_a_backbone():
    ssms = draw(Sizes(S=2)), draw(Sizes(S=3))
    tensors = Stack([Block(ssm, brute.v4(ssm)) for ssm in ssms]).tensors
    assert isinstance(from_reference(tensors), nn.Backbone)
    ends = {"encoder.0.weight": rand(6, 2), "encoder.0.bias": rand(6)}
    with pytest.raises(NotExpressibleError, match="different settings"):
        from_reference({**{f"model.{k}": v for k, v in tensors.items()}, **ends})


def test_feed_forward_layers_must_follow_every_layer():
    ssm = draw(Sizes())
    layers = [Block(ssm, brute.v4(ssm)), Block(ssm, brute.v4(ssm)), FeedForward(6, 2)]
    ends = {"encoder.0.weight": rand(6, 2), "encoder.0.bias": rand(6)}
    tensors = {f"model.{k}": v for k, v in Stack(layers).tensors.items()}
    with pytest.raises(NotExpressibleError, match="feed-forward layers must follow"):
        from_reference({**tensors, **ends})


def test_a_disc_that_a_config_stores_beside_S4_is_not_used():
    config = {"model": {"layer": {"disc": "zoh"}}}
    x, tensors = rand(1, 9, 2), classifier()
    found = from_reference({"state_dict": tensors, "hyper_parameters": config})(x)
    assert torch.equal(found, from_reference(tensors, disc="bilinear")(x))


def test_a_tensor_that_repeats_few_numbers_is_rejected():
    tensors = block()
    tensors["layer.kernel.C"] = torch.ones(1, dtype=f64).expand(10**9)
    with pytest.raises(LoadError, match="share"):
        from_reference(tensors)


CONFIGS = {
    "backbone": ({"_name_": "sashimi"}, "the backbone 'sashimi'"),
    "norm": ({"norm": "group"}, "the norm 'group'"),
    "instance": ({"norm": {"_name_": "instance"}}, "the norm 'instance'"),
    "residual": ({"residual": "D"}, "the residual function 'D'"),
    "directions": ({"bidirectional": True}, "a second layer"),
    "dss": ({"layer": {"disc": "dss"}}, "disc='dss'"),
    "bandlimit": ({"layer": {"bandlimit": 0.5}}, "bandlimit=0.5"),
    "gate": ({"layer": {"gate": 4}}, "gate=4"),
    "final": ({"layer": [{"final_act": "relu"}]}, "final_act='relu'"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_says_what_the_weights_do_not(name):
    model, text = CONFIGS[name]
    with pytest.raises(NotExpressibleError, match=text):
        from_reference({"state_dict": classifier(), "hyper_parameters": {"model": model}})


WRITING = {
    "dss": (lambda: DSS(4, 4), {}, NotExpressibleError, "softmax"),
    "lssl": (lambda: LSSL(4, 4), {}, NotExpressibleError, "DenseParameters"),
    "zoh": (lambda: S4(4, 4, discretization="zoh"), {}, NotExpressibleError, "bilinear"),
    "foh": (lambda: S4D(4, 4, discretization="foh"), {}, NotExpressibleError, "'foh' of a diagonal SSM"),
    "foh both ways": (
        lambda: S4D(4, 4, discretization="foh", bidirectional=True), {}, NotExpressibleError, "is zoh or bilinear",
    ),
    "foh in a stack": (
        lambda: nn.Backbone([S4D(4, 4, discretization="foh")]), {}, NotExpressibleError, "'foh' of a diagonal SSM",
    ),
    "foh with a low rank": (lambda: S4(4, 4, discretization="foh"), {}, NotExpressibleError, "is bilinear"),
    "S5": (lambda: S5(4, 4), {}, NotExpressibleError, "S5Parameters"),
    "LRU": (lambda: LRU(4, 4), {}, NotExpressibleError, "LRUParameters"),
    "undamped": (lambda: S4D(4, 4, real_part="relu"), {}, NotExpressibleError, "Re A must be < 0"),
    "standalone": (lambda: S4D(4, 4), {"layout": "s4d"}, NotExpressibleError, "needs discretization='zoh'"),
    "standalone S4": (lambda: S4(4, 4), {"layout": "s4d"}, NotExpressibleError, "needs a diagonal SSM"),
    "U-Net": (lambda: nn.UNet(4, lambda d: [S4(d, 4)]), {}, TypeError, "got UNet"),
    "linear": (lambda: torch.nn.Linear(2, 2), {}, TypeError, "got Linear"),
    "layout": (lambda: S4(4, 4), {"layout": "v9"}, ValueError, "layout must be one of"),
    "transform": (lambda: S4(4, 4), {"dt_transform": "relu"}, ValueError, "dt_transform must be one of"),
    "length": (lambda: S4(4, 4), {"l_kernel": 0}, ValueError, "l_kernel must be"),
    "alone": (
        lambda: models.Transducer(
            models.TransducerConfig(d_input=4, d_output=4, d_model=4, n_layers=1, norm="none", residual=False)
        ),
        {}, NotExpressibleError, "residual=False",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITING)
def test_what_cannot_be_written(name):
    make, options, kind, text = WRITING[name]
    model = make()
    if name == "undamped":
        model.ssm.A_real.data.zero_()
    with pytest.raises(kind) as found:
        to_reference(model, **options)
    assert text in str(found.value)
