"""Products of float32 numbers as three of 11 bits each, which tensor cores multiply exactly, against float64."""

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from statespan.ops.ssm._triton.primitives import high_part, mm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = 1024


@triton.jit
def _parts_kernel(x_ptr, high_ptr, low_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at)
    high = high_part(x)
    tl.store(high_ptr + at, high)
    tl.store(low_ptr + at, x - high)


@triton.jit
def _product_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    acc = mm(tl.load(a_ptr + at), tl.load(b_ptr + at), tl.zeros((N, N), tl.float32), PRECISION)
    tl.store(out_ptr + at, acc)


def parts(x):
    high, low = torch.empty_like(x), torch.empty_like(x)
    _parts_kernel[(1,)](x, high, low, SIZE=len(x))
    return high, low


def spread():
    """Numbers of every size that float32 has, both signs, and the hardest to round."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, generator=generator) * torch.logspace(-30, 30, SIZE)
    x[:6] = torch.tensor([0.0, -0.0, 1.0, 1 + 2**-11, 1 + 2**-11 + 2**-23, 2 - 2**-23])
    return x.to(DEVICE)


def test_two_parts_are_the_number():
    """The high part has 11 bits and is the nearest such number; the low one is what is left, without an error."""
    x = spread()
    high, low = parts(x)
    assert torch.equal(high.double() + low.double(), x.double())
    assert (high.view(torch.int32) & 0x1FFF == 0).all()
    assert (low.abs().double() <= 2**-11 * x.abs().double()).all()
    assert (low != 0).sum() > SIZE // 2


# the interpreter's numpy warns about the difference of infinities
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf] if torch.cuda.is_available() else [torch.nan])
def test_a_part_that_is_not_finite_shows(value):
    high, low = parts(torch.full((SIZE,), value, device=DEVICE))
    assert not (high + low).isfinite().any()


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_three_products_are_as_exact_as_float32(order):
    """Of the sum of the products' absolute values; sorted, all partial sums are large."""
    N = 64
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(N, N, generator=generator) for _ in range(2))
    if order == "sorted":
        a, b = a.sort(1).values, b.sort(0).values
    a, b = a.to(DEVICE), b.to(DEVICE)
    out = torch.empty_like(a)
    _product_kernel[(1,)](a, b, out, N=N, PRECISION="split")
    wanted, sizes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    error = ((out.double() - wanted).abs() / sizes).max().item()
    assert 0 < error < 1e-6
    high = parts(a.flatten()[:SIZE])[0]  # one product alone would not do
    assert ((high - a.flatten()[:SIZE]).abs() / a.flatten()[:SIZE].abs()).max() > 1e-4
