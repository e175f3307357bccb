"""Images of the Pathfinder task: dashed contours and two discs. Do the discs mark the two ends of one contour?

A contour is a chain of dashes. Each new dash begins behind a gap at the end of the last one, in a direction drawn with
weights cos² of the turn, and needs space that the dashes before it have not taken. Two long contours begin near the
centre and grow in turn; short ones are added as distractors. One disc is at the beginning of a long contour, the other
at the end of the same (label 1) or of the other one (label 0).

The rules are the benchmark's, with what makes its images hard: space is counted in pixels, so that contours pass each
other as near as two pixels; and the newest dash of a contour takes no space until the next one is placed, so that the
tips of the two may cross, and a distractor may cross the end of the first.

So are its quirks, which its release has, too. Its search for the place of a first dash fails in most directions at
32 x 32 (``works`` in ``strokes.py``): the first contour begins to the upper left, and of ten distractors two are
placed. Long contours and distractors are scaled to 1 before the discs, which are brighter.

Most attempts at two long contours run into a dead end. Many attempts at many images grow together, each with random
numbers of its own, and an image is the first of its attempts that succeeds: it depends on its seed and number alone.

Shapes: R images or attempts, n dashes already placed, m directions to choose from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from statespan.data.base import Array
from statespan.papers.datasets.pathfinder.clearance import NOWHERE, Clearance, clearance
from statespan.papers.datasets.pathfinder.strokes import DEGREES, Style, fine_disc, step

TOGETHER = 2048  # attempts that grow together
DRAWN = 256  # images that are drawn together
TRIES = 3  # directions tried for a dash
AGAIN = 5  # times a distractor is tried
PLACES = 256  # places tried at random for its first dash before all are looked at
ALL = slice(None)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def images(style: Style, seed: int, numbers: Array) -> tuple[Array, Array]:
    """The images (R, size, size) with these numbers (R,), and their labels (R,), both uint8.

    The style is one of ``strokes.STYLES``, the seed that of the whole set. An image depends on its seed and number
    alone.

    Example:
        >>> from statespan.papers.datasets.pathfinder.strokes import STYLES
        >>> x, y = images(STYLES[32], seed=0, numbers=np.arange(4))
        >>> x.shape, int(x.max()), bool((images(STYLES[32], 0, np.array([2]))[0][0] == x[2]).all())
        ((4, 32, 32), 255, True)
    """
    keys = _mix(_mix(np.full(len(numbers), seed, np.uint64) + GOLDEN) ^ numbers.astype(np.uint64))
    streams = Streams(keys)
    margin = np.array(style.margins)[streams.below(len(style.margins))]
    out, labels = np.zeros((len(numbers), style.size, style.size), np.uint8), np.zeros(len(numbers), np.uint8)
    for free in np.unique(margin).tolist():
        rows = np.flatnonzero(margin == free)
        room = clearance(style, free)
        long = contours(room, keys[rows])
        for part in np.array_split(np.arange(len(rows)), -(-len(rows) // DRAWN)):
            out[rows[part]], labels[rows[part]] = finish(room, streams.of(rows[part]), long.these(part))
    return out, labels


class Streams:
    """One stream of uniform random numbers for each row (SplitMix64).

    Example:
        >>> streams = Streams(np.array([1, 2], np.uint64))
        >>> first = streams.draw()
        >>> bool((Streams(np.array([1, 2], np.uint64)).draw() == first).all()), bool((streams.draw() == first).any())
        (True, False)
    """

    def __init__(self, keys: Array) -> None:
        self.state = keys.copy()

    def of(self, rows: Array) -> Streams:
        """The streams of some rows, which continue independently."""
        return Streams(self.state[rows])

    def draw(self, rows: Array | None = None) -> Array:
        """Draw the next number in [0, 1) from each of these streams, or from all."""
        rows = np.arange(len(self.state)) if rows is None else rows
        state = self.state[rows] + GOLDEN
        self.state[rows] = state
        return (_mix(state) >> np.uint64(11)) * 2.0**-53

    def below(self, n: int, rows: Array | None = None) -> Array:
        """Draw the next integer in 0 … n-1."""
        return (self.draw(rows) * n).astype(int)


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Dashes(NamedTuple):
    """Dashes (R, n) by reference pixel: the tail of a contour's first dash, the head of all others.

    Example:
        >>> dashes = no_dashes(rows=2, n=3)
        >>> dashes.put(np.array([1]), 0, np.array([5, 6]), np.array([90]))
        >>> dashes.at[1, 0], dashes.these(np.array([1])).direction.shape
        (array([5, 6], dtype=int32), (1, 3))
    """

    at: Array  # (R, n, 2) down, right
    direction: Array  # (R, n)

    def put(self, rows: Array, i: int | slice, at: Array, direction: Array) -> None:
        """Set dash i of some rows."""
        self.at[rows, i], self.direction[rows, i] = at, direction

    def these(self, rows: Array, which: slice | Array = ALL) -> Dashes:
        """Some dashes of some rows."""
        return Dashes(self.at[rows][:, which], self.direction[rows][:, which])


def no_dashes(rows: int, n: int) -> Dashes:
    """Dashes still to be placed."""
    return Dashes(np.zeros((rows, n, 2), np.int32), np.full((rows, n), NOWHERE))


def contours(room: Clearance, keys: Array) -> Dashes:
    """Both long contours of every image, interleaved: dash k of the first, then dash k of the second."""
    out = no_dashes(len(keys), 2 * room.t.style.contour)
    todo, attempts = np.arange(len(keys)), 0
    while len(todo):
        copies = max(1, TOGETHER // len(todo))
        image = np.repeat(todo, copies)
        number = attempts + np.tile(np.arange(1, copies + 1), len(todo))
        rows, dashes = _grow(room, Streams(_mix(keys[image] ^ _mix(number.astype(np.uint64)))))
        done, first = np.unique(image[rows], return_index=True)  # of each image its first attempt that succeeded
        out.put(done, ALL, *dashes.these(rows[first]))
        todo, attempts = np.setdiff1d(todo, done, assume_unique=True), attempts + copies
    return out


def _grow(room: Clearance, streams: Streams) -> tuple[Array, Dashes]:
    """Attempt two long contours in each row: returns the rows that succeeded, and the dashes of all."""
    t, style = room.t, room.t.style
    dashes = no_dashes(len(streams.state), 2 * style.contour)
    rows = np.arange(len(streams.state))
    degree = t.starts[streams.below(len(t.starts))]
    tail = t.begin[degree, (t.begins[degree] * streams.draw()).astype(int)]
    dashes.put(rows, 0, tail, degree)
    tail = np.rint(tail + t.apart[streams.below(DEGREES)]).astype(np.int32)  # halves may go either way
    dashes.put(rows, 1, tail, streams.below(DEGREES))
    pivot, other = (room.first_pivot(dashes.direction[:, i], dashes.at[:, i]) for i in range(2))
    for n in range(2, 2 * style.contour):
        # of those before, the newest dash of either contour takes no room yet
        others = dashes.these(rows, slice(n - 2))
        good, pivot, at, direction = _extend(
            room, streams, rows, pivot=pivot, before=dashes.direction[rows, n - 2], others=others
        )
        rows, pivot, other = rows[good], pivot[good], other[good]
        dashes.put(rows, n, at[good], direction[good])
        pivot, other = other, pivot
    return rows, dashes


def _extend(
    room: Clearance, streams: Streams, rows: Array, *, pivot: Array, before: Array, others: Dashes
) -> tuple[Array, Array, Array, Array]:
    """The dash that follows one of direction ``before``, beside others (R, n).

    Returns which rows have one, its pivot (R, 2), its head (R, 2) and its direction.
    """
    t, at, kind = room.t, others.at, room.kind[others.direction]
    pivot = step(pivot, t.forward[before])
    near = t.near[before]
    heads = pivot[:, None] + t.head[before]
    sums = np.cumsum(t.weight[before] * (1 - room.around(pivot, t.head[before], at, kind) / 255), 1)
    good, chosen = np.zeros(len(rows), bool), np.zeros(len(rows), int)
    todo = np.flatnonzero(sums[:, -1] > 1e-4)
    for _ in range(TRIES):
        drawn = streams.draw(rows[todo]) * sums[todo, -1]
        pick = np.minimum((sums[todo] <= drawn[:, None]).sum(1), near.shape[1] - 1)
        fits = room.fits(near[todo, pick], heads[todo, pick], at[todo], kind[todo])
        good[todo[fits]], chosen[todo[fits]] = True, pick[fits]
        todo = todo[~fits]
    everyone = np.arange(len(rows))
    return good, pivot, heads[everyone, chosen], DEGREES + near[everyone, chosen]


def with_distractors(room: Clearance, streams: Streams, long: Dashes) -> Dashes:
    """The dashes followed by those of as many short contours as there was room for."""
    style, count = room.t.style, 2 * room.t.style.contour
    everyone = np.arange(len(streams.state))
    dashes = no_dashes(len(everyone), count + style.distractors * style.short)
    dashes.put(everyone, slice(count), long.at, long.direction)
    for first in range(count, dashes.at.shape[1], style.short):
        todo = everyone
        for _ in range(AGAIN):
            if len(todo):
                todo = _short(room, streams, dashes, rows=todo, first=first)
    return dashes


def _short(room: Clearance, streams: Streams, dashes: Dashes, *, rows: Array, first: int) -> Array:
    """Attempt a short contour in each row, from dash ``first`` on: returns the rows that failed."""
    style, everyone = room.t.style, rows
    counted = np.array([i for i in range(first) if i != 2 * style.contour - 2])  # the first contour's newest does not
    degree, tail = _begin(room, streams, rows, dashes.these(rows, counted))
    has_place = degree != NOWHERE
    rows, degree, tail = rows[has_place], degree[has_place], tail[has_place]
    dashes.put(rows, first, tail, degree)
    pivot = room.first_pivot(degree, tail)
    for n in range(first + 1, first + style.short):
        others = dashes.these(rows, np.concatenate([counted, np.arange(first, n - 1)]))
        good, pivot, at, direction = _extend(
            room, streams, rows, pivot=pivot, before=dashes.direction[rows, n - 1], others=others
        )
        rows, pivot = rows[good], pivot[good]
        dashes.put(rows, n, at[good], direction[good])
    failed = np.setdiff1d(everyone, rows, assume_unique=True)
    dashes.direction[failed, first : first + style.short] = NOWHERE
    return failed


def _begin(room: Clearance, streams: Streams, rows: Array, others: Dashes) -> tuple[Array, Array]:
    """A direction and a position where a contour may begin, for each row; no direction if none was found."""
    at, kind = others.at, room.kind[others.direction]
    chosen, tail = np.full(len(rows), NOWHERE), np.zeros((len(rows), 2), np.int32)
    todo = np.arange(len(rows))
    for _ in range(TRIES):
        degree = streams.below(DEGREES, rows[todo])
        todo, degree = todo[room.t.works[degree]], degree[room.t.works[degree]]
        has_place, place = _place(room, streams, rows[todo], degree=degree, others=(at[todo], kind[todo]))
        todo, degree, place = todo[has_place], degree[has_place], place[has_place]
        good = room.inside(degree, place)
        chosen[todo[good]], tail[todo[good]] = degree[good], place[good]
        todo = todo[~good]
    return chosen, tail


def _place(
    room: Clearance, streams: Streams, rows: Array, *, degree: Array, others: tuple[Array, Array]
) -> tuple[Array, Array]:
    """A uniformly drawn position (R, 2) with room for a first dash, and whether there is any."""
    size, (at, kind) = room.t.style.size, others
    has_place, tail = np.zeros(len(rows), bool), np.zeros((len(rows), 2), np.int32)
    todo = np.arange(len(rows))
    for _ in range(PLACES):
        if not len(todo):
            break
        drawn = np.stack([streams.below(size, rows[todo]) for _ in range(2)], 1).astype(np.int32)
        fits = room.free(degree[todo], drawn, at[todo], kind[todo])
        tail[todo[fits]], has_place[todo[fits]] = drawn[fits], True
        todo = todo[~fits]
    for i in todo:  # few places are free: look at all of them
        number = streams.draw(rows[[i]])
        free = _free_places(room, degree[i], at[i], kind[i])
        if len(free):
            tail[i], has_place[i] = free[int(number[0] * len(free))], True
    return has_place, tail


def _free_places(room: Clearance, degree: int, at: Array, kind: Array) -> Array:
    """All positions (n, 2) with room for a first dash in one image."""
    size = room.t.style.size
    places = np.argwhere(np.ones((size, size), bool)).astype(np.int32)
    each = [np.broadcast_to(array, (len(places), *array.shape)) for array in (at, kind)]
    return places[room.free(np.full(len(places), degree), places, *each)]


def finish(room: Clearance, streams: Streams, long: Dashes) -> tuple[Array, Array]:
    """Make images and labels from the long contours: add the distractors and draw everything."""
    t, style, everyone = room.t, room.t.style, np.arange(len(streams.state))
    width = style.size + 2 * t.half
    dashes = with_distractors(room, streams, long)
    canvas = np.zeros(len(everyone) * width**2, np.float32)
    square = np.arange(-t.half, t.half + 1)
    patch = (square[:, None] * width + square).reshape(-1)

    def draw(rows: Array, at: Array, stamp: Array) -> None:
        places = (rows * width**2 + (at + t.half) @ (width, 1))[:, None] + patch
        canvas[places] = np.maximum(canvas.take(places), stamp)

    for i in range(dashes.at.shape[1]):
        rows = np.flatnonzero(dashes.direction[:, i] != NOWHERE)
        bright = np.float32(style.bright[0 if i < 2 * style.contour else 1])
        draw(rows, dashes.at[rows, i], bright * t.line[dashes.direction[rows, i]])
    pixels = canvas.reshape(-1, width, width)[:, t.half : -t.half, t.half : -t.half]  # what is beyond counts nowhere
    pixels /= pixels.max((1, 2), keepdims=True)  # so discs are as much brighter as their filter overshoots
    label, first = streams.below(2), streams.below(2)
    for tip in (long.at[everyone, first], long.at[everyone, np.where(label, first, 1 - first) - 2]):
        spot = t.spot[tip[:, 0]] @ fine_disc(style) @ t.spot[tip[:, 1]].transpose(0, 2, 1)
        draw(everyone, tip, spot.reshape(len(tip), -1))
    pixels = pixels / pixels.max((1, 2), keepdims=True).astype(float)
    return (255 * pixels).astype(np.uint8), label.astype(np.uint8)
