"""One style for all pictures: colours that colour-blind people can tell apart, labelled axes, small files.

Needs matplotlib, which is imported when something is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from statespan._extras import require

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c8c")
"""Okabe and Ito's colours, without the yellow that is hard to see on white."""
GREY = "#666666"
SIGNED = "PuOr_r"
"""The colour map of signed numbers."""
FORMATS = ("png", "svg")
_SMALL = 8


def figure(width: float = 8.0, height: float = 3.2) -> Any:
    """An empty figure, its size in inches."""
    require("a plot needs", "plot", "matplotlib")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def panels(count: int, columns: int = 3, *, width: float = 9.0, height: float = 2.5, **options: Any) -> tuple[Any, Any]:
    """A figure and ``count`` axes in rows of at most ``columns``, of ``height`` inches each."""
    columns = min(columns, count)
    rows = -(-count // columns)
    grid = figure(width, 0.4 + height * rows)
    axes = grid.subplots(rows, columns, squeeze=False, **options).ravel()
    for unused in axes[count:]:
        unused.set_visible(False)
    return grid, axes[:count]


def tidy(axes: Any, x: str, y: str, title: str = "", *, legend: bool = False, grid: bool = True) -> None:
    """Labels, a quiet grid, no box."""
    axes.set_xlabel(x, fontsize=_SMALL)
    axes.set_ylabel(y, fontsize=_SMALL)
    if title:
        axes.set_title(title, fontsize=_SMALL + 1, loc="left")
    axes.tick_params(labelsize=_SMALL - 1, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(color="#e4e4e4", linewidth=0.6)
    if legend and axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=_SMALL - 1)


def title(figure: Any, text: str, below: str = "") -> None:
    """A title for the whole figure, and its source in grey below it; both are wrapped to the figure's width."""
    figure.suptitle(text, fontsize=10, fontweight="bold", wrap=True)
    if below:
        figure.supxlabel(below, fontsize=7, color=GREY, wrap=True)


def shades(count: int) -> list[Any]:
    """Colours for ordered items, from dark to light."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * number / max(1, count - 1)) for number in range(count)]


def colors() -> Iterator[str]:
    """Cycle through the colours endlessly."""
    return cycle(COLORS)


def image(axes: Any, values: Any, largest: float | None = None) -> Any:
    """A matrix of signed numbers as a picture, white at 0."""
    top = float(abs(values).max()) if largest is None else largest
    top = top or 1.0
    axes.set_xticks([])
    axes.set_yticks([])
    return axes.imshow(values, cmap=SIGNED, vmin=-top, vmax=top, interpolation="nearest")


def content(figure: Any, kind: str = "png") -> bytes:
    """A figure as the bytes of a file, one of :data:`FORMATS`; the same figure gives the same bytes."""
    import matplotlib

    if kind not in FORMATS:
        raise ValueError(f"kind must be one of {', '.join(FORMATS)}, got {kind!r}")
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "statespan", "svg.fonttype": "none"}):
        # a date or a version in the file would make it differ every time
        metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"Date": None, "Creator": "statespan"}
        small: dict[str, Any] = {"pil_kwargs": {"compress_level": 9}} if kind == "png" else {}
        figure.savefig(buffer, format=kind, dpi=110, metadata=metadata, **small)
    return buffer.getvalue()


def targets(out: Path) -> list[Path]:
    """The files to write: the one named, or one of each kind if it has no ending.

    Example:
        >>> [path.name for path in targets(Path("kernels"))]
        ['kernels.png', 'kernels.svg']
        >>> targets(Path("kernels.pdf"))
        Traceback (most recent call last):
        ...
        ValueError: the picture's file must end in .png or .svg, or have no ending for both, got kernels.pdf
    """
    ending = out.suffix.lower().removeprefix(".")
    if not ending:
        return [out.with_name(f"{out.name}.{kind}") for kind in FORMATS]
    if ending not in FORMATS:
        raise ValueError(f"the picture's file must end in .png or .svg, or have no ending for both, got {out}")
    return [out]
