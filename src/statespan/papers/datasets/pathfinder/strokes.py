"""Strokes of the Pathfinder images: their sizes, and tables of steps and stamps for each direction.

The benchmark draws at twice the size and shrinks the result. The look of a dash is the shrunk image, as unclamped
floats; the space that it takes is in bytes. Points are (down, right).

Steps are floats and places whole numbers: the benchmark adds them in float64 and rounds up, so that a step of 1e-16,
as the sine of 180 degrees gives, moves a point where the sum can still hold it, near the upper and left edges.

Shapes: K directions: 360 whole degrees, in which contours begin, and J in which they continue; p pixels of a stamp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from statespan.data.base import Array
from statespan.papers.datasets.pathfinder.raster import filter_weights, line, shrink_bytes, shrink_floats

FINE = 2  # factor of the size at which dashes are drawn, before shrinking
DEGREES = 360


@dataclass(frozen=True)
class Style:
    """The sizes of a drawing: lengths in pixels, except those of contours, which are in dashes.

    Example:
        >>> style = style_of(32, 14)
        >>> style.size, style.contour
        (32, 14)
    """

    size: int  # of the image
    dash: int  # length of a dash
    thickness: float  # of a dash
    margins: tuple[int, ...]  # half the gap between dashes, and the free space around them; one is drawn for each image
    disc: float  # radius of the discs
    apart: int  # distance between the beginnings of the two long contours
    continuity: float  # how much a turn counts: weights are cos²(continuity · turn)
    bright: tuple[float, float]  # contrast of the long contours and of the distractors
    distractors: int  # number of short contours that are tried
    contour: int = 14  # dashes of a long contour
    short: int = 4  # dashes of a short contour


# as the Long Range Arena states for its images
STYLES = {
    32: Style(32, 2, 0.5, (1,), 1.5, 7, 1.0, (1.5, 2.0), 10),
    128: Style(128, 5, 1.5, (2, 3), 3.0, 20, 1.8, (0.9, 0.9), 18),
}


def style_of(size: int, contour: int) -> Style:
    """The style for long contours of this many dashes; short ones have a third as many.

    There are as many short ones at every level: the release was made so, whatever its authors' script says.

    Example:
        >>> style_of(32, 14) == STYLES[32]
        True
        >>> easy = style_of(32, 6)
        >>> easy.contour, easy.short, easy.distractors
        (6, 2, 10)
    """
    return replace(STYLES[size], contour=contour, short=contour // 3)


@dataclass(frozen=True)
class Tables:
    """The tables that depend on the style and the margin only.

    A dash is known by its direction and by one of its ends: the first dash of a contour by its beginning (its tail),
    all others by where they point (their head). Stamps are centred there.

    Example:
        >>> made = tables(style_of(32, 14), 1)
        >>> made.body.shape, made.line.shape[0] == made.space.shape[0]
        ((360, 2), True)
    """

    style: Style
    margin: int
    body: Array  # (360, 2) float64, from the tail of a first dash to its head
    back: Array  # (360, 2) float64, from its head to its pivot
    forward: Array  # (K, 2) float64, from a dash's pivot to the next one; a dash turns around its pivot
    near: Array  # (K, m) which of the J directions may follow a direction
    weight: Array  # (K, m) how likely they are
    head: Array  # (K, m, 2) and from the pivot to the head of such a dash
    half: int  # stamps have 2 · half + 1 pixels each way
    line: Array  # (K, p) float32, what a dash looks like
    space: Array  # (K, p) uint8, and the space it takes
    solid: Array  # (360, s, 2) where a first dash needs free space, from its tail
    works: Array  # (360,) bool, whether a first dash of this direction can be placed at all
    starts: Array  # (d,) the directions that the first dash of all may have
    begin: Array  # (360, b, 2) the tails it may then have
    begins: Array  # (360,) and how many of them count
    apart: Array  # (360, 2) float64, from there to the beginning of the other long contour
    spot: Array  # (size, 2 · half + 1, f) float32, what a disc in this row, f fine rows high, leaves of it in pixels


@lru_cache
def tables(style: Style, margin: int) -> Tables:
    """The tables of a style."""
    reach, half = style.dash + margin, style.dash + math.ceil(style.thickness) + margin
    # a contour goes on to a pixel of the circle around the pivot; pixels are cut, not rounded, as the benchmark's are
    fine = np.arange(0.0, 2 * np.pi, 1 / reach)
    around = np.unique(np.floor(reach * _unit(fine)).astype(np.int32), axis=0)
    degrees = (np.arange(DEGREES) - DEGREES // 2) * np.pi / 180
    onward = np.arctan2(around[:, 0], around[:, 1])
    angle = np.concatenate([degrees, onward])
    turn = np.abs((onward[None] - angle[:, None] + np.pi) % (2 * np.pi) - np.pi)
    weight = np.cos(np.minimum(style.continuity * turn, np.pi / 2)) ** 2
    near = np.argsort(turn, 1, kind="stable")[:, : int((weight > 1e-9).sum(1).max())]
    # a dash that goes on is drawn from its head backwards
    drawn = [_dash(style, margin, half, way) for way in np.concatenate([degrees, _reversed(onward)])]
    space = np.stack([space for _, space in drawn])
    solid = [_solid(stamp, reach) for stamp in space[:DEGREES]]
    works = np.array([_works(offsets, style.size) for offsets in solid])
    middle = [_within(style, offsets) for offsets in solid]
    begins = np.array([len(tails) for tails in middle])
    return Tables(
        style,
        margin,
        body=style.dash * _unit(degrees),
        back=reach * _unit(_reversed(degrees)),
        forward=(style.dash + 2 * margin) * _unit(angle),
        near=near,
        weight=np.take_along_axis(weight, near, 1),
        head=around[near],
        half=half,
        line=np.stack([line for line, _ in drawn]).reshape(len(angle), -1),
        space=space.reshape(len(angle), -1),
        solid=_equal(solid),
        works=works,
        starts=np.flatnonzero(works & (begins > 0)),
        begin=_equal(middle),
        begins=begins,
        apart=style.apart * _unit(np.arange(DEGREES) * np.pi / 180),
        spot=_spot(style, half),
    )


def step(at: Array, by: Array) -> Array:
    """Integer points (…, 2) moved by floats and rounded up, with float64's rounding errors."""
    return np.ceil(at + by).astype(np.int32)


def disc(radius: float) -> Array:
    """The integer points (n, 2) within the radius.

    Example:
        >>> len(disc(1)), len(disc(1.5)), len(disc(2))
        (5, 9, 13)
    """
    reach = range(-int(radius), int(radius) + 1)
    return np.array([(y, x) for y, x in product(reach, reach) if y**2 + x**2 <= radius**2])


def _unit(angles: Array) -> Array:
    # not numpy's, which differ in their last bit from processor to processor, and it counts here
    return np.array([(math.sin(angle), math.cos(angle)) for angle in angles])


def _reversed(angles: Array) -> Array:
    return np.where(angles < 0, angles + np.pi, angles - np.pi)


def _dash(style: Style, margin: int, half: int, angle: float) -> tuple[Array, Array]:
    """Two images of a dash that begins in the middle: its look, float32, and the space that it takes, uint8."""
    large = np.zeros((2 * FINE * half + 1,) * 2, bool)
    middle = np.array([FINE * half, FINE * half])
    end = step(middle, FINE * style.dash * _unit(np.array([angle]))[0])
    large[tuple(line(middle, end, round(FINE * style.thickness)).T)] = True
    space = np.zeros_like(large)
    for y, x in disc(FINE * margin):  # nothing of the dash reaches the edge
        space |= np.roll(large, (y, x), (0, 1))
    side = 2 * half + 1
    return np.maximum(shrink_floats(large, side), 0), shrink_bytes(space, side)


def _spot(style: Style, half: int) -> Array:
    """For each row of the image, the weights (2 · half + 1, f) of the fine rows of a disc at that row.

    Its columns have the same. The weights depend on the row at the image's edges only.
    """
    size, reach = style.size, int(FINE * style.disc)
    weights = np.pad(filter_weights(FINE * size, size), ((half, half), (reach, reach)))
    rows = [weights[i : i + 2 * half + 1, FINE * i : FINE * i + 2 * reach + 1] for i in range(size)]
    return np.stack(rows).astype(np.float32)


def fine_disc(style: Style) -> Array:
    """A disc of 0 and 1 before shrinking, (f, f)."""
    points = disc(FINE * style.disc)
    image = np.zeros((2 * int(FINE * style.disc) + 1,) * 2, np.float32)
    image[tuple(points.T + int(FINE * style.disc))] = 1
    return image


def _solid(space: Array, reach: int) -> Array:
    """Offsets (s, 2) from the tail to fully covered pixels.

    One pixel farther down and right, and no farther than the reach of a dash, as the benchmark has it.
    """
    offsets = np.argwhere(space == 255) - len(space) // 2 + 1
    return offsets[(offsets <= reach).all(1)]


def _works(offsets: Array, size: int) -> bool:
    """Whether, from every pixel of the image, one of the offsets leads to a pixel of the image.

    Where this is not so, the benchmark's search for a place ends without one, free as the image may be.
    """
    reached = np.zeros((size, size), bool)
    for down, right in offsets:
        reached[max(0, -down) : size - max(0, down), max(0, -right) : size - max(0, right)] = True
    return bool(reached.all())


def _equal(points: list[Array]) -> Array:
    """Lists of points (n, 2) as one array, each padded with its first point, or with 0."""
    out = np.zeros((len(points), max(map(len, points)), 2), np.int32)
    for padded, row_points in zip(out, points):
        padded[:] = row_points[0] if len(row_points) else 0
        padded[: len(row_points)] = row_points
    return out


def _within(style: Style, offsets: Array) -> Array:
    """The tails from which all offsets lead into the middle of the image."""
    low, high = 2 * style.apart - offsets.min(0), style.size - 2 * style.apart - offsets.max(0)
    return np.array(list(product(*map(range, low, high))), int).reshape(-1, 2)
