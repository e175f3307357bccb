"""What a model reads keeps its precision under autocast."""

import pytest
import torch

from statespan.models.encoder import Encoder
from statespan.nn import S4D, Backbone


@pytest.fixture
def encoder():
    """A map whose bias is large beside what samples differ by."""
    made = Encoder(8, d_input=2, vocabulary=None)
    with torch.no_grad():
        made.map.bias.fill_(3.0)
        made.map.weight.uniform_(0.001, 0.01)
    return made


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_samples_are_not_rounded_away_by_the_bias(encoder, given):
    x = torch.randn(3, 50, 2).to(given)
    with torch.autocast("cpu", torch.bfloat16):
        features = encoder(x)
    assert features.dtype == torch.float32
    assert torch.equal(features, encoder(x.float()))
    rounded = features.bfloat16().float()
    assert (rounded - features).std() > 0.3 * features.std()  # what 16 bits would have added to them


def test_gradients_are_those_without_autocast(encoder):
    x = torch.randn(3, 50, 2)
    found = []
    for mixed in (True, False):
        encoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = (encoder(x) * x.sum(-1, keepdim=True)).sum()
        loss.backward()
        found.append([p.grad.clone() for p in encoder.parameters()])
    for mixed, plain in zip(*found, strict=True):
        assert torch.equal(mixed, plain)


def test_layers_behind_it_see_the_samples(encoder):
    """A norm takes the bias away; what is left is nearly what float32 has, and not noise of rounding."""
    backbone = Backbone([S4D(8, d_state=8)], norm="batch").eval()
    x = torch.randn(4, 200, 2)
    backbone.blocks[0].norm.running_mean.copy_(encoder(x).detach().mean((0, 1)))
    backbone.blocks[0].norm.running_var.copy_(encoder(x).detach().var((0, 1)))
    with torch.no_grad():
        want = backbone(encoder(x)) - backbone(encoder(torch.zeros_like(x)))
        with torch.autocast("cpu", torch.bfloat16):
            found = backbone(encoder(x)) - backbone(encoder(torch.zeros_like(x)))
    assert (found - want).abs().max() < 0.02 * want.abs().max()
