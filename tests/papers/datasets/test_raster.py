"""Lines and smaller images: pixel by pixel what Pillow makes of them."""

import numpy as np
import pytest

from statespan.papers.datasets.pathfinder.raster import line, shrink_bytes, shrink_floats


def by_pillow(start, end, thickness, size):
    image, draw = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.ImageDraw")
    canvas = image.new("F", (size, size), "black")
    draw.Draw(canvas).line([tuple(start[::-1].tolist()), tuple(end[::-1].tolist())], fill="white", width=thickness)
    return np.asarray(canvas) > 0


@pytest.mark.parametrize("thickness", [1, 3, 5])
@pytest.mark.parametrize("middle", [18, 20])
def test_lines_are_pillows(thickness, middle):
    start = np.array([middle, middle])
    square = np.arange(-12, 13)
    for step in np.stack(np.meshgrid(square, square), -1).reshape(-1, 2):
        if step.any():
            found = np.zeros((41, 41), bool)
            found[tuple(line(start, start + step, thickness).T)] = True
            assert (found == by_pillow(start, start + step, thickness, 41)).all(), step


def test_an_even_thickness_is_refused():
    with pytest.raises(ValueError, match="thickness must be odd, got 2"):
        line(np.array([0, 0]), np.array([0, 3]), 2)


@pytest.mark.parametrize(("n", "size"), [(17, 9), (18, 9), (37, 19), (41, 21), (64, 32)])
def test_images_are_shrunk_as_pillow_does(n, size):
    image = pytest.importorskip("PIL.Image")
    fine = np.random.default_rng(n).random((n, n)) < 0.3
    fine[:, n // 2 :] = False
    fine[2:10, 5:12] = True
    wanted = [
        np.asarray(image.fromarray(one).resize((size, size), image.Resampling.LANCZOS))
        for one in (255 * fine.astype(np.uint8), fine.astype(np.float32))
    ]
    assert (shrink_bytes(fine, size) == wanted[0]).all()
    found = shrink_floats(fine, size)
    assert np.abs(found - wanted[1]).max() <= 2e-7  # of values around 1
    assert found.min() < 0
    assert found.max() > 1
