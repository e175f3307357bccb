"""Images shifted, warped and turned: against slow versions, in any order of the pixels, by as much as is said."""

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from statespan.data.augment import MOVE, SLANT, STRETCH, TURN, Shift, Turn, Warp
from statespan.data.base import Batch
from statespan.papers.datasets.images import bit_reversal

ROWS = tuple(range(784))


def digits(n: int) -> torch.Tensor:
    """Smooth blots of 28 x 28, no two alike."""
    generator = torch.Generator().manual_seed(3)
    coarse = torch.rand(n, 1, 7, 7, generator=generator)
    return torch.nn.functional.interpolate(coarse, size=(28, 28), mode="bilinear").reshape(n, 784, 1)


def batch(x: torch.Tensor) -> Batch:
    return Batch(x, torch.arange(len(x)))


def slow(image: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """One image of 28 x 28 under the affine map of six numbers in [-1, 1], pixel by pixel in float64."""
    turn, wide, high, slant, right, down = drawn
    angle, sx, sy = TURN * turn, math.exp(STRETCH * wide), math.exp(STRETCH * high)
    source = np.empty((2, 28, 28))
    for row in range(28):
        for column in range(28):
            x, y = column - 13.5, row - 13.5
            x = x + SLANT * slant * y
            x, y = sx * x, sy * y
            x, y = math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y
            source[:, row, column] = y + MOVE * down + 13.5, x + MOVE * right + 13.5
    padded = np.pad(image, 1)  # black outside, with the edge fading into it as in the fast version
    return map_coordinates(padded, source + 1, order=1, mode="constant", cval=0.0)


def test_matches_the_slow_version() -> None:
    x = digits(5)
    warped = Warp(ROWS, bend=0.0)(batch(x), torch.Generator().manual_seed(11))
    drawn = 2 * torch.rand(5, 6, generator=torch.Generator().manual_seed(11)).double().numpy() - 1
    for image, numbers, got in zip(x, drawn, warped.x, strict=True):
        want = slow(image.reshape(28, 28).double().numpy(), numbers)
        np.testing.assert_allclose(got.reshape(28, 28).numpy(), want, atol=2e-5)
    assert torch.equal(warped.y, torch.arange(5))


def test_bends_as_far_as_it_says() -> None:
    """An image whose values are the columns shows how far each pixel was moved to a side."""
    columns = (torch.arange(784) % 28).float().repeat(400, 1)[..., None]
    bent = [Warp(ROWS, bend=b)(batch(columns), torch.Generator().manual_seed(2)).x for b in (0.0, 0.5)]
    moved = (bent[1] - bent[0]).unflatten(1, (28, 28))[:, 10:18, 10:18]  # far from the edges
    assert moved.mean().abs() < 0.02
    assert 0.25 < moved.std() < 0.5  # 0.5 at the knots, less between them
    neighbours = (moved[:, :, 1:] - moved[:, :, :-1]).std()
    assert neighbours < 0.3 * moved.std()  # smooth


def test_the_order_of_the_pixels_does_not_matter() -> None:
    x, order = digits(4), bit_reversal(784)
    plain = Warp(ROWS)(batch(x), torch.Generator().manual_seed(5)).x
    permuted = Warp(tuple(order.tolist()))(batch(x[:, order]), torch.Generator().manual_seed(5)).x
    torch.testing.assert_close(permuted, plain[:, order], atol=1e-5, rtol=0)


def test_nothing_drawn_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = digits(3)
    monkeypatch.setattr(torch, "rand", lambda *size, generator, device: torch.full(size, 0.5, device=device))
    torch.testing.assert_close(Warp(ROWS, bend=0.0)(batch(x), torch.Generator()).x, x, atol=1e-6, rtol=0)


def test_the_same_seed_warps_alike_and_every_image_for_itself() -> None:
    x = digits(1).repeat(2, 1, 1)
    first, again = (Warp(ROWS)(batch(x), torch.Generator().manual_seed(7)).x for _ in range(2))
    assert torch.equal(first, again)
    assert (first[0] - first[1]).abs().max() > 0.05


@pytest.mark.parametrize("order", [np.arange(784), bit_reversal(784)], ids=["rows", "permuted"])
def test_shift_moves_images_by_up_to_2_and_leaves_black(order: np.ndarray) -> None:
    images = torch.arange(1.0, 785).expand(2000, 784)
    shift = Shift(tuple(order.tolist()))
    out = shift(Batch(images[:, order, None], torch.zeros(2000)), torch.Generator().manual_seed(0)).x
    assert torch.equal(out, shift(Batch(images[:, order, None], torch.zeros(2000)), torch.Generator().manual_seed(0)).x)
    back = torch.empty(2000, 784)
    back[:, order] = out[..., 0]
    back = back.reshape(2000, 28, 28)
    moved: dict[tuple[int, int], torch.Tensor] = {}
    for picture in back:
        by = divmod(int(picture[14, 14]) - 1, 28)
        moved[by[0] - 14, by[1] - 14] = picture
    assert sorted(moved) == [(i, j) for i in range(-2, 3) for j in range(-2, 3)]
    whole = images[0].reshape(28, 28)
    for (down, right), picture in moved.items():
        wanted = torch.nn.functional.pad(whole, (2, 2, 2, 2))[2 + down : 30 + down, 2 + right : 30 + right]
        assert torch.equal(picture, wanted)


def test_each_image_is_turned_and_mirrored_in_one_of_the_eight_ways():
    images = torch.randn(4000, 25, 2, generator=torch.Generator().manual_seed(1))
    before = images.clone()
    out = Turn(5)(batch(images), torch.Generator().manual_seed(0))
    assert (images == before).all()
    assert (out.y == torch.arange(4000)).all()
    square, turned = images.unflatten(1, (5, 5)), out.x.unflatten(1, (5, 5))
    ways = [torch.rot90(one, k, (1, 2)) for one in (square, square.flip(2)) for k in range(4)]
    same = torch.stack([(way == turned).flatten(1).all(1) for way in ways])
    assert (same.sum(0) == 1).all()
    assert (same.float().mean(1) - 1 / 8).abs().max() < 0.02
    again = Turn(5)(batch(images), torch.Generator().manual_seed(0))
    assert (again.x == out.x).all()
