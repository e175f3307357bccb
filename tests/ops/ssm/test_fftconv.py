"""The FFT convolution against the sum it stands for."""

import pytest
import torch

from statespan.ops import fftconv
from statespan.ops.ssm.fftconv import fast_length


def direct(u, kernel, backward):
    """Both sums, term by term: u (B, L, H), kernels (K, H, L)."""
    batch, length, heads = u.shape
    y = torch.zeros(batch, length, kernel.shape[0], heads, dtype=u.dtype)
    for t in range(length):
        for s in range(length):
            if s <= t:
                y[:, t] += kernel[:, :, t - s] * u[:, s, None]
            elif backward is not None:
                y[:, t] += backward[:, :, s - t - 1] * u[:, s, None]
    return y


@pytest.mark.parametrize("two_way", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 13, 31, 32])
def test_against_the_sum(length, two_way):
    u, kernel = torch.randn(2, length, 3, dtype=torch.float64), torch.randn(2, 3, length, dtype=torch.float64)
    backward = torch.randn(2, 3, length, dtype=torch.float64) if two_way else None
    torch.testing.assert_close(fftconv(u, kernel, backward), direct(u, kernel, backward), rtol=1e-12, atol=1e-12)


def test_nothing_wraps_around():
    """An impulse at the end reaches no earlier sample, however the FFT length falls."""
    for length in (5, 16, 27, 100):
        u, kernel = torch.zeros(1, length, 1, dtype=torch.float64), torch.ones(1, 1, length, dtype=torch.float64)
        u[:, -1] = 1
        y = fftconv(u, kernel)[0, :, 0, 0]
        assert y[:-1].abs().max() <= 1e-15 * length
        assert y[-1].item() == pytest.approx(1.0, abs=1e-14)


def test_fast_length():
    def smooth(n):
        for p in (2, 3, 5):
            while n % p == 0:
                n //= p
        return n == 1

    for n in [*range(1, 2000), 8191, 65537, 2**20 - 1, 2**20 + 1]:
        wanted = n + n % 2
        while not smooth(wanted):
            wanted += 2
        assert fast_length(n) == wanted, n
