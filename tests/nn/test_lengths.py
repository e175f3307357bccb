"""Padding, sampling rates, and the states of sequences of unequal length."""

import pytest
import torch

from statespan import LRU
from tests.nn.make import LAYER_IDS, LAYERS, peak_error, random_state

LENGTHS = [30, 1, 17, 0]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("cls", "options"), LAYERS, ids=LAYER_IDS)
def test_padding_is_ignored(cls, options, bidirectional):
    """Each sequence comes out as if it were alone, whatever stands in the padding; the padding comes out as 0."""
    layer = cls(4, 8, dtype=torch.float64, bidirectional=bidirectional, **options)
    x = torch.randn(4, 30, 4, dtype=torch.float64)
    for lengths in (LENGTHS, torch.tensor(LENGTHS)):
        y = layer(x, lengths=lengths)
        for b, length in enumerate(LENGTHS):
            if length:
                assert peak_error(y[b, :length], layer(x[b : b + 1, :length])[0]) <= 1e-11
            assert (y[b, length:] == 0).all()


@pytest.mark.parametrize(("cls", "options"), LAYERS, ids=LAYER_IDS)
@pytest.mark.parametrize("with_state", [False, True])
def test_prefill_returns_the_state_after_each_length(cls, options, with_state):
    layer = cls(4, 8, dtype=torch.float64, **options)
    x = torch.randn(4, 30, 4, dtype=torch.float64)
    start = random_state(layer, 4) if with_state else None
    y, state = layer.prefill(x, start, lengths=LENGTHS)
    for b, length in enumerate(LENGTHS):
        alone, end = layer.prefill(x[b : b + 1, :length], None if start is None else start[b : b + 1])
        torch.testing.assert_close(state[b : b + 1], end, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(y[b : b + 1, :length], alone, rtol=1e-11, atol=1e-12)


def test_nan_in_the_padding_does_no_harm():
    cls, options = LAYERS[0]
    layer = cls(4, 8, **options)
    x = torch.randn(2, 10, 4)
    clean = layer(x, lengths=[10, 6])
    x[1, 6:] = torch.nan
    assert (layer(x, lengths=[10, 6]) == clean).all()
    _, state = layer.prefill(x, lengths=[10, 6])
    assert torch.isfinite(state).all()


STEPPED = [(cls, options) for cls, options in LAYERS if cls is not LRU]


@pytest.mark.parametrize(("cls", "options"), STEPPED, ids=[name for name in LAYER_IDS if not name.startswith("LRU")])
@pytest.mark.parametrize("dt_scale", [0.5, 2.0])
def test_rate_is_a_factor_on_dt(cls, options, dt_scale):
    layer = cls(4, 8, dtype=torch.float64, **options)
    x = torch.randn(2, 30, 4, dtype=torch.float64)
    wanted, y = layer(x, dt_scale=dt_scale), layer(x)
    with torch.no_grad():
        layer.ssm.log_dt += torch.log(torch.tensor(dt_scale, dtype=torch.float64))
        if getattr(layer.ssm, "softmax", False):
            layer.ssm.softmax_length = round(layer.ssm.softmax_length / dt_scale)
    torch.testing.assert_close(wanted, layer(x), rtol=1e-12, atol=1e-12)
    assert peak_error(wanted, y) > 1e-3


def test_a_slow_signal_looks_the_same_at_half_the_rate():
    """The promise behind ``dt_scale``: a smooth signal sampled half as often, with twice the step, looks the same."""
    cls, options = LAYERS[0]
    layer = cls(4, 16, dtype=torch.float64, activation=None, mix=None, dt_min=0.005, dt_max=0.02, **options)
    with torch.no_grad():
        layer.D.zero_()
    t = torch.arange(2000, dtype=torch.float64)
    x = torch.stack([torch.sin(t / period) for period in (40, 60, 100, 300)], -1)[None]
    full, half = layer(x), layer(x[:, ::2], dt_scale=2.0)
    assert peak_error(half, full[:, ::2]) < 0.05
    assert peak_error(layer(x[:, ::2]), full[:, ::2]) > 0.3
