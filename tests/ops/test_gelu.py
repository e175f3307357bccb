"""GELU's gradient by our kernel against torch's in float64."""

import pytest
import torch

from tests.ops.make import assert_near, poison

pytest.importorskip("triton")

from statespan.ops._triton.gelu import backward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float16, torch.float32]
if torch.cuda.is_available():  # Triton's interpreter cuts off what bfloat16 would round
    DTYPES.append(torch.bfloat16)


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward(dtype):
    """In 16 bits within the rounding of the result, also where GELU has ended on either side."""
    y = torch.cat([torch.linspace(-30, 30, 2000), torch.linspace(-4, 4, 1101)]).to(DEVICE, dtype)
    dz = torch.randn(3101, device=DEVICE).to(dtype)
    wanted = torch.ops.aten.gelu_backward(dz.double(), y.double())
    got = backward(dz, y)
    assert got.dtype == dtype
    if dtype == torch.float32:
        assert_near(got, wanted, 1e-6)
    else:
        step = torch.finfo(dtype).eps
        rounding = 0.5 * step * wanted.abs().clamp(min=torch.finfo(dtype).smallest_normal)
        assert ((got.double() - wanted).abs() <= rounding + 1e-6 * dz.double().abs()).all()
    strided = backward(dz[::2], y[::2])
    assert_near(strided, wanted[::2], 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps)
