"""What people do to attention layers: save, cast, compile, drop out; and how layers describe themselves."""

import math

import pytest
import torch

from statespan.papers.baselines.attention import Attention
from statespan.papers.baselines.linear_attention import LinearAttention, Performer
from tests.nn.make import assert_round_trip, peak_error
from tests.papers.baselines.make_attention import KINDS, build, reference, run_steps

kinds = pytest.mark.parametrize("kind", KINDS)
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-way"])


@kinds
@pytest.mark.parametrize("d_head", [None, 3])
def test_number_of_parameters(kind, d_head):
    layer = build(kind, 12, 4, d_head=d_head)
    width = 12 if d_head is None else 4 * d_head
    assert sum(p.numel() for p in layer.parameters()) == 4 * 12 * width + 3 * width + 12
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    assert peak_error(layer(x), reference(layer, x)) <= 1e-12


@kinds
def test_state_dict_round_trip(kind):
    first, second = build(kind, dtype=torch.float32), build(kind, dtype=torch.float32)
    assert_round_trip(first, second, torch.randn(2, 50, 8))


@kinds
def test_meta_device(kind):
    layer, real = build(kind, device="meta", dtype=torch.float32), build(kind, dtype=torch.float32)
    assert {v.device.type for v in layer.state_dict().values()} == {"meta"}
    assert layer(torch.empty(2, 70, 8, device="meta")).shape == (2, 70, 8)
    layer.to_empty(device="cpu").load_state_dict(real.state_dict())
    x = torch.randn(1, 10, 8)
    assert (layer(x) == real(x)).all()


@kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(kind, dtype):
    layer, x = build(kind, dtype=torch.float32), torch.randn(2, 100, 8)
    wanted = layer(x).detach()
    layer = layer.to(dtype)
    assert {p.dtype for p in layer.parameters()} == {dtype}
    y = layer(x.to(dtype))
    by_prefill, state = layer.prefill(x[:, :60].to(dtype))
    by_step, state = run_steps(layer, x[:, 60:].to(dtype), state)
    tolerance = 0.03 if dtype == torch.bfloat16 else 0.004
    for got, expected in ((y, wanted), (by_prefill, wanted[:, :60]), (by_step, wanted[:, 60:])):
        assert got.dtype == dtype
        assert peak_error(got, expected) < tolerance
    assert state[0].dtype == (dtype if isinstance(layer, Attention) else torch.float64)
    y.float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@kinds
def test_autocast(kind):
    layer, x = build(kind, dtype=torch.float32), torch.randn(2, 100, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        by_prefill, state = layer.prefill(x[:, :60])
        by_step, _ = run_steps(layer, x[:, 60:], state)
        from_start, _ = layer.step(x[:, 0], layer.initial_state(2))
        y.float().square().mean().backward()
        from_bfloat16 = layer(x.bfloat16())
    wanted = layer(x)
    cases = [(y, wanted), (by_prefill, wanted[:, :60]), (by_step, wanted[:, 60:]), (from_start, wanted[:, 0])]
    for got, expected in [*cases, (from_bfloat16, wanted)]:
        assert got.dtype == torch.bfloat16
        assert peak_error(got, expected) < 0.03
    assert all(p.grad.isfinite().all() and (p.grad != 0).any() for p in layer.parameters())


@kinds
@both_ways
def test_one_graph(kind, causal):
    """torch.compile traces forward, prefill and step without a break."""
    torch.compiler.reset()
    layer, x = build(kind, dtype=torch.float32, bidirectional=not causal), torch.randn(2, 70, 8)
    uses = [(layer, (x,))]
    if causal:
        with torch.no_grad():
            _, state = layer.prefill(x)
        uses += [(layer.prefill, (x, state)), (layer.step, (x[:, 0], state))]
    for function, arguments in uses:
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=1e-5, atol=1e-6)


@kinds
@both_ways
def test_dropout(kind, causal):
    """Off in eval mode and in the mean over many draws; on in training, by how much the probability says."""
    layer = build(kind, 8, 2, torch.float32, dropout=0.5, bidirectional=not causal)
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(8))
        layer.out.bias.zero_()
        x = torch.randn(1, 6, 8)
        exact = layer.eval()(x)
        assert peak_error(exact, reference(layer, x)) <= 2e-6
        draws = layer.train()(x.expand(4000, 6, 8))
        assert (draws.mean(0) - exact[0]).abs().max() < 6 * (draws.std(0) / math.sqrt(4000)).max()
        if isinstance(layer, Attention):
            # all weights of a head at a position are dropped with probability 2^-(number of keys)
            gone = (draws == 0).double().mean(0)[:, 0]
            expected = [0.5 ** (t + 1 if causal else 6) for t in range(6)]
        else:
            gone, expected = (draws == 0).double().mean((0, 2)), [0.5] * 6
        assert gone.tolist() == pytest.approx(expected, abs=0.03)


@kinds
def test_forward_changes_nothing_and_the_stepper_is_the_step(kind):
    layer, x = build(kind, dtype=torch.float32), torch.randn(2, 70, 8)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer(x).sum().backward()
    _, state = layer.prefill(x)
    for got, wanted in zip(layer.stepper()(x[:, 0], state), layer.step(x[:, 0], state), strict=True):
        assert all((a == b).all() for a, b in zip(got, wanted, strict=True))
    assert before.keys() == layer.state_dict().keys()
    assert all((before[name] == value).all() for name, value in layer.state_dict().items())


def test_repr_shows_the_options():
    assert "d_model=8, n_heads=2, d_head=4, bidirectional=False, flash=False" in repr(Attention(8, 2, flash=False))
    assert "d_model=8, n_heads=2, d_head=3, bidirectional=True" in repr(
        LinearAttention(8, 2, d_head=3, bidirectional=True)
    )
    assert "n_features=17" in repr(Performer(8, 1))
