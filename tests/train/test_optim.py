"""Parameter groups: who gets which learning rate and weight decay."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from statespan import DSS, LRU, LSSL, S4, S4D, S5, param_groups
from statespan.train.config import Train
from statespan.train.optim import build_optimizer


def named(model, **options):
    """name of group -> set of parameter names."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {g["name"]: {names[id(p)] for p in g["params"]} for g in param_groups(model, 0.01, 0.05, **options)}


def test_s4_in_a_model():
    model = nn.Sequential(
        nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4), S4(4, 8, mix="linear"), nn.BatchNorm1d(4)
    )
    assert named(model) == {
        "ssm": {f"3.ssm.{name}" for name in ("log_dt", "A_real", "A_imag", "P", "B")},
        "no_decay": {"0.weight", "1.bias", "2.weight", "2.bias", "3.mix.bias", "4.weight", "4.bias"},
        "decay": {"1.weight", "3.ssm.C", "3.D", "3.mix.weight"},
    }
    assert "3.ssm.C" in named(model, slow_C=True)["ssm"]
    fast = named(model, fast_dt=True)
    assert fast["ssm"] == {f"3.ssm.{name}" for name in ("A_real", "A_imag", "P", "B")}
    assert "3.ssm.log_dt" in fast["no_decay"]


def test_a_recipe_says_who_is_slow_and_fast():
    model = S4D(4, 8, mix="linear")
    for settings, wanted in (({}, {0.001}), ({"fast_dt": True}, {0.01})):
        optimizer = build_optimizer(model, Train(lr=0.01, **settings))
        found = {g["lr"] for g in optimizer.param_groups if any(p is model.ssm.log_dt for p in g["params"])}
        assert found == wanted


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (S4D, {"log_dt", "A_real", "A_imag", "B"}),
        (DSS, {"log_dt", "A_real", "A_imag"}),
        (LSSL, {"log_dt", "A", "B"}),
        (S5, {"log_dt", "A_real", "A_imag", "B"}),
        (LRU, {"nu", "theta", "log_gamma", "B"}),
    ],
)
def test_other_layers(cls, expected):
    assert named(cls(4, 8))["ssm"] == {f"ssm.{name}" for name in expected}


def test_rates_and_decay():
    groups = {g["name"]: g for g in param_groups(S4D(4, 8), lr=0.01, weight_decay=0.05)}
    assert [(groups[n]["lr"], groups[n]["weight_decay"]) for n in ("ssm", "no_decay", "decay")] == [
        (0.001, 0.0),
        (0.01, 0.0),
        (0.01, 0.05),
    ]
    assert param_groups(S4D(4, 8), lr=1e-4)[0]["lr"] == 1e-4  # the SSM is never faster than the rest


def test_every_trainable_parameter_is_listed_once():
    first, second = S4(4, 8, mix="linear"), S4D(4, 8, mix="linear")
    second.mix.weight = first.mix.weight
    first.D.requires_grad_(False)
    model = nn.ModuleList([first, second, first])
    listed = [id(p) for g in param_groups(model, 0.01) for p in g["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(p) for p in model.parameters() if p.requires_grad}


def test_frozen_b_is_not_a_parameter():
    assert "ssm.B" not in named(S4D(4, 8, train_B=False))["ssm"]


def test_optimizer_moves_groups_at_their_rates():
    """One Adam step moves a parameter by its learning rate."""
    model = S4D(4, 8, mix="linear")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.Adam(param_groups(model, lr=0.01, ssm_lr=0.001))
    model(torch.randn(2, 30, 4)).square().mean().backward()
    optimizer.step()
    moved = {name: (p.detach() - before[name]).abs().max().item() for name, p in model.named_parameters()}
    for name in ("ssm.A_real", "ssm.log_dt", "ssm.B"):
        assert moved[name] == pytest.approx(0.001, rel=0.02)
    for name in ("ssm.C", "D", "mix.weight"):
        assert moved[name] == pytest.approx(0.01, rel=0.02)


def test_what_is_not_decayed():
    """Biases by any name, embeddings, norms; also where they are shared or parametrized."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 5, bias=False)
            self.embedding = nn.Embedding(5, 4)
            self.head.weight = self.embedding.weight  # shared, and registered first at a place that decays
            self.bag = nn.EmbeddingBag(5, 4)
            self.norms = nn.ModuleList([nn.RMSNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)])
            self.gru = nn.GRU(4, 4)
            self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
            self.ssm = S4D(4, 8)
            nn.utils.parametrize.register_parametrization(self.ssm.ssm, "A_imag", nn.Identity())

    groups = named(Model())
    assert {"gru.bias_ih_l0", "gru.bias_hh_l0", "attention.bias_k", "attention.in_proj_bias"} <= groups["no_decay"]
    assert {"bag.weight", "head.weight", *(f"norms.{i}.weight" for i in range(3))} <= groups["no_decay"]
    assert "ssm.ssm.parametrizations.A_imag.original" in groups["ssm"]
    assert {"gru.weight_ih_l0", "attention.in_proj_weight"} <= groups["decay"]


def test_own_declarations():
    class Gain(nn.Module):
        parameter_groups: ClassVar = {"gain": "no_decay", "slow": "ssm", "bias": "decay"}

        def __init__(self):
            super().__init__()
            self.gain, self.slow, self.plain, self.bias = (nn.Parameter(torch.ones(2, 2)) for _ in range(4))

    assert named(Gain()) == {"ssm": {"slow"}, "no_decay": {"gain"}, "decay": {"plain", "bias"}}
    Gain.parameter_groups = {"gain": "fast"}
    with pytest.raises(ValueError, match=r"parameter_groups\['gain'\] of Gain .*'no_decay'.*'fast'"):
        param_groups(Gain(), 0.01)
    Gain.parameter_groups = lambda self: None  # somebody else's attribute of that name
    assert named(Gain()) == {"decay": {"gain", "slow", "plain"}, "no_decay": {"bias"}}
