"""Whether a dash of a Pathfinder image has room, by lookup in tables of pairs instead of drawing.

The coverage of a pixel by dashes is the largest of their coverages. So a new dash fits if it fits beside each of the
others alone, which depends on the two directions and the distance only.

Shapes: R images, n dashes already placed, B kinds of dashes with different stamps, one of which takes nothing.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from statespan.data.base import Array
from statespan.papers.datasets.pathfinder.strokes import DEGREES, Style, Tables, disc, step, tables

TAKEN = 255 * 9 // 5  # two dashes together cover less than this of a pixel
DARK = TAKEN - 255  # so each of two that clash covers at least this
FREE = 255 * 3 // 10  # largest coverage of the pixels that a first dash needs
NOWHERE = -1  # direction of a dash that is not placed


class Clearance:
    """The tables of one style and margin, from the tables that dashes are drawn with.

    Example:
        >>> from statespan.papers.datasets.pathfinder.strokes import style_of
        >>> room = clearance(style_of(32, 14), 1)
        >>> room.first_head(np.array([0]), np.array([[16, 16]])).shape
        (1, 2)
    """

    def __init__(self, t: Tables) -> None:
        self.t, side = t, 2 * t.half + 1
        stamps, kind = np.unique(np.concatenate([t.space, np.zeros_like(t.space[:1])]), axis=0, return_inverse=True)
        self.kind = kind.reshape(-1).astype(np.intp)  # (K + 1,) of each direction; the last, NOWHERE, takes nothing
        space = stamps.reshape(-1, side, side)
        self.space = Pairs(space, np.abs(t.solid).max())
        wide = np.pad(space, ((0, 0), *[(t.margin, t.margin)] * 2))
        around = np.stack([np.roll(wide, tuple(offset), (1, 2)) for offset in disc(t.margin)])
        self.near = Pairs(around.max(0), np.abs(t.head).max())  # the most that is taken of a pixel and those around it
        onward = t.space[DEGREES:].reshape(-1, side, side)
        self.clash = Pairs(np.concatenate([_clashes(stamp, space) for stamp in onward]), 0)  # J tables of B kinds each
        touch = [np.argwhere(stamp >= DARK) - t.half for stamp in onward]  # the image's edge is taken
        self.least = np.stack([points.min(0) for points in touch])  # (J, 2)
        self.greatest = np.stack([points.max(0) for points in touch])

    def fits(self, onward: Array, head: Array, at: Array, kind: Array) -> Array:
        """Whether there is room for continuing dashes (R,), with heads (R, 2), beside those at (R, n, 2)."""
        size = self.t.style.size
        inside = ((head + self.least[onward] > 0) & (head + self.greatest[onward] < size - 1)).all(1)
        kinds = len(self.clash.table) // len(self.least)
        pair = onward[:, None] * kinds + kind
        return inside & (self.clash.most(head, np.zeros((len(head), 1, 2), int), at, pair)[:, 0] == 0)

    def around(self, pivot: Array, steps: Array, at: Array, kind: Array) -> Array:
        """The maximum coverage, in 255ths, of the pixels (R, m, 2) steps from a pivot (R, 2) and their neighbours."""
        points, margin = pivot[:, None] + steps, self.t.margin
        edge = ((points <= margin) | (points >= self.t.style.size - 1 - margin)).any(-1)
        return np.where(edge, 255, self.near.most(pivot, steps, at, kind))

    def free(self, degree: Array, tail: Array, at: Array, kind: Array) -> Array:
        """Whether there is room for first dashes with tails (R, 2), in directions of whole degrees (R,)."""
        size, offsets = self.t.style.size, self.t.solid[degree]
        points = tail[:, None] + offsets
        beyond = ((points < 0) | (points >= size)).any(-1)
        edge = ((points == 0) | (points == size - 1)).any(-1)
        coverage = np.where(edge, 255, self.space.most(tail, offsets, at, kind))
        return np.asarray(((coverage <= FREE) | beyond).all(1))

    def first_head(self, degree: Array, tail: Array) -> Array:
        """Heads (R, 2) of first dashes."""
        return step(tail, self.t.body[degree])

    def first_pivot(self, degree: Array, tail: Array) -> Array:
        """Pivots (R, 2) of first dashes."""
        return step(self.first_head(degree, tail), self.t.back[degree])

    def inside(self, degree: Array, tail: Array) -> Array:
        """Whether heads and pivots of first dashes are in the image; if not, the benchmark redraws."""
        ends = np.stack([self.first_head(degree, tail), self.first_pivot(degree, tail)], 1)
        return np.asarray(((ends >= 0) & (ends < self.t.style.size)).all((1, 2)))


@lru_cache
def clearance(style: Style, margin: int) -> Clearance:
    """The tables of a style."""
    return Clearance(tables(style, margin))


class Pairs:
    """Tables (B, side, side), one per kind of dash: its effect on a pixel by the pixel's offset.

    The dash is in the middle of a table; farther away it does nothing. ``reach`` limits the steps of :meth:`most`.

    Example:
        >>> pairs = Pairs(np.full((1, 3, 3), 9), reach=2)  # one kind of dash, which covers 3 x 3 pixels
        >>> place, at = np.array([[10, 10]]), np.array([[[11, 11]]])
        >>> pairs.most(place, np.array([[[0, 0], [2, 0], [-2, 0]]]), at, np.array([[0]]))
        array([[9, 9, 0]])
    """

    def __init__(self, tables: Array, reach: int) -> None:
        pad = 2 * int(reach) + 1  # a border of zeros, so that places may be clipped before steps are added
        self.table = np.pad(tables, ((0, 0), (pad, pad), (pad, pad)))
        self.side = self.table.shape[-1]
        self.limit = tables.shape[-1] // 2 + int(reach) + 1

    def most(self, place: Array, steps: Array, at: Array, kind: Array) -> Array:
        """The largest entry (R, m) for the pixels at steps (R, m, 2) from places (R, 2).

        The dashes are at (R, n, 2), of kinds (R, n); without dashes all is 0.
        """
        apart = np.clip(place[:, None] - at, -self.limit, self.limit) + self.side // 2
        first = (kind * self.side + apart[..., 0]) * self.side + apart[..., 1]
        onward = steps[..., 0].astype(np.intp) * self.side + steps[..., 1]
        entries = self.table.reshape(-1).take(first.T[..., None] + onward)  # (n, R, m): quickest over the first axis
        return np.asarray(entries.max(0, initial=0))


def _clashes(stamp: Array, others: Array) -> Array:
    """For each of the others (B, p, p), the offsets at which ``stamp`` would clash with it, (B, 4h + 3, 4h + 3)."""
    side = stamp.shape[0]
    out = np.zeros((len(others), 2 * side + 1, 2 * side + 1), bool)
    points = np.argwhere(stamp >= DARK)
    dark = {taken: others >= TAKEN - taken for taken in np.unique(stamp[tuple(points.T)]).astype(int)}
    for down, right in points:  # from the other's place to its points
        out[:, side - down : 2 * side - down, side - right : 2 * side - right] |= dark[stamp[down, right]]
    return out
