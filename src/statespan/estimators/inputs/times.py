"""Converts the times of irregular samples to gaps in units of the usual step.

Shapes: n series, L longest length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from statespan.estimators.inputs.series import Array, Panel


def as_gaps(times: Any, panel: Panel, step: float | None = None) -> tuple[Array, float]:
    """The gaps (n, L) from each sample to the next in units of a step, float32; and the step.

    Times are an array (n, L), one (L,) for all series, or a list of arrays, of numbers or dates. The step is in their
    own units (seconds for dates), by default the median of all gaps. The first sample of a series gets its usual gap,
    and positions behind its end 1.

    Example:
        >>> from statespan.estimators.inputs.series import as_panel
        >>> gaps, step = as_gaps([[0.0, 2.0, 8.0], [1.0, 3.0]], as_panel([[5.0, 6.0, 7.0], [8.0, 9.0]]))
        >>> gaps.tolist(), step
        ([[2.0, 1.0, 3.0], [1.0, 1.0, 1.0]], 2.0)
    """
    n, length = panel.values.shape[:2]
    rows = _rows(times, n)
    gaps = np.ones((n, length))
    for number, row in enumerate(rows):
        if row.shape != (panel.lengths[number],):
            raise ValueError(
                f"times must have one entry per sample, but series {number} has {panel.lengths[number]} samples and "
                f"times of shape {row.shape}"
            )
        if not np.isfinite(row).all():
            raise ValueError(f"times must be finite, but series {number} has one that is not")
        with np.errstate(over="ignore"):
            steps = np.diff(row)
        if (steps < 0).any():
            raise ValueError(
                f"times must not decrease, but those of series {number} do after sample {int((steps < 0).argmax())}"
            )
        gaps[number, 1 : len(row)] = steps
        gaps[number, 0] = np.median(steps[steps > 0]) if (steps > 0).any() else np.nan
    if step is None:
        inside = panel.inside.copy()
        inside[:, 0] = False
        positive = gaps[inside & (gaps > 0)]
        if not len(positive):
            raise ValueError("times must have at least one gap above 0, got none")
        step = float(np.median(positive))
    with np.errstate(over="ignore"):
        gaps = np.where(np.isnan(gaps), 1.0, gaps / step)
        scaled = np.where(panel.inside, gaps, 1.0).astype(np.float32)
    if not np.isfinite(scaled).all():
        number = int((~np.isfinite(scaled)).any(1).argmax())
        raise ValueError(f"times must have gaps near the usual one, {step:g}, but series {number} has others")
    return scaled, step


def _rows(times: Any, n: int) -> list[Array]:
    if isinstance(times, (list, tuple)) and len(times) and not np.isscalar(times[0]):
        rows = [_numbers(row) for row in times]
    else:
        array = _numbers(times)
        rows = [array] * n if array.ndim == 1 else list(array)
    if len(rows) != n:
        raise ValueError(f"times must have one entry for each of the {n} series, got {len(rows)}")
    return rows


def _numbers(times: Any) -> Array:
    if np.ma.is_masked(times):
        raise ValueError("times must have one entry per sample, got masked ones; drop those samples")
    array = np.asarray(times)
    if array.dtype.kind == "M":
        return (array.astype("datetime64[us]") - np.datetime64("1970-01-01", "us")) / np.timedelta64(1, "s")
    if array.dtype.kind not in "iuf":
        raise TypeError(f"times must be numbers or dates, got {array.dtype}")
    return array.astype(np.float64)
