"""Parameter counts of the papers' models, as far as the papers give digits."""

import pytest
from torch import nn

from statespan import S4, models

SPEECH = {"d_input": 1, "d_output": 35, "n_layers": 6, "norm": "batch", "bidirectional": True, "ssm": {"n_ssm": 2}}
COLOUR = {"d_input": 3, "d_output": 10, "mix": "linear"}
IMAGE = {"n_layers": 6, "d_model": 512, "prenorm": False, "bidirectional": True, "ssm": {"n_ssm": 2}}
WORDS = {"vocabulary": 267735, "d_model": 1024, "n_layers": 16, "cutoffs": [19997, 39997, 199997]}


@pytest.mark.parametrize(
    ("low", "high", "name", "options"),
    [
        pytest.param(306.5e3, 307.5e3, "classifier", SPEECH, id="S4D paper, Table 11, S4: 307K"),
        pytest.param(305.5e3, 306.5e3, "classifier", {**SPEECH, "layer": "s4d"}, id="the same, S4D: 306K"),
        pytest.param(
            0.95e5, 1.05e5, "classifier", {**COLOUR, "layer": "s4d", "ssm": {"n_ssm": 1}}, id="its ablations: 100K"
        ),
        pytest.param(
            7.85e6, 7.95e6, "classifier", {**COLOUR, "n_layers": 6, "d_model": 1024}, id="S4 paper, sCIFAR: 7.9M"
        ),
        pytest.param(
            0.25e6, 0.35e6, "classifier", {"d_input": 1, "d_output": 10, "n_layers": 6, "mix": "linear"},
            id="S4 paper, raw speech: 0.3M",
        ),
        pytest.param(3.55e6, 3.65e6, "classifier", {"d_input": 1, "d_output": 10, **IMAGE}, id="LRA Image: 3.6M"),
        pytest.param(249e6, 250e6, "language", WORDS, id="S4 paper, Table 8: 249M"),
    ],
)  # fmt: skip
def test_parameters(low, high, name, options):
    model = models.build(name, None, options, device="meta")
    assert low <= sum(p.numel() for p in model.parameters()) < high


def test_pixels():
    """Eight blocks in each of seven stacks, of an S4 layer and a feed-forward layer of twice the features."""
    model = models.build("pixels", None, {"vocabulary": 769, "d_output": 256}, device="meta")
    assert sum(isinstance(module, S4) for module in model.modules()) == 7 * 8
    sizes = {name: m.weight.shape for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert [shape for name, shape in sizes.items() if name.endswith("layer.inner")] == [(256, 128)] * 7 * 8
    pools = [tuple(shape) for name, shape in sizes.items() if name.endswith("level.inner.down")]
    pools += [tuple(shape) for name, shape in sizes.items() if name.endswith("inner.inner.down")]
    assert pools == [(128, 3 * 128), (128, 4 * 128), (128, 4 * 128)]
