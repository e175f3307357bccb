"""Small models of every kind, and inputs for them."""

import torch

from statespan import models
from tests.nn.make import perturb

f64 = torch.float64
ALONE = {"residual": False, "norm": "none"}
SMALL = {"d_model": 6, "d_state": 4, "n_layers": 2, "layer": "s4d"}
CASES = {
    "classifier": {"d_input": 3, "d_output": 5, "norm": "batch", "feed_forward": 2},
    "regressor": {"d_input": 3, "d_output": 2, "pool": "last", "prenorm": False, "ssm": {"n_ssm": 2, "init": "lin"}},
    "retrieval": {"vocabulary": 9, "d_output": 2, "norm": "batch", "pool": "first", "layer": "s4"},
    "language": {"vocabulary": 30, "d_model": 16, "cutoffs": [5, 12], "n_layers": 1},
    "masked": {"vocabulary": 30, "feed_forward": 2},
    "pixels": {"vocabulary": 13, "d_output": 4, "pools": [3, 2], "expand": 2, "n_layers": 1, "norm": "batch"},
    "forecaster": {"d_input": 3, "d_output": 2, "horizon": 5, "d_marks": 4, "dropout": 0.2},
    "transducer": {"d_input": 3, "d_output": 2, "norm": "batch", "layer": "s4"},
}
MORE = {
    "plain language": ("language", {"vocabulary": 30, "norm": "batch", "prenorm": False, "n_layers": 1}),
    "mean of tokens": ("classifier", {"vocabulary": 9, "d_output": 5, "layer": "dss", "mix": "linear"}),
    "mixture": ("pixels", {"vocabulary": 9, "d_output": 4, "pools": [2], "n_layers": 1, "mixture": 3, "layer": "s4"}),
    "layers alone": ("transducer", {"d_input": 3, "d_output": 2, **ALONE}),
    "one SSM": ("regressor", {"d_input": 2, "d_output": 3, "layer": "lru", "norm": "batch"}),
    "positions": ("classifier", {"d_input": 2, "d_output": 3, "positions": "sinusoidal", **ALONE}),
    "no marks": ("forecaster", {"d_input": 1, "d_output": 1, "horizon": 5, "layer": "lssl"}),
}
ALL = {**{name: (name, options) for name, options in CASES.items()}, **MORE}


def make(case, dtype=f64, **options):
    name, own = ALL[case]
    return perturb(models.build(name, None, {**SMALL, **own, **options}, dtype=dtype), 0.1).eval()


def inputs(model, batch, length):
    """X, and what else forward takes."""
    config, more = model.config, {}
    if getattr(config, "vocabulary", None):
        return torch.randint(config.vocabulary, (batch, length)), more
    dtype = next(p.dtype for p in model.parameters())
    if getattr(config, "d_marks", 0):
        more["marks"] = torch.randn(batch, length, config.d_marks, dtype=dtype)
    return torch.randn(batch, length, config.d_input, dtype=dtype), more
