"""Sums over shares: whatever their number and the sizes of their parts."""

import pytest
import torch

from tests.ops.make import poison

pytest.importorskip("triton")

from statespan.ops._triton.sums import TILE, sum_shares

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


WIDE = (7, TILE + 1, 1, 30)
CASES = [(count, sizes) for count in (1, 3, 256, 700) for sizes in ((1,), (5, 3), (9, 0, 40), WIDE)]
LONG = [(256, WIDE), (700, WIDE)]  # to interpret


@pytest.mark.parametrize(
    ("count", "sizes"),
    [pytest.param(*case, marks=[pytest.mark.soak] * (case in LONG)) for case in CASES],
    ids=str,
)
def test_every_part(count, sizes):
    """Of few shares wide columns, of many narrow ones, of more than a tile in several rounds."""
    shares = torch.randn(count, sum(sizes), dtype=torch.float64).to(DEVICE)
    out = [torch.empty(size, dtype=torch.float64, device=DEVICE) for size in sizes]
    sum_shares(shares, out)
    for got, wanted in zip(out, shares.sum(0).split(sizes), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12 * count)
    again = [torch.empty_like(x) for x in out]
    sum_shares(shares, again)
    assert all(torch.equal(one, other) for one, other in zip(out, again, strict=True))


def test_into_a_narrower_type():
    shares = torch.full((300, 4), 1 / 3, dtype=torch.float32, device=DEVICE)
    out = torch.empty(4, dtype=torch.bfloat16, device=DEVICE)
    sum_shares(shares, [out])
    assert out.tolist() == [100.0] * 4
