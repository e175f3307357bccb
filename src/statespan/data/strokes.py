"""What the Pathfinder images are drawn with: their sizes, and tables of steps and stamps for each direction.

The benchmark draws at twice the size and shrinks; what a dash looks like and the space that it takes are the pixels
that come out, in 255ths. Points are (down, right).

Shapes: K directions: 360 whole degrees, in which contours begin, and J in which they go on; p pixels of a stamp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"
FINE = 2  # drawn at so many times the size
DEGREES = 360


@dataclass(frozen=True)
class Style:
    """Lengths in pixels, except those of contours, which are in dashes.

    Args:
        size: Of the image.
        dash: Length of a dash.
        thickness: Of a dash.
        margins: Half the gap between dashes, and the free space around them; one is drawn for each image.
        disc: Radius of the discs.
        apart: Distance between the beginnings of the two long contours.
        continuity: How much a turn counts: weights are cos²(continuity · turn).
        bright: Contrast of the long contours and of the distractors.
        distractors: Number of short contours.
        contour: Dashes of a long contour.
        short: Dashes of a short contour.
    """

    size: int
    dash: int
    thickness: float
    margins: tuple[int, ...]
    disc: float
    apart: int
    continuity: float
    bright: tuple[float, float]
    distractors: int
    contour: int = 14
    short: int = 4


# as the Long Range Arena states for its images
STYLES = {
    32: Style(32, 2, 0.5, (1,), 1.5, 7, 1.0, (1.5, 2.0), 5),
    128: Style(128, 5, 1.5, (2, 3), 3.0, 20, 1.8, (0.9, 0.9), 8),
}
SHORT_DASHES = {32: 20, 128: 35}  # of all distractors of an image together


def style_of(size: int, contour: int) -> Style:
    """The style of images with long contours of so many dashes; short ones have a third of them.

    Example:
        >>> style_of(32, 14) == STYLES[32]
        True
        >>> easy = style_of(32, 6)
        >>> easy.contour, easy.short, easy.distractors
        (6, 2, 10)
    """
    short = contour // 3
    return replace(STYLES[size], contour=contour, short=short, distractors=SHORT_DASHES[size] // short)


@dataclass(frozen=True)
class Tables:
    """What depends on the style and the margin only.

    A dash is known by its direction and by one of its ends: the first dash of a contour by its beginning (its tail),
    all others by where they point (their head). Stamps are centred there.
    """

    style: Style
    margin: int
    body: Array  # (K, 2) from the tail of a dash to its head
    back: Array  # (K, 2) from its head to its pivot
    forward: Array  # (K, 2) from its pivot to the next one; a dash turns around its pivot
    near: Array  # (K, m) which of the J directions may follow a direction
    weight: Array  # (K, m) how likely they are
    head: Array  # (K, m, 2) and from the pivot to the head of such a dash
    half: int  # stamps have 2 · half + 1 pixels each way
    line: Array  # (K, p) uint8, what a dash looks like
    space: Array  # (K, p) uint8, and the space it takes
    solid: Array  # (360, s, 2) where a first dash needs free space, from its tail
    begin: Array  # (360, b, 2) the tails that the first dash of all may have
    begins: Array  # (360,) and how many of them count
    spot: Array  # (p,) uint8, a disc


@lru_cache
def tables(style: Style, margin: int) -> Tables:
    """The tables of a style."""
    reach, half = style.dash + margin, style.dash + int(np.ceil(style.thickness)) + margin
    # a contour goes on to a pixel of the circle around the pivot; pixels are cut, not rounded, as the benchmark's are
    fine = np.arange(0.0, 2 * np.pi, 1 / reach)
    around = np.unique(np.floor(reach * _unit(fine) + 1e-9).astype(np.int32), axis=0)
    degrees = np.radians(np.arange(DEGREES) - 180.0)
    onward = np.arctan2(around[:, 0], around[:, 1])
    angle = np.concatenate([degrees, onward])
    turn = np.abs((onward[None] - angle[:, None] + np.pi) % (2 * np.pi) - np.pi)
    weight = np.cos(np.minimum(style.continuity * turn, np.pi / 2)) ** 2
    near = np.argsort(turn, 1, kind="stable")[:, : int((weight > 1e-9).sum(1).max())]
    # a dash that goes on is drawn from its head backwards
    drawn = [_dash(style, margin, half, way) for way in np.concatenate([degrees, onward + np.pi])]
    space = np.stack([space for _, space in drawn])
    solid = _solid(space[:DEGREES])
    middle = [_within(style, offsets) for offsets in solid]
    return Tables(
        style,
        margin,
        body=_up(style.dash * _unit(angle)),
        back=_up(-reach * _unit(angle)),
        forward=_up((style.dash + 2 * margin) * _unit(angle)),
        near=near,
        weight=np.take_along_axis(weight, near, 1),
        head=around[near],
        half=half,
        line=np.stack([line for line, _ in drawn]).reshape(len(angle), -1),
        space=space.reshape(len(angle), -1),
        solid=solid,
        begin=_equal(middle),
        begins=np.array([len(one) for one in middle]),
        spot=_spot(style.disc, half).reshape(-1),
    )


def disc(radius: float) -> Array:
    """The points (n, 2) of whole numbers no farther than the radius.

    Example:
        >>> len(disc(1)), len(disc(1.5)), len(disc(2))
        (5, 9, 13)
    """
    reach = range(-int(radius), int(radius) + 1)
    return np.array([(y, x) for y, x in product(reach, reach) if y**2 + x**2 <= radius**2])


def _unit(angle: Array) -> Array:
    return np.stack([np.sin(angle), np.cos(angle)], -1)


def _up(points: Array) -> Array:
    """To whole numbers, upwards."""
    return np.ceil(points - 1e-9).astype(np.int32)


def _dash(style: Style, margin: int, half: int, angle: float) -> tuple[Array, Array]:
    """What a dash that begins in the middle looks like, and the space that it takes: two images, uint8."""
    large = np.zeros((2 * FINE * half + 1,) * 2, bool)
    end = _up(FINE * style.dash * _unit(np.array(angle)))
    thick = round(FINE * style.thickness)
    large[tuple((_thin(end) if thick == 1 else _thick(end, thick)).T + FINE * half)] = True
    room = np.zeros_like(large)
    for y, x in disc(FINE * margin):  # nothing of the dash reaches the edge
        room |= np.roll(large, (y, x), (0, 1))
    return shrink(large, 2 * half + 1), shrink(room, 2 * half + 1)


def _thin(end: Array) -> Array:
    """The pixels (n, 2) of a line from 0 to a point, one for each step along its longer side."""
    steps = int(np.abs(end).max())
    along = np.arange(steps + 1)[:, None] * np.abs(end)
    return np.sign(end) * ((2 * along + steps) // (2 * steps))


def _thick(end: Array, thick: int) -> Array:
    """The pixels (n, 2) of a line from 0 to a point that is so many pixels thick: those in or near a parallelogram."""
    side = np.rint((thick - 1) / 2 * np.array([end[1], -end[0]]) / np.hypot(*end))
    square = np.arange(-np.abs(end).max() - thick, np.abs(end).max() + thick + 1)
    points = np.stack(np.meshgrid(square, square, indexing="ij"), -1).reshape(-1, 2)
    along, across = np.linalg.solve(np.stack([end, side], 1), points.T)
    near = 0.3  # of a pixel
    beyond = np.maximum(np.maximum(-along, along - 1) * np.hypot(*end), (np.abs(across) - 1) * np.hypot(*side))
    return points[beyond <= near]


def _spot(radius: float, half: int) -> Array:
    large = np.zeros((FINE * (2 * half + 1),) * 2, bool)
    large[tuple(disc(FINE * radius).T + FINE * half)] = True
    return shrink(large, 2 * half + 1)


def _solid(space: Array) -> Array:
    """Offsets (360, s, 2) from the tail to pixels whose space is all taken, some more than once.

    One pixel farther down and right, as the benchmark has it.
    """
    half = space.shape[1] // 2
    found = [np.argwhere(one == 255) - half + 1 for one in space]
    return _equal(found)


def _equal(points: list[Array]) -> Array:
    """Lists of points (n, 2) as one array, filled up with the first of each, or with 0."""
    out = np.zeros((len(points), max(map(len, points)), 2), np.int32)
    for filled, some in zip(out, points):
        filled[:] = some[0] if len(some) else 0
        filled[: len(some)] = some
    return out


def _within(style: Style, offsets: Array) -> Array:
    """The tails from which all offsets lead into the middle of the image."""
    low, high = 2 * style.apart - offsets.min(0), style.size - 2 * style.apart - offsets.max(0)
    return np.array(list(product(*map(range, low, high))), int).reshape(-1, 2)


def shrink(image: Array, size: int) -> Array:
    """A square image of 0 and 1 as one of fewer pixels (size, size), by Lanczos' filter; uint8.

    Example:
        >>> shrink(np.eye(4, dtype=bool), 2).tolist()
        [[115, 25], [25, 115]]
    """
    n = len(image)
    scale = n / size
    off = (np.arange(n)[None] + 0.5) / scale - (np.arange(size)[:, None] + 0.5)
    weights = np.where(np.abs(off) < 3, np.sinc(off) * np.sinc(off / 3), 0.0)
    weights /= weights.sum(1, keepdims=True)
    across = _bytes(255.0 * image @ weights.T)
    return _bytes(weights @ across).astype(np.uint8)


def _bytes(x: Array) -> Array:
    return np.clip(np.floor(x + 0.5), 0, 255)
