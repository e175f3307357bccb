"""Every kind of attention against its definition, in all three uses; caches; wild and empty inputs."""

import copy
import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.func import functional_call

from statespan.papers.baselines import attention
from statespan.papers.baselines.attention import Attention, StaticKVCache
from statespan.papers.baselines.linear_attention import LinearState
from tests.nn.make import peak_error
from tests.papers.baselines.make_attention import KINDS, Sizes, build, heads_of, reference, run_steps

pytestmark = pytest.mark.share(3)

LENGTHS = [1, 2, 63, 64, 65, 100]
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-6}
kinds = pytest.mark.parametrize("kind", KINDS)
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-way"])


def assert_same_state(got, wanted, tolerance):
    """Caches in the slots they use; sums at a common scale."""
    assert type(got) is type(wanted)
    if isinstance(got, LinearState):
        factor = (got.log_scale - wanted.log_scale).exp()[..., None, None]
        assert peak_error(got.sums * factor, wanted.sums) <= tolerance
        return
    assert (got.position == wanted.position).all()
    for b, used in enumerate(got.position.tolist()):
        for g, w in zip(got[:2], wanted[:2], strict=True):
            assert peak_error(g[b, :, :used], w[b, :, :used]) <= tolerance


@kinds
@both_ways
@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_forward_is_the_definition(kind, causal, n_heads):
    layer = build(kind, 8, n_heads, bidirectional=not causal)
    with torch.no_grad():
        for length in LENGTHS:
            for batch in (1, 3):
                x = 2 * torch.randn(batch, length, 8, dtype=torch.float64)
                assert peak_error(layer(x), reference(layer, x)) <= 1e-12, (length, batch)


@kinds
@pytest.mark.parametrize("n_heads", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_three_views(kind, n_heads, dtype):
    layer = build(kind, 8, n_heads, dtype)
    with torch.no_grad():
        for batch, lengths in ((1, LENGTHS), (3, [2, 65])):
            x = torch.randn(batch, lengths[-1], 8, dtype=dtype)
            wanted = reference(layer, x)
            y, end = run_steps(layer, x, layer.initial_state(batch))
            assert peak_error(y, wanted) <= TOLERANCE[dtype]
            for length in lengths:
                assert peak_error(layer(x[:, :length]), wanted[:, :length]) <= TOLERANCE[dtype], length
                for cut in {0, 1, length // 3, length - 1, length}:
                    first, state = layer.prefill(x[:, :cut], None if cut % 2 else layer.initial_state(batch))
                    second, state = layer.prefill(x[:, cut:length], state)
                    both = torch.cat([first, second], 1)
                    assert peak_error(both, wanted[:, :length]) <= TOLERANCE[dtype], (length, cut)
            assert_same_state(state, end, TOLERANCE[dtype])


@kinds
def test_float32_over_many_chunks_and_groups_of_chunks(kind):
    """5,000 samples: 79 chunks in 2 groups; or 1,500: 3 blocks of queries."""
    layer = build(kind, dtype=torch.float32)
    length = 1500 if isinstance(layer, Attention) else 5000
    x = torch.randn(1, length, 8)
    with torch.no_grad():
        truth = copy.deepcopy(layer).double()(x.double())
        assert peak_error(layer(x), truth) <= 2e-6
        _, state = layer.prefill(x[:, :100])
        y, state = layer.prefill(x[:, 100:-10], state)
        assert peak_error(y, truth[:, 100:-10]) <= 2e-6
        assert peak_error(run_steps(layer, x[:, -10:], state)[0], truth[:, -10:]) <= 2e-6


@kinds
@both_ways
def test_gradients_of_the_layer(kind, causal):
    """Finite differences through every use, with respect to the input and every parameter, with and without padding."""
    layer = build(kind, 2, 2, bidirectional=not causal, d_head=2)
    names = [name for name, _ in layer.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    x = torch.randn(2, 5, 2, dtype=torch.float64, requires_grad=True)

    class Uses(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            whole, padded = self.layer(x), self.layer(x, lengths=[5, 3])
            if not causal:
                return whole, padded
            y, state = self.layer.prefill(x[:, :3], lengths=[3, 2])
            z, state = self.layer.prefill(x[:, 3:], state)
            return whole, padded, y, z, self.layer.step(x[:, 0], state)[0]

    uses = Uses()
    buffers = {f"layer.{name}": value for name, value in layer.named_buffers()}

    def function(x, *values):
        renamed = {f"layer.{name}": value for name, value in zip(names, values, strict=True)}
        return functional_call(uses, {**renamed, **buffers}, (x,))

    assert gradcheck(function, (x, *values), atol=1e-7, rtol=1e-6)


@kinds
@both_ways
def test_gradients_are_those_of_the_definition(kind, causal):
    layer = build(kind, bidirectional=not causal)
    x = torch.randn(2, 150, 8, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(2, 150, 8, dtype=torch.float64)
    inputs = [x, *layer.parameters()]
    wanted = torch.autograd.grad((reference(layer, x) * probe).sum(), inputs)
    for y in (layer(x), *([layer.prefill(x)[0]] if causal else [])):
        for got, expected in zip(torch.autograd.grad((y * probe).sum(), inputs), wanted, strict=True):
            assert (expected != 0).any()
            assert peak_error(got, expected) <= 1e-10


@kinds
@both_ways
def test_padding_is_ignored(kind, causal):
    """Each sequence comes out as if it were alone, gradients too, whatever stands in the padding."""
    layer = build(kind, bidirectional=not causal)
    lengths = [70, 1, 17, 0]
    x = torch.randn(4, 70, 8, dtype=torch.float64)
    assert peak_error(layer(x, lengths=lengths), reference(layer, x, lengths)) <= 1e-12
    for b, length in enumerate(lengths):
        x[b, length:] = torch.nan
    x.requires_grad_()
    probe = torch.randn(4, 70, 8, dtype=torch.float64)
    uses = [layer(x, lengths=lengths), layer(x, lengths=torch.tensor(lengths))]
    if causal:
        uses.append(layer.prefill(x, lengths=lengths)[0])
    for y in uses:
        grad = torch.autograd.grad((y * probe).sum(), [x, *layer.parameters()])
        total = [torch.zeros_like(p) for p in layer.parameters()]
        for b, length in enumerate(lengths):
            assert (y[b, length:] == 0).all()
            assert (grad[0][b, length:] == 0).all()
            if length:
                alone = x.detach()[b : b + 1, :length].requires_grad_()
                wanted = layer(alone)
                assert peak_error(y[b, :length], wanted[0]) <= 1e-12
                own = torch.autograd.grad((wanted * probe[b, :length]).sum(), [alone, *layer.parameters()])
                assert peak_error(grad[0][b, :length], own[0][0]) <= 1e-10
                total = [t + g for t, g in zip(total, own[1:], strict=True)]
        for got, wanted in zip(grad[1:], total, strict=True):
            assert peak_error(got, wanted) <= 1e-10


@kinds
def test_a_batch_of_nothing_but_padding(kind):
    for causal in (True, False):
        layer = build(kind, bidirectional=not causal)
        x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
        y = layer(x, lengths=[0, 0])
        y.square().sum().backward()
        assert (y == 0).all()
        assert (x.grad == 0).all()
        assert all((p.grad == 0).all() for p in layer.parameters())


@pytest.mark.parametrize(("kind", "static"), [*((kind, False) for kind in KINDS), ("flash", True), ("matrix", True)])
def test_states_of_sequences_of_unequal_length(kind, static):
    """Two padded pieces and then steps, against each sequence alone."""
    layer = build(kind)
    first, second = torch.randn(2, 4, 30, 8, dtype=torch.float64).unbind()
    steps = torch.randn(4, 3, 8, dtype=torch.float64)
    lengths, other = [30, 1, 17, 0], [5, 30, 0, 0]
    start = layer.initial_state(4, max_length=63) if static else None
    with torch.no_grad():
        y1, state = layer.prefill(first, start, lengths=lengths)
        y2, state = layer.prefill(second, state, lengths=other)
        y3, state = run_steps(layer, steps, state)
        if isinstance(layer, Attention):
            assert state.position.tolist() == [38, 34, 20, 3]
        for b in range(4):
            pieces = [first[b, : lengths[b]], second[b, : other[b]], steps[b]]
            wanted = reference(layer, torch.cat(pieces)[None])[0].split([len(p) for p in pieces])
            for y, w in zip((y1[b, : lengths[b]], y2[b, : other[b]], y3[b]), wanted, strict=True):
                torch.testing.assert_close(y, w, rtol=1e-11, atol=1e-12)
            assert (y1[b, lengths[b] :] == 0).all()
            assert (y2[b, other[b] :] == 0).all()


@kinds
def test_causal_to_the_bit(kind):
    layer = build(kind, dtype=torch.float32)
    x = torch.randn(1, 200, 8)
    for cut in (1, 60, 130):
        changed = torch.cat([x[:, :cut], 20 * torch.randn(1, 200 - cut, 8)], 1)
        with torch.no_grad():
            for use in (layer, lambda x: layer.prefill(x)[0]):
                assert (use(x)[:, :cut] == use(changed)[:, :cut]).all()
                assert (use(x)[:, cut:] != use(changed)[:, cut:]).any()


@kinds
def test_states_are_not_changed(kind):
    layer = build(kind, dtype=torch.float32)
    starts = [layer.prefill(torch.randn(2, 5, 8))[1]]
    if isinstance(layer, Attention):
        starts.append(layer.prefill(torch.randn(2, 5, 8), layer.initial_state(2, max_length=80))[1])
    for state in starts:
        before = [t.clone() for t in state]
        layer.step(torch.randn(2, 8), state)
        layer.prefill(torch.randn(2, 70, 8), state)
        assert all((a == b).all() for a, b in zip(before, state, strict=True))


@pytest.mark.parametrize("kind", ["flash", "matrix"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_static_cache(kind, dtype):
    """The same numbers as a growing one, in shapes that stay the same, up to the last slot and not further."""
    layer, x = build(kind, dtype=dtype), torch.randn(2, 20, 8, dtype=dtype)
    with torch.no_grad():
        wanted = reference(layer, x)
        state = layer.initial_state(2, max_length=20)
        assert isinstance(state, StaticKVCache)
        y1, state = layer.prefill(x[:, :7], state)
        y2, state = layer.prefill(x[:, 7:12], state)
        y3, state = run_steps(layer, x[:, 12:], state)
        assert peak_error(torch.cat([y1, y2, y3], 1), wanted) <= TOLERANCE[dtype]
        assert state.keys.shape == state.values.shape == (2, 2, 20, 4)
        assert state.position.tolist() == [20, 20]
        growing = layer.prefill(x)[1]
        assert growing.keys.shape == (2, 2, 20, 4)
        assert peak_error(state.keys, growing.keys) <= TOLERANCE[dtype]
        assert peak_error(state.values, growing.values) <= TOLERANCE[dtype]
        with pytest.raises(ValueError, match="max_length=20 slots, got 21 samples"):
            layer.step(x[:, 0], state)
        with pytest.raises(ValueError, match="max_length=20 slots, got 21 samples"):
            layer.prefill(torch.cat([x, x[:, :1]], 1), layer.initial_state(2, max_length=20))
        padded, _ = layer.prefill(torch.cat([x, x], 1), layer.initial_state(2, max_length=20), lengths=[20, 3])
        assert peak_error(padded, reference(layer, torch.cat([x, x], 1), [20, 3])) <= TOLERANCE[dtype]


def test_a_compiled_static_cache_steps_in_one_graph_and_marks_what_does_not_fit():
    layer, x = build("flash", dtype=torch.float32), torch.randn(2, 12, 8)
    torch.compiler.reset()
    step = torch.compile(layer.step, backend="eager", fullgraph=True)
    with torch.no_grad():
        wanted, state = reference(layer, x), layer.initial_state(2, max_length=10)
        _, state = step(x[:, 0], state)
        with torch.compiler.set_stance("fail_on_recompile"):
            for t in range(1, 10):
                y, state = step(x[:, t], state)
                assert peak_error(y, wanted[:, t]) <= 2e-6
            uneven = state._replace(position=torch.tensor([10, 9]))
            y, _ = step(x[:, 10], uneven)
    assert y[0].isnan().all()
    assert y[1].isfinite().all()


@pytest.mark.parametrize("kind", ["flash", "matrix"])
def test_queries_in_blocks(kind, monkeypatch):
    monkeypatch.setattr(attention, "QUERIES", 3)
    layer, x = build(kind), torch.randn(2, 20, 8, dtype=torch.float64)
    for cut in (1, 10):
        _, state = layer.prefill(x[:, :cut])
        assert peak_error(layer.prefill(x[:, cut:], state)[0], reference(layer, x)[:, cut:]) <= 1e-12


@pytest.mark.parametrize(("flash", "low", "high"), [(True, 0, 2 * 512 * 96), (False, 2 * 512 * 512, 2 * 512 * 512)])
def test_only_flash_spares_the_matrix_of_weights(flash, low, high):
    layer = Attention(64, 2, flash=flash)
    with Sizes() as sizes, torch.no_grad():
        layer(torch.randn(1, 512, 64))
    assert low <= sizes.largest <= high


def test_flash_is_torchs_own(monkeypatch):
    calls = []
    original = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **options: calls.append(options["is_causal"]) or original(*args, **options),
    )
    x = torch.randn(1, 7, 8)
    Attention(8, 2, flash=False)(x)
    assert calls == []
    Attention(8, 2)(x, lengths=[5])
    Attention(8, 2, bidirectional=True)(x)
    assert calls == [True, False]


def wild(length):
    """Samples of very different size, growing, shrinking and jumping, so that kernels span hundreds of decades."""
    size = torch.cat([torch.logspace(-3, 2, length // 2), torch.logspace(2, -3, length - length // 2)])
    jumps = torch.where(torch.rand(length) < 0.1, 30.0, 1.0)
    return torch.randn(2, length, 8) * (size * jumps)[:, None]


@kinds
@both_ways
def test_wild_inputs(kind, causal):
    layer = build(kind, dtype=torch.float64, bidirectional=not causal)
    x = wild(150).double()
    with torch.no_grad():
        wanted = reference(layer, x)
        assert peak_error(layer(x), wanted) <= 1e-9  # an exponent of 10⁶ has an error of 10⁻¹⁰
        single = copy.deepcopy(layer).float()
        assert single(x.float()).isfinite().all()
        if causal:
            assert peak_error(run_steps(layer, x, layer.initial_state(2))[0], wanted) <= 1e-9
            _, state = layer.prefill(x[:, :70])
            assert peak_error(layer.prefill(x[:, 70:], state)[0], wanted[:, 70:]) <= 1e-9
            assert run_steps(single, x.float(), single.initial_state(2))[0].isfinite().all()
    single(x.float()).square().mean().backward()
    assert all(p.grad.isfinite().all() for p in single.parameters())


@kinds
@both_ways
def test_loud_inputs(kind, causal):
    """Keys so long that every feature of a Performer is below e^-745; the padding's, which are short, do not count."""
    layer = build(kind, bidirectional=not causal)
    x, lengths = 150 * torch.randn(3, 70, 8, dtype=torch.float64), [70, 40, 1]
    with torch.no_grad():
        _, k, _ = heads_of(layer, x)
        assert (k.square().sum(-1) / math.sqrt(layer.d_head) / 2).median() > 745
        assert peak_error(layer(x), reference(layer, x)) <= 1e-9
        wanted = reference(layer, x, lengths)
        assert peak_error(layer(x, lengths=lengths), wanted) <= 1e-9
        if causal:
            assert peak_error(run_steps(layer, x, layer.initial_state(3))[0], reference(layer, x)) <= 1e-9
            _, state = layer.prefill(x, lengths=lengths)
            y, _ = layer.step(x[:, 0], state)
            for b, length in enumerate(lengths):
                together = torch.cat([x[b, :length], x[b, :1]])[None]
                assert peak_error(y[b], reference(layer, together)[0, -1]) <= 1e-9


@kinds
@pytest.mark.parametrize("of_layer", [torch.float32, torch.float64])
def test_the_state_keeps_its_dtype(kind, of_layer):
    layer, x = build(kind, dtype=of_layer), torch.randn(2, 70, 8, dtype=of_layer)
    wanted = reference(layer, torch.cat([x, x[:, :1], x], 1))[:, 71:]
    tolerance = {torch.float64: 2e-6, torch.float32: 2e-6, torch.bfloat16: 0.03}
    for dtype in tolerance if isinstance(layer, Attention) else (torch.float32, torch.float64):
        state = layer.initial_state(2, dtype=dtype)
        for use in (lambda s: layer.prefill(x, s), lambda s: layer.step(x[:, 0], s), lambda s: layer.prefill(x, s)):
            y, state = use(state)
            assert y.dtype == of_layer
            assert {t.dtype for t in state if t.is_floating_point()} == {dtype}
        assert peak_error(y, wanted) <= tolerance[dtype]
    assert layer.initial_state(2)[0].dtype == (of_layer if isinstance(layer, Attention) else torch.float64)


@kinds
def test_empty_sequences_and_batches(kind):
    layer = build(kind, dtype=torch.float32)
    y, state = layer.prefill(torch.randn(2, 5, 8))
    y, after = layer.prefill(torch.zeros(2, 0, 8), state, lengths=[0, 0])
    assert y.shape == (2, 0, 8)
    assert all((a == b).all() for a, b in zip(state, after, strict=True))
    y, after = layer.prefill(torch.zeros(2, 0, 8))
    assert peak_error(layer.step(torch.ones(2, 8), after)[0], layer(torch.ones(2, 1, 8))[:, 0]) <= 2e-6
    for causal in (True, False):
        layer = build(kind, dtype=torch.float32, bidirectional=not causal)
        assert layer(torch.zeros(2, 0, 8)).shape == (2, 0, 8)
        assert layer(torch.zeros(2, 0, 8)).requires_grad
        assert layer(torch.zeros(0, 5, 8)).shape == (0, 5, 8)
    layer = build(kind, dtype=torch.float32)
    assert layer.prefill(torch.zeros(0, 5, 8))[0].shape == (0, 5, 8)
    assert layer.step(torch.zeros(0, 8), layer.initial_state(0))[0].shape == (0, 8)
