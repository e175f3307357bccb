"""The mixture of logistics against its definition by differences of distribution functions, in many digits."""

import mpmath
import pytest
import torch

from statespan.nn.logistic import LogisticMixture
from tests.mistakes import assert_one_clear_line

f64 = torch.float64


def by_definition(mixture, features, value):
    """log Σ w (F(right) - F(left)) with 1,000 digits."""
    weight, mean, scale = ([mpmath.mpf(v.item()) for v in part] for part in mixture.linear(features).chunk(3))
    K = mixture.values
    with mpmath.workdps(1000):
        weights = [mpmath.e**w for w in weight]
        total = mpmath.mpf(0)
        for w, m, s in zip(weights, mean, scale, strict=True):
            s = mpmath.e ** min(max(s, mpmath.mpf(-7)), mpmath.mpf(7))
            at, half = mpmath.mpf(2 * value) / (K - 1) - 1, mpmath.mpf(1) / (K - 1)

            def cdf(x, m=m, s=s):
                return 1 / (1 + mpmath.e ** (-(x - m) / s))

            high = 1 if value == K - 1 else cdf(at + half)
            low = 0 if value == 0 else cdf(at - half)
            total += w / mpmath.fsum(weights) * (high - low)
        return float(mpmath.log(total))


@pytest.mark.parametrize("values", [2, 17, 256])
def test_log_probabilities(values):
    mixture = LogisticMixture(3, values, 2, dtype=f64)
    torch.nn.init.normal_(mixture.linear.weight, std=3.0)
    features = torch.randn(4, 3, dtype=f64)
    features[0] *= 20  # far tails and scales at their limit
    found = mixture(features)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(4, dtype=f64), rtol=1e-12, atol=0)
    for value in {0, 1, values // 2, values - 1}:
        for row in range(4):
            assert found[row, value].item() == pytest.approx(by_definition(mixture, features[row], value), rel=1e-9)
        torch.testing.assert_close(mixture.losses(features, torch.full((4,), value)), -found[:, value])


def test_precision_and_gradients():
    """Finite in float32 and its gradients, however far a value is from all components; bfloat16 computes in float32."""
    mixture = LogisticMixture(3, 256, 5)
    features = (100 * torch.randn(50, 3)).requires_grad_()
    losses = mixture.losses(features, torch.randint(256, (50,)))
    losses.sum().backward()
    assert losses.isfinite().all()
    assert features.grad.isfinite().all()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in mixture.parameters())
    assert mixture.to(torch.bfloat16)(features.bfloat16()).dtype == torch.float32


def test_first_weights_know_nothing_and_exclude_nothing():
    mixture = LogisticMixture(3, 256)
    with torch.no_grad():
        assert mixture(torch.zeros(1, 3)).min() > -8  # a uniform distribution has log(1/256) = -5.5


def test_mistakes():
    assert_one_clear_line(lambda: LogisticMixture(3, 1), ValueError, ["values", ">= 2", "got 1"])
    assert_one_clear_line(lambda: LogisticMixture(3, 5, 0), ValueError, ["components", ">= 1", "got 0"])
