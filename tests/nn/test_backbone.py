"""The residual backbone: three uses of one map."""

import pytest
import torch

from statespan import DSS, LRU, LSSL, S4, S4D, S5
from statespan.nn import Backbone, FeedForward
from tests.nn.make import peak_error, perturb
from tests.nn.make_stack import LENGTHS, check_gradients, check_lengths, check_streaming

f64 = torch.float64
LAYERS = {"s4": S4, "s4d": S4D, "dss": DSS, "lssl": LSSL, "s5": S5, "lru": LRU}


def make(layer="s4d", bidirectional=False, mix="glu", **options):
    layers = [LAYERS[layer](4, 8, bidirectional=bidirectional, mix=mix, dtype=f64), FeedForward(4, 2, dtype=f64)]
    layers += [LAYERS[layer](4, 8, bidirectional=bidirectional, mix=mix, dtype=f64)]
    return perturb(Backbone(layers, dtype=f64, **options), 0.1).eval()


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        ("s4", {"norm": "batch"}),
        ("s4d", {"prenorm": False}),
        ("s4d", {"norm": "batch", "prenorm": False, "mix": "linear"}),
        ("dss", {"norm": "none"}),
        ("lssl", {}),
        ("s5", {"norm": "batch"}),
        ("lru", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_views_and_lengths(layer, options):
    model = make(layer, **options)
    x = torch.randn(4, 23, 4, dtype=f64)
    check_streaming(model, x, dt_scale=1.5)
    check_lengths(model, x, LENGTHS)
    check_gradients(model, model(x, lengths=LENGTHS))


def test_both_ways():
    model = make(bidirectional=True, norm="batch")
    x = torch.randn(4, 23, 4, dtype=f64)
    check_lengths(model, x, LENGTHS, streaming=False)
    for use in (lambda: model.stepper(), lambda: model.prefill(x), lambda: model.initial_state(2)):
        with pytest.raises(ValueError, match="needs a causal layer, got bidirectional=True"):
            use()


def test_states_of_unequal_lengths_go_on():
    """After prefill with lengths, each sequence goes on from its own end."""
    model = make()
    x = torch.randn(4, 30, 4, dtype=f64)
    _, state = model.prefill(x[:, :23], lengths=LENGTHS)
    y, _ = model.step(x[:, 25], state)
    for b, length in enumerate(LENGTHS):
        alone = model(torch.cat([x[b : b + 1, :length], x[b : b + 1, 25:26]], 1))[:, -1]
        assert peak_error(y[b : b + 1], alone) <= 1e-10


def test_rate_reaches_the_layers():
    model = make()
    x = torch.randn(2, 23, 4, dtype=f64)
    wanted = model(x, dt_scale=2.0)
    with torch.no_grad():
        for block in model.blocks:
            if hasattr(block.layer, "ssm"):
                block.layer.ssm.log_dt += torch.log(torch.tensor(2.0, dtype=f64))
    assert peak_error(wanted, model(x)) <= 1e-11


def test_compiles_in_one_graph():
    torch._dynamo.reset()
    model = make(norm="batch").train()
    x, lengths = torch.randn(4, 23, 4, dtype=f64), torch.tensor(LENGTHS)
    wanted = model(x, lengths=lengths)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert peak_error(compiled(x, lengths=lengths), wanted) <= 1e-10


def test_mistakes():
    model, x = make(), torch.randn(2, 9, 4, dtype=f64)
    with pytest.raises(ValueError, match="at least one, all of the same d_model"):
        Backbone([])
    with pytest.raises(ValueError, match=r"same d_model, got those of \[4, 8\]"):
        Backbone([S4D(4), S4D(8)])
    with pytest.raises(ValueError, match="x must have shape"):
        model(x[..., :3])
    with pytest.raises(ValueError, match="lengths must be between 0"):
        model(x, lengths=[10, 1])
    with pytest.raises(ValueError, match=r"tuple of 3.*got 2"):
        model.prefill(x, model.initial_state(2)[:2])
    with pytest.raises(TypeError, match="tuple of 3"):
        model.step(x[:, 0], torch.zeros(2))
