"""Products of float32 numbers as those of three parts of 8 bits each, which tensor cores multiply, against float64."""

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from statespan.ops.ssm._triton.primitives import mm, three_parts

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = 1024


@triton.jit
def _parts_kernel(x_ptr, high_ptr, middle_ptr, low_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    high, middle, low = three_parts(tl.load(x_ptr + at))
    tl.store(high_ptr + at, high.to(tl.float32))
    tl.store(middle_ptr + at, middle.to(tl.float32))
    tl.store(low_ptr + at, low.to(tl.float32))


@triton.jit
def _product_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    acc = mm(tl.load(a_ptr + at), tl.load(b_ptr + at), tl.zeros((N, N), tl.float32), PRECISION)
    tl.store(out_ptr + at, acc)


def parts(x):
    out = [torch.empty_like(x) for _ in range(3)]
    _parts_kernel[(1,)](x, *out, SIZE=len(x))
    return out


def spread():
    """Numbers of every size that float32 has, both signs, and the hardest to round."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, generator=generator) * torch.logspace(-30, 30, SIZE)
    x[:6] = torch.tensor([0.0, -0.0, 1.0, 1 + 2**-11, 1 + 2**-11 + 2**-23, 2 - 2**-23])
    return x.to(DEVICE)


def test_three_parts_are_the_number():
    """Each has 8 bits, and is at most half a unit of the one before it; nothing is lost."""
    x = spread()
    high, middle, low = (part.double() for part in parts(x))
    assert torch.equal(high + middle + low, x.double())
    for part in (high, middle, low):
        assert (part.float().view(torch.int32) & 0xFFFF == 0).all()
    size = x.double().abs()
    assert ((high - x.double()).abs() <= 2**-8 * size).all()
    assert (low.abs() <= 2**-16 * size).all()
    assert (low != 0).sum() > SIZE // 2


# the interpreter's numpy warns about the difference of infinities
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf] if torch.cuda.is_available() else [torch.nan])
def test_a_part_that_is_not_finite_shows(value):
    assert not sum(parts(torch.full((SIZE,), value, device=DEVICE))).isfinite().any()


@pytest.mark.parametrize("order", ["random", "sorted", "positive"])
def test_six_products_are_as_exact_as_float32(order):
    """Of the sum of the products' absolute values; sorted, all partial sums are large; positive, none cancels."""
    N = 64
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(N, N, generator=generator) for _ in range(2))
    if order == "sorted":
        a, b = a.sort(1).values, b.sort(0).values
    if order == "positive":
        a, b = a.abs(), b.abs()
    a, b = a.to(DEVICE), b.to(DEVICE)
    out = torch.empty_like(a)
    _product_kernel[(1,)](a, b, out, N=N, PRECISION="parts")
    wanted, sizes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert 0 < ((out.double() - wanted).abs() / sizes).max() < 5e-7
    high, middle, _ = (part.view(16, 64).double() for part in parts(a.flatten()[:SIZE]))  # what fewer would give
    fewer = (high + middle) @ b.double()
    assert ((fewer - wanted[:16]).abs() / sizes[:16]).max() > 5e-7
