"""Draws lines and shrinks images exactly as Pillow does, with which the benchmark's images were made.

Points are (down, right). A test compares everything here with Pillow itself, which the library does not need.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from statespan.data.base import Array

LOBES = 3  # of Lanczos' filter
PRECISION_BITS = 22  # of the filter's weights where images are bytes


def line(start: Array, end: Array, thickness: int) -> Array:
    """The pixels (n, 2) of a line between two different points (2,) of whole numbers; its thickness is odd.

    Example:
        >>> line(np.array([5, 5]), np.array([6, 8]), 1).tolist()
        [[5, 5], [5, 6], [6, 7], [6, 8]]
        >>> len(line(np.array([5, 5]), np.array([5, 9]), 3))
        15
    """
    if thickness == 1:
        return start + _thin(end - start)
    if thickness % 2 == 0:
        raise ValueError(f"thickness must be odd, got {thickness}")
    return _thick(start, end, thickness)


def _thin(step: Array) -> Array:
    """The pixels of a line from 0, one for each step along its longer side."""
    steps = int(np.abs(step).max())
    along = np.arange(steps + 1)[:, None] * np.abs(step)
    return np.sign(step) * ((2 * along + steps) // (2 * steps))


def shrink_bytes(image: Array, size: int) -> Array:
    """A square image of 0 and 1 as bytes (size, size), 1 as 255, by Lanczos' filter with weights of 22 bits.

    Example:
        >>> shrink_bytes(np.eye(4, dtype=bool), 2).tolist()
        [[115, 25], [25, 115]]
    """
    weights = filter_weights(len(image), size) * 2.0**PRECISION_BITS
    whole = np.trunc(weights + np.where(weights < 0, -0.5, 0.5)).astype(np.int64)
    across = _to_bytes(255 * image.astype(np.int64) @ whole.T)
    return _to_bytes(whole @ across).astype(np.uint8)


def shrink_floats(image: Array, size: int) -> Array:
    """The same without rounding and clamping: float32, below 0 and above 1 near edges.

    Example:
        >>> shrink_floats(np.eye(4, dtype=bool), 2).astype(float).round(3).tolist()
        [[0.456, 0.066], [0.066, 0.456]]
    """
    weights = filter_weights(len(image), size)
    across = (image @ weights.T).astype(np.float32)
    return (weights @ across).astype(np.float32)


def filter_weights(n: int, size: int) -> Array:
    """Lanczos' filter as a matrix (size, n); rows sum up to 1 at the image's ends, too."""
    scale = n / size
    offset = (np.arange(n)[None] + 0.5) / scale - (np.arange(size)[:, None] + 0.5)
    weights = np.where(np.abs(offset) < LOBES, np.sinc(offset) * np.sinc(offset / LOBES), 0.0)
    return weights / weights.sum(1, keepdims=True)


def _to_bytes(sums: Array) -> Array:
    return np.clip((sums + (1 << (PRECISION_BITS - 1))) >> PRECISION_BITS, 0, 255)


def _thick(start: Array, end: Array, thickness: int) -> Array:
    """The pixels of a parallelogram. They depend on its position: halves are rounded away from row and column 0."""
    step = end - start
    down, right = (_towards_zero(x) for x in (thickness - 1) / 2 * step / np.hypot(*step))
    side = np.array([right, -down])
    corners = [tuple(map(int, corner)) for corner in (start + side, end + side, end - side, start - side)]
    edges = list(zip(corners, [*corners[1:], corners[0]]))
    spans = [(tail[0], *sorted((tail[1], head[1]))) for tail, head in edges if tail[0] == head[0]]
    spans += _filled([_edge(*tail, *head) for tail, head in edges if tail[0] != head[0]])
    return np.array(sorted({(row, x) for row, first, last in spans for x in range(first, last + 1)}))


class Edge(NamedTuple):
    """An edge that is not flat: its beginning, its slope in columns per row, its first and its last row.

    Example:
        >>> Edge(down=0, right=4, slope=np.float32(0.5), top=0, bottom=8).column(6)
        7.0
    """

    down: int
    right: int
    slope: np.float32
    top: int
    bottom: int

    def column(self, row: int) -> float:
        """Where it crosses a row."""
        return float(np.float32(row - self.down) * self.slope + np.float32(self.right))


def _edge(down: int, right: int, to_down: int, to_right: int) -> Edge:
    slope = np.float32(to_right - right) / np.float32(to_down - down)
    return Edge(down, right, slope, min(down, to_down), max(down, to_down))


def _filled(edges: list[Edge]) -> list[tuple[int, int, int]]:
    spans = []
    bottom = max(edge.bottom for edge in edges)
    for row in range(min(edge.top for edge in edges), bottom + 1):
        crossings: list[float] = []
        for i, edge in enumerate(edges):
            if not edge.top <= row <= edge.bottom:
                continue
            if row == edge.bottom < bottom:
                crossings += 2 * [edge.column(row)]  # here one edge ends and the next one begins
            else:
                crossings.append(_at_corner(row, edge, edges[:i]))
        crossings.sort()
        for first, last in zip(crossings[::2], crossings[1::2]):
            spans.append((row, int(_away(first)), _towards_zero(last)))
    return spans


def _at_corner(row: int, edge: Edge, before: list[Edge]) -> float:
    """The column where an edge crosses a row; at a corner with two flat edges to one side, beside their next pixels."""
    crossing = edge.column(row)
    if row not in (edge.top, edge.bottom) or not edge.slope:
        return crossing
    next_row = row - 1 if row == edge.bottom else row + 1
    for other in before:
        is_corner = row in (other.top, other.bottom) and other.slope and _away(crossing) == _away(other.column(row))
        if is_corner and other.top <= next_row <= other.bottom:
            ends = edge.column(next_row), other.column(next_row)
            if crossing > max(ends) + 1:
                return _away(max(ends)) + 1
            if crossing < min(ends) - 1:
                return _away(min(ends)) - 1
            return crossing
    return crossing


def _away(x: float) -> float:
    """Round to the nearest integer, halves away from zero."""
    return float(np.copysign(np.floor(abs(x) + 0.5), x))


def _towards_zero(x: float) -> int:
    """Round to the nearest integer, halves towards zero."""
    return int(np.copysign(np.ceil(abs(x) - 0.5), x))
