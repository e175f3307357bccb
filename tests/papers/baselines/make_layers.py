"""The workshop's layers by the names that recipes use, small, and a task to learn."""

import torch

from statespan import models
from statespan._plugins import names
from statespan.models.config import layer_class

NAMES = names("statespan.layers")
OPTIONS = {
    "attention": {"n_heads": 2},
    "linear-attention": {"n_heads": 2},
    "ode-rnn": {"time": 0.3, "scheme": "midpoint", "d_hidden": 5},
    "performer": {"n_heads": 2, "n_features": 24},
    "ckconv": {"kernel_length": 30, "omega_0": 3.0, "d_hidden": 8},
    "exprnn": {"init": "henaff"},
    "lipschitz-rnn": {"scheme": "midpoint", "eps": 0.1, "init_std": 4.0},
}
TWO_WAY = ("attention", "linear-attention", "performer", "lstm", "gru")
WITHOUT_TIME = ("attention", "linear-attention", "performer", "lstm", "gru", "exprnn")


def build(name, d_model=6, dtype=torch.float64, **options):
    return layer_class(name)(d_model, **{**OPTIONS.get(name, {}), **options}, dtype=dtype)


def classifier(name, **options):
    """A model of two such layers with positions, as a recipe builds it."""
    own = {"d_input": 2, "d_output": 3, "d_model": 8, "n_layers": 2, "layer": name, "ssm": OPTIONS.get(name, {})}
    return models.build("classifier", options={**own, "positions": "sinusoidal", **options})


def task(batch, length=10):
    """One of three values at each position, (B, L, 2) with a mark at one of them; and the value there (B,)."""
    values, marked = torch.randint(3, (batch, length)), torch.randint(length, (batch,))
    x = torch.stack([values - 1.0, torch.zeros(batch, length)], -1)
    x[torch.arange(batch), marked, 1] = 3.0
    return x, values[torch.arange(batch), marked]
