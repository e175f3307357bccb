"""The baselines do what their papers say."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from statespan.papers.baselines.forecasters import LSTM, DLinear, MeanForecaster, NLinear, S4Baseline, SeasonalNaive
from statespan.papers.baselines.informer import Distill, Informer, prob_attention

T, H, C, M = 24, 8, 3, 4
WIDTH = {"d_input": C, "d_output": C, "d_marks": M}
MODELS = {
    "S4": lambda: S4Baseline(
        T, H, columns=C, d_marks=M, options={"d_model": 8, "n_layers": 1, "d_state": 4, "layer": "s4d"}
    ),
    "Informer": lambda: Informer(T, H, d_model=8, n_heads=2, **WIDTH),
    "LSTM": lambda: LSTM(T, H, d_model=8, **WIDTH),
    "NLinear": lambda: NLinear(T, H),
    "DLinear": lambda: DLinear(T, H, window=5),
    "SeasonalNaive": lambda: SeasonalNaive(T, H, season=6),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_model_looks_ahead_and_every_weight_learns(name):
    model = MODELS[name]()
    x, marks = torch.randn(4, T + H, C), torch.randn(4, T + H, M)
    other = x.clone()
    other[:, T:] = 100.0
    model.eval()
    torch.manual_seed(1)
    y = model(x, marks=marks)
    torch.manual_seed(1)
    assert torch.equal(model(other, marks=marks), y)
    assert y.shape == (4, H, C)
    if name != "SeasonalNaive":
        model.train()
        model(x, marks=marks).square().sum().backward()
        lacking = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
        # a constant added to all keys changes no softmax
        assert [n for n in lacking if not n.endswith("key.bias")] == []


@pytest.mark.parametrize("causal", [False, True])
def test_informers_attention_is_softmax_attention_where_all_queries_attend(causal):
    q, k, v = (torch.randn(2, 3, 10, 4, dtype=torch.float64) for _ in range(3))
    found = prob_attention(q, k, v, factor=100, causal=causal)
    torch.testing.assert_close(found, scaled_dot_product_attention(q, k, v, is_causal=causal))


@pytest.mark.parametrize("causal", [False, True])
def test_informers_other_queries_take_the_mean_of_what_they_see(causal):
    torch.manual_seed(3)
    length = 32
    q, k, v = (torch.randn(1, 1, length, 4, dtype=torch.float64) for _ in range(3))
    found = prob_attention(q, k, v, factor=1, causal=causal)[0, 0]
    mean = v[0, 0].cumsum(0) / torch.arange(1, length + 1)[:, None] if causal else v[0, 0].mean(0).expand(length, 4)
    full = scaled_dot_product_attention(q, k, v, is_causal=causal)[0, 0]
    attends = (found - full).abs().amax(1) < 1e-12
    lazy = (found - mean).abs().amax(1) < 1e-12
    assert (attends | lazy).all()
    assert attends.sum() - (attends & lazy).sum() <= math.ceil(math.log(length))
    assert lazy.sum() >= length - math.ceil(math.log(length))


def test_informer_distils_to_half_the_length():
    assert Distill(4)(torch.randn(2, 25, 4)).shape == (2, 13, 4)
    assert Distill(4)(torch.randn(2, 24, 4)).shape == (2, 12, 4)


def test_nlinear_moves_with_the_level_and_dlinear_adds_up():
    x = torch.randn(2, T + H, C, dtype=torch.float64)
    linear = NLinear(T, H).double()
    torch.testing.assert_close(linear(x + 5.0), linear(x) + 5.0)
    torch.testing.assert_close(linear(x)[:, 0], x[:, :T].mean(1))  # it begins as the mean
    parts = DLinear(T, H, window=5).double()
    torch.nn.init.zeros_(parts.trend.weight)
    known = x[:, :T].numpy()
    padded = np.concatenate([known[:, :1].repeat(2, 1), known, known[:, -1:].repeat(2, 1)], 1)
    trend = np.stack([padded[:, i : i + 5].mean(1) for i in range(T)], 1)
    np.testing.assert_allclose(parts(x)[:, 0].detach().numpy(), (known - trend).mean(1))


def test_seasonal_naive_repeats_the_last_season():
    x = torch.arange(40.0).view(1, 40, 1)
    assert SeasonalNaive(30, 10, season=4)(x).flatten().tolist() == [26, 27, 28, 29, 26, 27, 28, 29, 26, 27]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SeasonalNaive(4, 2, season=5), ["season", "4", "5"]),
        (lambda: DLinear(4, 2, window=4), ["window", "odd", "4"]),
        (lambda: Informer(4, 2, label=5, **WIDTH), ["label", "4", "5"]),
        (lambda: Informer(4, 2, d_model=10, n_heads=4, **WIDTH), ["n_heads", "10", "4"]),
        (lambda: NLinear(0, 2), ["context", "0"]),
    ],
)
def test_mistakes(make, words):
    with pytest.raises(ValueError, match=r".*".join(words)):
        make()


def test_the_mean_of_forecasts_is_that_of_its_members_each_with_its_own_context():
    short = S4Baseline(9, H, columns=C, d_marks=M, options={"d_model": 8, "n_layers": 1, "d_state": 4, "layer": "s4d"})
    members = [short, MODELS["S4"](), MODELS["NLinear"]()]
    mean = MeanForecaster(members, [9, T, T], H).eval()
    x, marks = torch.randn(4, T + H, C), torch.randn(4, T + H, M)
    by_hand = members[0](x[:, T - 9 :], marks=marks[:, T - 9 :]) + members[1](x, marks=marks) + members[2](x)
    torch.testing.assert_close(mean(x, marks=marks), by_hand / 3)
    assert sum(p.numel() for p in mean.parameters()) == sum(p.numel() for m in members for p in m.parameters())
    with pytest.raises(RuntimeError, match=r"is in training mode: train its members, then call eval\(\)"):
        mean.train()(x, marks=marks)
    with pytest.raises(ValueError, match="got 3 members and 2 contexts"):
        MeanForecaster(members, [9, T], H)
