"""Whether there is room for a dash of a Pathfinder image: looked up in tables of pairs, no image is drawn for it.

What dashes take of a pixel is the most that one of them takes. So a new dash fits if it fits with each of the others
alone, which depends on two directions and on how far apart the dashes are.

Shapes: R images, n dashes that are there, B kinds of dashes with different stamps, one of which takes nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from statespan.data.strokes import DEGREES, Style, Tables, disc, tables

Array: TypeAlias = "np.ndarray[Any, Any]"
TAKEN = 255 * 9 // 5  # two dashes together take less than this of a pixel
FREE = 255 * 3 // 10  # of the pixels that a first dash needs, no more is taken
NOWHERE = -1  # direction of a dash that is not there


class Room:
    """The tables of one style and margin.

    Args:
        t: What dashes are drawn with.
    """

    def __init__(self, t: Tables) -> None:
        self.t, side = t, 2 * t.half + 1
        stamps, kind = np.unique(np.concatenate([t.space, np.zeros_like(t.space[:1])]), axis=0, return_inverse=True)
        self.kind = kind.reshape(-1).astype(np.int32)  # (K + 1,) of each direction; the last, NOWHERE, takes nothing
        space = stamps.reshape(-1, side, side)
        self.space = np.pad(space, ((0, 0), (1, 1), (1, 1)))  # (B, …); the edges of all tables say "far away"
        wide = np.pad(space, ((0, 0), *[(t.margin + 1,) * 2] * 2))
        near = np.stack([np.roll(wide, tuple(offset), (1, 2)) for offset in disc(t.margin)])
        self.near = near.max(0)  # the most that is taken of a pixel and those around it
        onward = t.space[DEGREES:].reshape(-1, side, side)
        self.clash = np.stack([_clashes(one, space) for one in onward])  # (J, B, …)
        touch = [np.argwhere(one >= TAKEN - 255) - t.half for one in onward]  # the image's edge is taken
        self.low, self.high = (np.stack([f(points, 0) for points in touch]) for f in (np.min, np.max))  # (J, 2)

    def fits(self, onward: Array, head: Array, at: Array, kind: Array) -> Array:
        """Whether there is room for dashes that go on (R,), with heads (R, 2), beside those at (R, n, 2)."""
        size = self.t.style.size
        inside = ((head + self.low[onward] > 0) & (head + self.high[onward] < size - 1)).all(1)
        table = self.clash.reshape(-1, *self.clash.shape[2:])
        pair = onward[:, None] * np.int32(self.clash.shape[1]) + kind
        return inside & (_most(table, head[:, None], at, pair)[:, 0] == 0)

    def around(self, points: Array, at: Array, kind: Array) -> Array:
        """The most that is taken, in 255ths, of points (R, m, 2) and the pixels around them."""
        edge = ((points <= self.t.margin) | (points >= self.t.style.size - 1 - self.t.margin)).any(-1)
        return np.where(edge, 255, _most(self.near, points, at, kind))

    def free(self, degree: Array, tail: Array, at: Array, kind: Array) -> Array:
        """Whether a contour may begin at tails (R, 2) in directions of whole degrees (R,)."""
        t, size = self.t, self.t.style.size
        points = tail[:, None] + t.solid[degree]
        beyond = ((points < 0) | (points >= size)).any(-1)
        edge = ((points == 0) | (points == size - 1)).any(-1)
        taken = np.where(edge, 255, _most(self.space, points, at, kind))
        head = tail + t.body[degree]
        ends = np.stack([head, head + t.back[degree]], 1)
        inside = ((ends >= 0) & (ends < size)).all((1, 2))
        return np.logical_and(((taken <= FREE) | beyond).all(1), inside)


@lru_cache
def room(style: Style, margin: int) -> Room:
    """The tables of a style."""
    return Room(tables(style, margin))


def _most(table: Array, points: Array, at: Array, kind: Array) -> Array:
    """The largest entry for points (R, m, 2) and dashes (R, n, 2), whose kinds are (R, n); 0 if there are none."""
    side = np.int32(table.shape[-1])
    place = kind.T[..., None] * side  # (n, R, m): the longest sums are over the first axis
    for i in range(2):
        off = points[None, ..., i] - at.transpose(2, 1, 0)[i][..., None]
        off += side // 2
        np.minimum(off, side - 1, out=off)
        np.maximum(off, 0, out=off)
        off += place
        place = off * side if i == 0 else off
    return table.reshape(-1).take(place).max(0, initial=0)


def _clashes(one: Array, others: Array) -> Array:
    """For each of the others (B, p, p), how far from it ``one`` must not be, as points: (B, 4h + 3, 4h + 3)."""
    half = one.shape[0] // 2
    out = np.zeros((len(others), 4 * half + 3, 4 * half + 3), bool)
    dark = TAKEN - 255
    own = np.argwhere(one >= dark)
    for clash, other in zip(out, others):
        theirs = np.argwhere(other >= dark)
        both = one[tuple(own.T)].astype(int)[:, None] + other[tuple(theirs.T)]
        i, j = np.nonzero(both >= TAKEN)
        clash[tuple((theirs[j] - own[i]).T + 2 * half + 1)] = True  # from the other's place to its own
    return out
