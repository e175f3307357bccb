"""The Transformer's block and stack, around attention and around SSM layers."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call

from statespan import LSSL, S4, S4D, param_groups
from statespan.papers.baselines.attention import Attention, StaticKVCache
from statespan.papers.baselines.linear_attention import LinearAttention, Performer
from statespan.papers.baselines.transformer import Transformer, TransformerBlock
from tests.mistakes import assert_one_clear_line
from tests.nn.make import assert_round_trip, peak_error

pytestmark = pytest.mark.share(3)

MIXERS = {
    "attention": lambda **o: Attention(8, 2, **o),
    "linear": lambda **o: LinearAttention(8, 2, **o),
    "performer": lambda **o: Performer(8, 2, **o),
    "S4D": lambda **o: S4D(8, 4, **o),
    "LSSL": lambda **o: LSSL(8, 4, **o),
}
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-6}
mixers = pytest.mark.parametrize("mixer", MIXERS)
norms = pytest.mark.parametrize("norm", ["layer", "rms"])
places = pytest.mark.parametrize("prenorm", [True, False], ids=["prenorm", "postnorm"])


def build(mixer, n_layers=2, d_ff=12, dtype=torch.float64, **options):
    layers = [MIXERS[mixer](dtype=dtype) for _ in range(n_layers)]
    return shake(Transformer(8, layers, d_ff=d_ff, dtype=dtype, **options))


def shake(model):
    """Move the norms away from 1 and 0, where they start."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def normalized(norm, x):
    """The definition of both norms."""
    if isinstance(norm, nn.LayerNorm):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias
    return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt() * norm.weight


def fed_forward(block, x):
    first, _, second = block.feed_forward
    hidden = x @ first.weight.T + first.bias
    return hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2 @ second.weight.T + second.bias


def reference(block, x):
    if block.prenorm:
        x = x + block.mixer(normalized(block.mixer_norm, x))
        return x if block.feed_forward is None else x + fed_forward(block, normalized(block.feed_norm, x))
    x = normalized(block.mixer_norm, x + block.mixer(x))
    return x if block.feed_forward is None else normalized(block.feed_norm, x + fed_forward(block, x))


def run_steps(step, x, state):
    outputs = []
    for x_t in x.unbind(1):
        y, state = step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


@norms
@places
@pytest.mark.parametrize("d_ff", [12, None])
def test_block_and_stack_are_their_definition(norm, prenorm, d_ff):
    model = build("attention", 3, d_ff, norm=norm, prenorm=prenorm)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    wanted = x
    for block in model.blocks:
        assert peak_error(block(wanted), reference(block, wanted)) <= 1e-13
        wanted = reference(block, wanted)
    wanted = normalized(model.norm, wanted) if prenorm else wanted
    assert peak_error(model(x), wanted) <= 1e-13


@mixers
@places
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_three_views(mixer, prenorm, dtype):
    model = build(mixer, dtype=dtype, prenorm=prenorm)
    with torch.no_grad():
        for batch, length in ((1, 1), (3, 2), (2, 65)):
            x = torch.randn(batch, length, 8, dtype=dtype)
            wanted = copy.deepcopy(model).double()(x.double())
            # two layers of rounding, which the norms of small signals enlarge
            tolerance = TOLERANCE[dtype] * (2 if dtype == torch.float32 else 1)
            assert peak_error(model(x), wanted) <= tolerance
            for cut in {1, length // 3}:
                first, state = model.prefill(x[:, :cut])
                second, state = model.prefill(x[:, cut:], state)
                assert peak_error(torch.cat([first, second], 1), wanted) <= tolerance
            y, state = run_steps(model.stepper(), x, model.initial_state(batch))
            assert peak_error(y, wanted) <= tolerance
            assert len(state) == 2
            again, _ = run_steps(model.step, x[:, :5], model.initial_state(batch))
            assert (again == y[:, :5]).all()


def test_the_scale_of_the_step_reaches_the_mixers():
    model, x = build("S4D"), torch.randn(2, 20, 8, dtype=torch.float64)
    with torch.no_grad():
        wanted = model(x, dt_scale=2.0)
        assert peak_error(wanted, model(x)) > 1e-3
        first, state = model.prefill(x[:, :7], dt_scale=2.0)
        second, _ = run_steps(model.stepper(2.0), x[:, 7:], state)
        third, _ = model.step(x[:, 7], state, dt_scale=2.0)
    assert peak_error(torch.cat([first, second], 1), wanted) <= 1e-11
    assert peak_error(third, wanted[:, 7]) <= 1e-11


@mixers
@places
def test_padding_is_ignored(mixer, prenorm):
    """Each sequence comes out as if it were alone, gradients too; the padding is 0, whatever stood there."""
    model, lengths = build(mixer, prenorm=prenorm), [30, 1, 17, 0]
    x = torch.randn(4, 30, 8, dtype=torch.float64)
    for b, length in enumerate(lengths):
        x[b, length:] = torch.nan
    x.requires_grad_()
    probe = torch.randn(4, 30, 8, dtype=torch.float64)
    by_prefill, state = model.prefill(x, lengths=lengths)
    more, _ = model.step(probe[:, 0], state)
    for y in (model(x, lengths=lengths), model(x, lengths=torch.tensor(lengths)), by_prefill):
        (grad,) = torch.autograd.grad((y * probe).sum(), x, retain_graph=True)
        for b, length in enumerate(lengths):
            assert (y[b, length:] == 0).all()
            assert (grad[b, length:] == 0).all()
            if length:
                alone = x.detach()[b : b + 1, :length].requires_grad_()
                wanted = model(alone)
                assert peak_error(y[b, :length], wanted[0]) <= 1e-11
                (own,) = torch.autograd.grad((wanted * probe[b, :length]).sum(), alone)
                assert peak_error(grad[b, :length], own[0]) <= 1e-9
    for b, length in enumerate(lengths):
        together = torch.cat([x.detach()[b, :length], probe[b, :1]])[None]
        assert peak_error(more[b], model(together)[0, -1]) <= 1e-11


def test_one_block_has_the_same_uses():
    block = shake(TransformerBlock(8, Attention(8, 2), d_ff=12))
    x = torch.randn(2, 20, 8)
    with torch.no_grad():
        wanted = block(x)
        y, state = block.prefill(x[:, :7])
        z, end = run_steps(block.stepper(), x[:, 7:], state)
        assert peak_error(torch.cat([y, z], 1), wanted) <= 2e-6
        static = block.initial_state(2, max_length=20)
        assert isinstance(static, StaticKVCache)
        y, static = run_steps(block.step, x, static)
        assert peak_error(y, wanted) <= 2e-6
        assert (static.position == end.position).all()
    model = Transformer(8, [Attention(8, 2) for _ in range(3)], d_ff=None)
    assert [s.keys.shape[2] for s in model.initial_state(2, max_length=20)] == [20] * 3


def test_any_module_mixes():
    """One with forward alone has no other use; it is asked for lengths only where there are any."""
    linear = nn.Linear(8, 8)
    model, x = Transformer(8, [linear], d_ff=None), torch.randn(2, 5, 8)
    centred = nn.functional.layer_norm(x, (8,))
    torch.testing.assert_close(model(x), nn.functional.layer_norm(x + linear(centred), (8,)))
    state = model.blocks[0]
    calls = {
        "prefill": lambda: model.prefill(x),
        "step": lambda: model.step(x[:, 0], (None,)),
        "stepper": lambda: model.stepper(),
        "initial_state": lambda: state.initial_state(2),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=f"^{name} needs a mixer that has it, got Linear$"):
            call()
    with pytest.raises(TypeError, match="lengths"):
        model(x, lengths=[5, 3])


@pytest.mark.parametrize(
    "mixer", [Attention(8, 2, bidirectional=True), S4D(8, 4, bidirectional=True)], ids=["attention", "S4D"]
)
def test_two_way_mixers(mixer):
    model, x = Transformer(8, [mixer], d_ff=12), torch.randn(2, 30, 8)
    changed = torch.cat([x[:, :20], torch.randn(2, 10, 8)], 1)
    assert (model(x)[:, 0] - model(changed)[:, 0]).abs().max() > 1e-3
    torch.testing.assert_close(model(x, lengths=[20, 20])[:, :20], model(x[:, :20]), rtol=1e-5, atol=1e-5)
    for call in (lambda: model.prefill(x), lambda: model.stepper(), lambda: model.initial_state(2)):
        with pytest.raises(ValueError, match="needs a causal layer"):
            call()


@places
def test_gradients(prenorm):
    """Finite differences with respect to the input and every parameter, through every use."""
    layers = [Attention(3, 1, d_head=2, dtype=torch.float64)]
    model = shake(Transformer(3, layers, d_ff=2, prenorm=prenorm, dtype=torch.float64))
    names = [name for name, _ in model.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in model.parameters()]
    x = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)

    class Uses(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            y, state = self.model.prefill(x, lengths=[3, 1])
            return self.model(x, lengths=[3, 2]), y, self.model.step(x[:, 0], state)[0]

    uses = Uses()

    def function(x, *values):
        return functional_call(uses, {f"model.{n}": v for n, v in zip(names, values, strict=True)}, (x,))

    assert gradcheck(function, (x, *values), atol=1e-7, rtol=1e-6)


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("norm", "each"), [("layer", 16), ("rms", 8)])
def test_number_of_parameters(norm, each):
    mixer = Attention(8, 2)
    own = count(mixer)
    assert count(TransformerBlock(8, mixer, d_ff=12, norm=norm)) == own + 2 * each + 2 * 8 * 12 + 12 + 8
    assert count(TransformerBlock(8, mixer, d_ff=None, norm=norm)) == own + each
    three = [Attention(8, 2) for _ in range(3)]
    assert count(Transformer(8, three, d_ff=None, norm=norm)) == 3 * (own + each) + each
    assert count(Transformer(8, three, d_ff=None, norm=norm, prenorm=False)) == 3 * (own + each)


def test_the_models_of_s4_table_3_have_as_many_parameters():
    """S4 appendix D.1: 4 layers of 256 features; 4 heads, projections of 128; S4 with N = 256 "parameter tied"."""
    kinds = [lambda cls=cls: cls(256, 4, d_head=32) for cls in (Attention, LinearAttention, Performer)]
    sizes = {count(Transformer(256, [make() for _ in range(4)], d_ff=None)) for make in kinds}
    assert sizes == {4 * (4 * 256 * 128 + 3 * 128 + 256 + 2 * 256) + 2 * 256}
    s4 = count(Transformer(256, [S4(256, 256, n_ssm=1, mix="linear") for _ in range(4)], d_ff=None))
    assert s4 / sizes.pop() == pytest.approx(1, abs=0.01)


def test_optimizer_groups():
    """Weights decay, biases and norms do not, the SSM's own parameters are slow."""
    model = Transformer(8, [S4D(8, 4), Attention(8, 2)], d_ff=12)
    groups = {g["name"]: {id(p) for p in g["params"]} for g in param_groups(model, lr=0.01)}
    assert set(groups) == {"ssm", "no_decay", "decay"}
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            assert id(parameter) in groups["no_decay"], name
        elif name.endswith("weight"):
            assert id(parameter) in groups["decay"], name
    assert sum(len(g) for g in groups.values()) == len(list(model.parameters()))


@mixers
def test_state_dict_round_trip(mixer):
    first, second = build(mixer, dtype=torch.float32), build(mixer, dtype=torch.float32)
    assert_round_trip(first, second, torch.randn(2, 50, 8))


@mixers
@places
def test_low_precision_and_autocast(mixer, prenorm):
    model, x = build(mixer, dtype=torch.float32, prenorm=prenorm), torch.randn(2, 20, 8)
    wanted = model(x).detach()
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
        first, state = model.prefill(x[:, :12])
        second, _ = run_steps(model.stepper(), x[:, 12:], state)
        y.square().mean().backward()
    assert y.dtype == torch.float32  # the residual and the norms stay as they are
    assert peak_error(y, wanted) < 0.03
    assert peak_error(torch.cat([first, second], 1), wanted) < 0.03
    assert all(p.grad.isfinite().all() and (p.grad != 0).any() for p in model.parameters())
    half = model.bfloat16()
    y = half(x.bfloat16())
    first, state = half.prefill(x[:, :12].bfloat16())
    second, _ = run_steps(half.stepper(), x[:, 12:].bfloat16(), state)
    assert y.dtype == first.dtype == second.dtype == torch.bfloat16
    assert peak_error(y, wanted) < 0.05
    assert peak_error(torch.cat([first, second], 1), wanted) < 0.05


@pytest.mark.parametrize("mixer", ["attention", "S4D"])
def test_one_graph(mixer):
    torch.compiler.reset()
    model, x = build(mixer, n_layers=1, dtype=torch.float32), torch.randn(2, 20, 8)
    with torch.no_grad():
        _, state = model.prefill(x)
    for function, arguments in ((model, (x,)), (model.prefill, (x, state)), (model.step, (x[:, 0], state))):
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=1e-5, atol=1e-5)


def test_dropout_is_on_what_is_added():
    """Half the features of a block without a feed-forward network leave the residual as it is."""
    block = TransformerBlock(8, Attention(8, 2), d_ff=None, dropout=0.5)
    x = torch.randn(500, 6, 8)
    added = block(x) - x
    exact = block.eval()(x) - x
    kept = added.abs() > 1e-6
    assert abs(kept.double().mean().item() - 0.5) < 0.02
    torch.testing.assert_close(added[kept], 2 * exact[kept], rtol=1e-3, atol=1e-5)
    full = TransformerBlock(8, nn.Identity(), d_ff=12, dropout=0.5)
    with torch.no_grad():
        full.mixer_norm.weight.zero_()  # nothing comes from the mixer
    added = full(x) - x
    assert abs((added.abs() > 1e-6).double().mean().item() - 0.5) < 0.02


x, model = torch.randn(2, 10, 8), Transformer(8, [Attention(8, 2), LinearAttention(8, 2)], d_ff=12)
state = model.initial_state(2)


def block(**options):
    return TransformerBlock(8, options.pop("mixer", nn.Identity()), **{"d_ff": 12, **options})


def stack(**options):
    return Transformer(8, options.pop("mixers", [nn.Identity()]), **{"d_ff": 12, **options})


CASES = {
    "d_model 0": (lambda: TransformerBlock(0, nn.Identity(), d_ff=12), ValueError, ["d_model", "0", ">= 1"]),
    "d_model float": (lambda: Transformer(8.0, [nn.Identity()], d_ff=12), TypeError, ["d_model", "8.0"]),
    "mixer a class": (lambda: block(mixer=Attention), TypeError, ["mixer", "torch.nn.Module", "ABCMeta"]),
    "mixer of another size": (lambda: block(mixer=Attention(4, 2)), ValueError, ["mixer", "d_model=8", "4"]),
    "mixer with more outputs": (
        lambda: block(mixer=S4D(8, 4, mix=None, channels=2)),
        ValueError,
        ["mixer", "d_output=8", "16"],
    ),
    "mixers one module": (lambda: stack(mixers=Attention(8, 2)), TypeError, ["mixers", "Attention"]),
    "mixers text": (lambda: stack(mixers="S4"), TypeError, ["mixers", "str"]),
    "mixers numbers": (lambda: stack(mixers=[1]), TypeError, ["mixers", "torch.nn.Module", "int"]),
    "mixers empty": (lambda: stack(mixers=[]), ValueError, ["mixers", "none"]),
    "d_ff missing": (lambda: TransformerBlock(8, nn.Identity()), TypeError, ["d_ff"]),
    "lengths too long": (lambda: model(x, lengths=[3, 11]), ValueError, ["lengths", "[3, 11]", "10"]),
    "lengths fractions": (lambda: model.prefill(x, lengths=[3.0, 4.0]), TypeError, ["lengths", "whole"]),
    "x wrong features": (lambda: model(x[..., :3]), ValueError, ["x", "(batch, length, 8)", "(2, 10, 3)"]),
    "x integers": (lambda: model(x.long()), TypeError, ["x", "torch.int64"]),
    "x of a block": (lambda: block()(x[0]), ValueError, ["x", "(batch, length, 8)", "(10, 8)"]),
    "step with a sequence": (lambda: model.step(x, state), ValueError, ["x", "(batch, 8)", "(2, 10, 8)"]),
    "state of one": (lambda: model.step(x[:, 0], state[:1]), ValueError, ["state", "2", "1"]),
    "state not a tuple": (lambda: model.prefill(x, x), TypeError, ["state", "tuple of 2", "Tensor"]),
    "state missing": (lambda: model.step(x[:, 0], None), TypeError, ["state", "NoneType"]),
    "states exchanged": (lambda: model.prefill(x, state[::-1]), TypeError, ["state", "KVCache", "LinearState"]),
    "option of the state": (lambda: model.initial_state(2, length=3), TypeError, ["length"]),
}
for make in (block, stack):
    CASES.update(
        {
            f"{make.__name__}: d_ff 0": (lambda make=make: make(d_ff=0), ValueError, ["d_ff", "0", ">= 1"]),
            f"{make.__name__}: d_ff float": (lambda make=make: make(d_ff=2.5), TypeError, ["d_ff", "2.5"]),
            f"{make.__name__}: norm": (lambda make=make: make(norm="batch"), ValueError, ["norm", "'batch'", "'rms'"]),
            f"{make.__name__}: norm None": (lambda make=make: make(norm=None), TypeError, ["norm", "None", "'layer'"]),
            f"{make.__name__}: prenorm": (lambda make=make: make(prenorm=1), TypeError, ["prenorm", "True or False"]),
            f"{make.__name__}: dropout": (lambda make=make: make(dropout=1.0), ValueError, ["dropout", "1.0", "< 1"]),
            f"{make.__name__}: dtype": (lambda make=make: make(dtype=torch.int8), ValueError, ["dtype", "torch.int8"]),
            f"{make.__name__}: unknown": (lambda make=make: make(n_heads=2), TypeError, ["n_heads"]),
        }
    )


@pytest.mark.parametrize("case", CASES, ids=[name.replace(" ", "-") for name in CASES])
def test_mistake(case):
    assert_one_clear_line(*CASES[case])
