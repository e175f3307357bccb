"""Residual blocks, their norms and the feed-forward network."""

import pytest
import torch
from torch import nn

from statespan import DSS, S4D, param_groups
from statespan.nn import Backbone, BatchNorm, FeedForward, ResidualBlock, SequenceLayer
from statespan.nn.padding import Padding
from tests.nn.make import peak_error, perturb

f64 = torch.float64
LENGTHS = torch.tensor([9, 1, 0, 6])


def normalized(x, norm):
    if norm == "layer":
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    return x / (1 + 1e-5) ** 0.5 if norm == "batch" else x  # a fresh BatchNorm in evaluation


@pytest.mark.parametrize("norm", ["layer", "batch", "none"])
@pytest.mark.parametrize("prenorm", [True, False])
def test_definition(norm, prenorm):
    layer = S4D(4, 8, dtype=f64)
    block = ResidualBlock(layer, norm=norm, prenorm=prenorm, dropout=0.5, dtype=f64).eval()
    x = torch.randn(2, 9, 4, dtype=f64)
    wanted = x + layer(normalized(x, norm)) if prenorm else normalized(x + layer(x), norm)
    assert peak_error(block(x), wanted) <= 1e-12
    assert peak_error(block(x, dt_scale=2.0), wanted) > 1e-3


def test_feed_forward_is_its_definition_and_has_no_state():
    layer = FeedForward(4, 3, dtype=f64)
    x = torch.randn(2, 9, 4, dtype=f64)
    wanted = nn.functional.gelu(x @ layer.inner.weight.T + layer.inner.bias) @ layer.outer.weight.T + layer.outer.bias
    assert layer.inner.weight.shape == (12, 4)
    torch.testing.assert_close(layer(x), wanted)
    y, state = layer.stepper()(x[:, 3], layer.initial_state(2))
    assert state == ()
    torch.testing.assert_close(y, wanted[:, 3])


def test_dropout_is_tied_over_positions_or_not():
    x = torch.ones(2, 50, 64)
    for tied in (True, False):
        block = ResidualBlock(FeedForward(64), norm="none", dropout=0.5, tie_dropout=tied)
        dropped = (block(x) - x) == 0
        assert 0.3 < dropped.double().mean() < 0.7
        assert (dropped == dropped[:, :1]).all() == tied


def test_batch_norm_is_torchs_without_padding():
    ours, theirs = BatchNorm(4, dtype=f64), nn.BatchNorm1d(4, dtype=f64)
    x = 3 * torch.randn(2, 9, 4, dtype=f64) + 1
    for _ in range(3):
        torch.testing.assert_close(ours(x), theirs(x.mT).mT)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x.mT).mT)


def test_batch_norm_sees_real_positions_only():
    """In training: the statistics, running or not, are those of all real positions in a row."""
    padded, packed = BatchNorm(4, dtype=f64), BatchNorm(4, dtype=f64)
    x = 3 * torch.randn(4, 9, 4, dtype=f64) + 1
    padding = Padding.of(x, LENGTHS)
    real = x[padding.mask[..., 0]]
    assert real.shape[0] == 16
    weight = torch.randn(16, 4, dtype=f64)
    x = x.masked_fill(~padding.mask, torch.nan).requires_grad_()
    real = real.detach().requires_grad_()
    for _ in range(2):
        got, wanted = padded(x, padding)[padding.mask[..., 0]], packed(real[None])[0]
        torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(padded.running_mean, packed.running_mean)
    torch.testing.assert_close(padded.running_var, packed.running_var)
    (gx,), (gr,) = torch.autograd.grad((got * weight).sum(), [x]), torch.autograd.grad((wanted * weight).sum(), [real])
    torch.testing.assert_close(gx[padding.mask[..., 0]], gr)
    assert (gx[~padding.mask[..., 0]] == 0).all()


def test_batch_norm_of_nothing_changes_nothing():
    norm = BatchNorm(4)
    x = torch.randn(2, 3, 4)
    for lengths in ([0, 0], [1, 0]):
        assert norm(x, Padding.of(x, lengths)).isfinite().all()
    assert norm(x[:, :0]).shape == (2, 0, 4)
    assert (norm.running_mean == 0).all()
    assert (norm.running_var == 1).all()


def test_training_with_batch_norm_cannot_step():
    block = ResidualBlock(S4D(4, 8), norm="batch")
    for use in (lambda: block.stepper(), lambda: block.prefill(torch.randn(1, 3, 4))):
        with pytest.raises(ValueError, match=r"norm='batch'.*eval\(\)"):
            use()
    block.eval().stepper()


def test_a_kernel_that_depends_on_the_length_refuses_padding():
    block = ResidualBlock(DSS(4, 8, softmax_length=None))
    with pytest.raises(ValueError, match="softmax_length"):
        block(torch.randn(2, 9, 4), lengths=[9, 3])


class Whole(SequenceLayer):
    """Adds the number of samples, which is that of the real ones only if the layer is told the lengths."""

    def __init__(self, d_model, needs_lengths):
        super().__init__()
        self.d_model = self.d_output = d_model
        self.needs_lengths = needs_lengths

    def forward(self, x, *, lengths=None, dt_scale=1.0):
        padding = Padding.of(x, lengths)
        counts = torch.full((len(x),), x.shape[1]) if padding is None else padding.lengths
        return counts[:, None, None] + torch.zeros_like(x)


def test_a_layer_is_told_the_lengths_if_it_needs_them():
    x = torch.randn(4, 9, 3)
    assert Whole.needs_lengths is True  # unless it says otherwise
    for told in (True, False):
        backbone = Backbone([Whole(3, told)], norm="none")
        added = (backbone(x, lengths=LENGTHS) - x)[0::3, 0, 0]
        assert (added - (torch.tensor([9.0, 6.0]) if told else 9.0)).abs().max() < 1e-5
    assert (S4D.needs_lengths, FeedForward.needs_lengths) == (False, False)


def test_norms_are_not_decayed():
    block = ResidualBlock(FeedForward(4), norm="batch")
    sizes = {group["name"]: sum(p.numel() for p in group["params"]) for group in param_groups(block, 0.1, 0.1)}
    assert sizes == {"no_decay": 16 + 4 + 8, "decay": 2 * 4 * 16}


def test_mistakes():
    with pytest.raises(ValueError, match=r"norm.*'group'"):
        ResidualBlock(S4D(4, 8), norm="group")
    with pytest.raises(ValueError, match="as many features"):
        ResidualBlock(S4D(4, 8, mix=None, channels=2))
    with pytest.raises(TypeError, match="layer must be"):
        ResidualBlock("s4")
    with pytest.raises(ValueError, match="expand"):
        FeedForward(4, 0)


def test_streaming_equals_forward():
    block = perturb(ResidualBlock(S4D(4, 8, dtype=f64), norm="batch", prenorm=False, dtype=f64), 0.2).eval()
    x = torch.randn(2, 9, 4, dtype=f64)
    wanted = block(x)
    y, state = block.prefill(x[:, :5])
    assert peak_error(y, wanted[:, :5]) <= 1e-11
    for t in range(5, 9):
        y, state = block.step(x[:, t], state)
        assert peak_error(y, wanted[:, t]) <= 1e-11
