"""What the Pathfinder images are drawn with: their sizes, and tables of steps and stamps for each direction.

Shapes: K directions, J of them near another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


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


@dataclass(frozen=True)
class Tables:
    """What depends on the style and the margin only. A dash is known by the pixel of its end and its direction."""

    style: Style
    margin: int
    unit: Array  # (K, 2) down and right of each direction
    forward: Array  # (K, 2) from a pivot to the next one; a dash turns around its pivot
    head: Array  # (K, 2) from a pivot to the end of its dash
    back: Array  # (K, 2) from the end of a dash to its pivot
    body: Array  # (K, 2) from the beginning of a dash to its end
    near: Array  # (K, J) the directions that may follow a direction
    weight: Array  # (K, J) and how likely they are
    half: int  # stamps have 2 · half + 1 pixels each way
    stamp: Array  # (K, p) of a dash, around its end
    spot: Array  # (p,) of a disc


@lru_cache
def tables(style: Style, margin: int) -> Tables:
    """The tables of a style."""
    reach = style.dash + margin
    fine = np.linspace(-np.pi, np.pi, 720, endpoint=False)
    around = np.unique(np.rint(reach * np.stack([np.sin(fine), np.cos(fine)], 1)), axis=0)
    angle = np.arctan2(around[:, 0], around[:, 1])
    unit = np.stack([np.sin(angle), np.cos(angle)], 1)
    turn = np.abs((angle[None] - angle[:, None] + np.pi) % (2 * np.pi) - np.pi)
    weight = np.cos(np.minimum(style.continuity * turn, np.pi / 2)) ** 2
    near = np.argsort(turn, 1, kind="stable")[:, : int((weight > 1e-9).sum(1).max())]
    half = 2 + int(np.ceil(max(style.dash + style.thickness, style.disc)))
    thick = style.thickness / 2
    return Tables(
        style,
        margin,
        unit=unit.astype(np.float32),
        forward=np.rint((style.dash + 2 * margin) * unit).astype(np.float32),
        head=around.astype(np.float32),
        back=np.rint(-reach * unit).astype(np.float32),
        body=np.rint(style.dash * unit).astype(np.float32),
        near=near,
        weight=np.take_along_axis(weight, near, 1),
        half=half,
        stamp=np.stack([_smooth(half, lambda p, u=u: _distance(p, u, style.dash) <= thick) for u in unit]),  # type: ignore[misc]
        spot=_smooth(half, lambda p: (p**2).sum(-1) <= style.disc**2),
    )


def _distance(points: Array, unit: Array, length: float) -> Array:
    """Of points (…, 2) from the dash that ends at 0 and comes from -length · unit."""
    along = np.clip(points @ unit, -length, 0.0)
    return np.sqrt(((points - along[..., None] * unit) ** 2).sum(-1))


def _smooth(half: int, inside: Callable[[Array], Array], fine: int = 8) -> Array:
    """A shape on the pixels -half … half, smoothed by Lanczos' filter as the benchmark's drawing is."""
    at = (np.arange((2 * half + 1) * fine) + 0.5) / fine - half - 0.5
    shape = inside(np.stack(np.meshgrid(at, at, indexing="ij"), -1)).astype(float)
    off = at[None] - np.arange(-half, half + 1)[:, None]
    weights = np.where(np.abs(off) < 3, np.sinc(off) * np.sinc(off / 3), 0.0)
    weights /= weights.sum(1, keepdims=True)
    return np.clip(weights @ shape @ weights.T, 0.0, 1.0).reshape(-1).astype(np.float32)
