"""Images of the Pathfinder task: dashed contours and two discs. Do the discs mark the two ends of one contour?

A contour is a chain of dashes. Each new dash begins behind a gap at the end of the last one, in a direction drawn with
weights cos² of the turn; it keeps its distance from all other dashes and from the edge. Two long contours begin near
the centre and grow in turn; short ones are added as distractors. One disc is at the beginning of a long contour, the
other at the end of the same (label 1) or of the other one (label 0).

Most attempts at two long contours run into a dead end. Many attempts at many images grow together, each with random
numbers of its own, and an image is the first of its attempts that succeeds: it depends on its seed and number alone.

Shapes: R images or attempts, n dashes that are there, J directions to choose from.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from statespan.data.strokes import Style, Tables, tables

Array: TypeAlias = "np.ndarray[Any, Any]"
TOGETHER = 4096  # attempts that grow together
DRAWN = 512  # images that are drawn together
AGAIN = 5  # times a distractor is tried
PLACES = 32  # places tried for its first dash
NOWHERE = -1e4  # where dashes are that could not be placed
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def images(style: Style, seed: int, numbers: Array) -> tuple[Array, Array]:
    """The images with these numbers.

    Args:
        style: One of ``strokes.STYLES``.
        seed: Of the whole set.
        numbers: (R,) whole numbers; image i is the same whatever else is asked for.

    Returns:
        Images (R, size, size) and labels (R,), both uint8.

    Example:
        >>> from statespan.data.strokes import STYLES
        >>> x, y = images(STYLES[32], seed=0, numbers=np.arange(4))
        >>> x.shape, int(x.max()), bool((images(STYLES[32], 0, np.array([2]))[0][0] == x[2]).all())
        ((4, 32, 32), 255, True)
    """
    keys = _mix(_mix(np.full(len(numbers), seed, np.uint64) + GOLDEN) ^ numbers.astype(np.uint64))
    streams = Streams(keys)
    margin = np.array(style.margins)[streams.below(len(style.margins))]
    out, labels = np.zeros((len(numbers), style.size, style.size), np.uint8), np.zeros(len(numbers), np.uint8)
    for one in style.margins:
        rows = np.flatnonzero(margin == one)
        t = tables(style, one)
        dashes = _contours(t, keys[rows])
        for some in np.array_split(np.arange(len(rows)), -(-len(rows) // DRAWN) or 1):
            out[rows[some]], labels[rows[some]] = _finish(t, streams.of(rows[some]), dashes.of(some))
    return out, labels


class Streams:
    """One stream of uniform random numbers for each row (SplitMix64)."""

    def __init__(self, keys: Array) -> None:
        self.state = keys.copy()

    def of(self, rows: Array) -> Streams:
        """The streams of some rows, which go on by themselves."""
        return Streams(self.state[rows])

    def draw(self, rows: Array | None = None) -> Array:
        """The next number in [0, 1) of each of these streams, or of all."""
        rows = np.arange(len(self.state)) if rows is None else rows
        state = self.state[rows] + GOLDEN
        self.state[rows] = state
        return (_mix(state) >> np.uint64(11)) * 2.0**-53

    def below(self, n: int, rows: Array | None = None) -> Array:
        """The next whole number in 0 … n-1."""
        return (self.draw(rows) * n).astype(int)


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class _Dashes:
    """Dashes (R, n): the pixel of each end, and the direction."""

    def __init__(self, t: Tables, rows: int, n: int) -> None:
        self.t = t
        self.end = np.full((2, rows, n), NOWHERE, np.float32)  # down, right
        self.unit = np.zeros((2, rows, n), np.float32)
        self.direction = np.zeros((rows, n), int)

    def of(self, rows: Array) -> _Dashes:
        """Those of some rows."""
        some = _Dashes(self.t, 0, 0)
        some.end, some.unit, some.direction = self.end[:, rows], self.unit[:, rows], self.direction[rows]
        return some

    def put(self, rows: Array, i: int, end: Array, direction: Array) -> None:
        """Set dash i of some rows; ``end`` is (2, rows)."""
        self.end[:, rows, i], self.unit[:, rows, i] = end, self.t.unit[direction].T
        self.direction[rows, i] = direction

    def first(self, rows: Array, n: int) -> tuple[Array, Array]:
        """Ends and unit vectors (2, rows, n) of the first n dashes."""
        return self.end[:, rows, :n], self.unit[:, rows, :n]


def _from_dash(point: Array, end: Array, unit: Array, length: int) -> Array:
    """Squared distance of points from dashes, all given as (2, …)."""
    down, right = point[0] - end[0], point[1] - end[1]
    along = down * unit[0]
    along += right * unit[1]
    np.minimum(along, 0.0, out=along)
    np.maximum(along, -length, out=along)
    down -= along * unit[0]
    right -= along * unit[1]
    down *= down
    right *= right
    down += right
    return down


def _fits(t: Tables, end: Array, direction: Array, others: tuple[Array, Array], last: int | None) -> Array:
    """Whether dashes (R,) keep their distance from others (R, n), except from the last, and from the edge."""
    length, (other, unit) = t.style.dash, others
    own = t.unit[direction].T[..., None]  # (2, R, 1)
    end = end[..., None]
    tail, other_tail = end - length * own, other - length * unit
    # two dashes are nearest to each other at an end of one of them, or they cross, and then an end is near as well
    far = np.minimum(_from_dash(end, other, unit, length), _from_dash(tail, other, unit, length))
    far = np.minimum(far, _from_dash(other, end, own, length))
    far = np.minimum(far, _from_dash(other_tail, end, own, length))
    if last is not None:
        far[:, last] = np.inf
    free = t.margin + t.style.thickness / 2
    low, high = np.minimum(end, tail)[..., 0], np.maximum(end, tail)[..., 0]
    inside = ((low > free) & (high < t.style.size - 1 - free)).all(0)
    return (far > (2 * free) ** 2).all(1) & inside


def _extend(
    streams: Streams, dashes: _Dashes, rows: Array, pivot: Array, last: int, n: int
) -> tuple[Array, Array, Array, Array]:
    """The dash that follows dash ``last``, of the n that are there.

    Returns:
        Which rows have one, its pivot (2, R), its end (2, R) and its direction.
    """
    t = dashes.t
    before = dashes.direction[rows, last]
    pivot = pivot + t.forward[before].T
    near = t.near[before]
    ends = pivot[..., None] + t.head[near].transpose(2, 0, 1)  # (2, R, J)
    other, unit = dashes.first(rows, n)
    edge = 1 + t.margin
    weights = t.weight[before] * ((ends >= edge) & (ends <= t.style.size - 1 - edge)).all(0)
    good, chosen = np.zeros(len(rows), bool), np.zeros(len(rows), int)
    todo = np.arange(len(rows))
    while len(todo):  # a direction that does not fit is not drawn again
        sums = np.cumsum(weights[todo], 1)
        some = sums[:, -1] > 1e-4
        todo, sums = todo[some], sums[some]
        pick = (sums <= (streams.draw(rows[todo]) * sums[:, -1])[:, None]).sum(1)
        pick = np.minimum(pick, near.shape[1] - 1)
        fits = _fits(t, ends[:, todo, pick], near[todo, pick], (other[:, todo], unit[:, todo]), last)
        good[todo[fits]], chosen[todo[fits]] = True, pick[fits]
        weights[todo, pick] = 0.0
        todo = todo[~fits]
    everyone = np.arange(len(rows))
    return good, pivot, ends[:, everyone, chosen], near[everyone, chosen]


def _contours(t: Tables, keys: Array) -> _Dashes:
    """Both long contours of every image: of dash k, that of the first contour and then that of the second."""
    out = _Dashes(t, len(keys), 2 * t.style.contour)
    todo, attempts = np.arange(len(keys)), 0
    while len(todo):
        copies = max(1, TOGETHER // len(todo))
        who = np.repeat(todo, copies)
        number = attempts + np.tile(np.arange(1, copies + 1), len(todo))
        rows, dashes = _grow(t, Streams(_mix(keys[who] ^ _mix(number.astype(np.uint64)))))
        found, first = np.unique(who[rows], return_index=True)  # of each image its first attempt that succeeded
        won = dashes.of(rows[first])
        out.end[:, found], out.unit[:, found], out.direction[found] = won.end, won.unit, won.direction
        todo, attempts = np.setdiff1d(todo, found, assume_unique=True), attempts + copies
    return out


def _grow(t: Tables, streams: Streams) -> tuple[Array, _Dashes]:
    """One attempt at two long contours in each row: the rows where it succeeded, and the dashes of all."""
    style, count = t.style, len(streams.state)
    dashes, rows = _Dashes(t, count, 2 * style.contour), np.arange(count)
    free = style.size - 4 * style.apart
    begin = np.stack([2 * style.apart + streams.below(free) for _ in range(2)]).astype(np.float32)
    angle = 2 * np.pi * streams.draw()
    pivots = []
    for snake in range(2):
        direction = streams.below(len(t.unit))
        end = begin + t.body[direction].T
        dashes.put(rows, snake, end, direction)
        pivots.append(end + t.back[direction].T)
        begin = begin + np.rint(style.apart * np.stack([np.sin(angle), np.cos(angle)])).astype(np.float32)
    for n in range(2, 2 * style.contour):
        snake = n % 2
        good, pivot, end, direction = _extend(streams, dashes, rows, pivots[snake], n - 2, n)
        pivots[snake], pivots[1 - snake] = pivot[:, good], pivots[1 - snake][:, good]
        rows = rows[good]
        dashes.put(rows, n, end[:, good], direction[good])
    return rows, dashes


def _distractors(t: Tables, streams: Streams, long: _Dashes) -> _Dashes:
    """The dashes with short contours behind them, as many as there was room for."""
    style, first = t.style, 2 * t.style.contour
    everyone = np.arange(len(streams.state))
    dashes = _Dashes(t, len(everyone), first + style.distractors * style.short)
    dashes.end[..., :first], dashes.unit[..., :first], dashes.direction[:, :first] = long.end, long.unit, long.direction
    for at in range(first, dashes.end.shape[2], style.short):
        left = everyone
        for _ in range(AGAIN):
            rows, end, direction = _free(streams, dashes, left, at)
            dashes.put(rows, at, end, direction)
            pivot = end + t.back[direction].T
            for n in range(at + 1, at + style.short):
                good, pivot, end, direction = _extend(streams, dashes, rows, pivot, n - 1, n)
                rows, pivot = rows[good], pivot[:, good]
                dashes.put(rows, n, end[:, good], direction[good])
            left = np.setdiff1d(left, rows, assume_unique=True)
            dashes.end[:, left, at : at + style.short] = NOWHERE
    return dashes


def _free(streams: Streams, dashes: _Dashes, rows: Array, n: int) -> tuple[Array, Array, Array]:
    """The rows with room for one more dash, and its end (2, R) and direction."""
    t = dashes.t
    direction, found = streams.below(len(t.unit), rows), np.full((2, len(rows)), NOWHERE, np.float32)
    todo = np.arange(len(rows))
    for _ in range(PLACES):
        end = np.stack([streams.below(t.style.size, rows[todo]) for _ in range(2)]).astype(np.float32)
        fits = _fits(t, end, direction[todo], dashes.first(rows[todo], n), None)
        found[:, todo[fits]] = end[:, fits]
        todo = todo[~fits]
    good = found[0] != NOWHERE
    return rows[good], found[:, good], direction[good]


def _finish(t: Tables, streams: Streams, long: _Dashes) -> tuple[Array, Array]:
    """Images and labels from the long contours: add the distractors and draw everything."""
    style, everyone = t.style, np.arange(len(streams.state))
    width = style.size + 2 * t.half
    dashes = _distractors(t, streams, long)
    canvas = np.zeros(len(everyone) * width**2, np.float32)
    square = np.arange(-t.half, t.half + 1)
    patch = (square[:, None] * width + square).reshape(-1)

    def draw(rows: Array, end: Array, stamp: Array) -> None:
        y, x = (end[:, rows] + t.half).astype(int)
        places = (rows * width**2 + y * width + x)[:, None] + patch
        canvas[places] = np.maximum(canvas.take(places), stamp)

    for i in range(dashes.end.shape[2]):
        rows = np.flatnonzero(dashes.end[0, :, i] != NOWHERE)
        bright = style.bright[0 if i < 2 * style.contour else 1]
        draw(rows, dashes.end[..., i], bright * t.stamp[dashes.direction[rows, i]])
    label, first = streams.below(2), streams.below(2)
    begin = long.end[..., :2] - t.body[long.direction[:, :2]].transpose(2, 0, 1)
    draw(everyone, begin[:, everyone, first], t.spot)
    draw(everyone, long.end[:, everyone, np.where(label, first, 1 - first) - 2], t.spot)
    pixels = canvas.reshape(-1, width, width)[:, t.half : -t.half, t.half : -t.half]
    pixels = pixels / pixels.max((1, 2), keepdims=True, initial=1e-6)
    return np.rint(255 * pixels).astype(np.uint8), label.astype(np.uint8)
