"""The path of a batch in docs/architecture.md: its table, and the picture (``python -m tests.hops``)."""

import re
from typing import NamedTuple

from statespan import _plotting
from tests.tree import ROOT

PAGE = ROOT / "docs" / "architecture.md"
PICTURE = PAGE.with_suffix(".png")
ROW = re.compile(r"^\| (\d+) \| `([\w/]+\.py)` \| (·*) ?`([\w.]+)` \| (.+) \|$", re.MULTILINE)
ROOMS = ("cli", "train", "data", "papers", "models", "nn", "ops")


class Hop(NamedTuple):
    """A function that the batch passes."""

    number: int
    file: str
    depth: int
    name: str
    what: str


def hops():
    """The rows of the table."""
    return [
        Hop(int(number), file, len(dots), name, what)
        for number, file, dots, name, what in ROW.findall(PAGE.read_text(encoding="utf-8"))
    ]


def draw():
    """The hops from top to bottom, each in the column of its folder."""
    figure = _plotting.figure(9, 6.5)
    axes = figure.subplots()
    places = [(ROOMS.index(hop.file.partition("/")[0]), hop.number) for hop in hops()]
    axes.plot(*zip(*places), color=_plotting.GREY, linewidth=0.8, zorder=1)
    for (x, y), hop in zip(places, hops()):
        axes.scatter(x, y, s=30, color=_plotting.COLORS[x], zorder=2)
        axes.annotate(
            f"{hop.number}  {hop.name}", (x, y), xytext=(7, 0), textcoords="offset points", fontsize=7.5, va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85},
        )  # fmt: skip
    axes.set_xlim(-0.3, len(ROOMS) + 0.1)
    axes.set_ylim(len(places) + 0.7, 0.3)
    axes.set_xticks(range(len(ROOMS)), [f"{room}/" for room in ROOMS], fontsize=9, ha="left")
    axes.xaxis.tick_top()
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for x in range(len(ROOMS)):
        axes.axvline(x, color="#e4e4e4", linewidth=0.8, zorder=0)
    return figure


if __name__ == "__main__":
    PICTURE.write_bytes(_plotting.content(draw()))
