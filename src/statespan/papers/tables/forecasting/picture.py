"""The forecasting table as a plot.

python -m statespan.papers.tables.forecasting.picture results/forecast-cuda.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statespan import _plotting as look
from statespan._io import replace_file
from statespan.papers.tables.forecasting.settings import MODELS, SHOWN

TITLES = {"etth1": "ETTh1", "etth2": "ETTh2", "ettm1": "ETTm1", "weather": "Weather", "ecl": "ECL"}


def draw(record: Mapping[str, Any]) -> Any:
    """Errors over horizons: a panel for each dataset, univariate above and multivariate below."""
    from matplotlib.ticker import LogLocator

    names = list(dict.fromkeys(row["name"] for row in record["rows"]))
    if not names:
        raise ValueError("record must have at least one row, got none")
    names.sort(key=lambda name: name.endswith("all series"))  # keeps the datasets in their order
    figure, axes = look.panels(len(names), max(1, -(-len(names) // 2)), width=11.0, height=2.7)
    lines = {**dict(zip(MODELS, look.COLORS)), "paper S4": "black"}
    shown = {**SHOWN, "paper S4": "S4 in the paper"}
    for panel, name in zip(axes, names):
        rows = [row for row in record["rows"] if row["name"] == name]
        for line, color in lines.items():
            errors = [(row["setting"]["horizon"], row["extra"].get(line)) for row in rows]
            points = [(horizon, error) for horizon, error in errors if error is not None]
            if not points:
                continue
            style: dict[str, Any] = {"linewidth": 2.2, "zorder": 3} if line == "S4" else {"linewidth": 1.0}
            dash = "--" if line == "paper S4" else "-"
            panel.plot(*zip(*points), dash, marker="o", markersize=3, color=color, label=shown.get(line, line), **style)
        panel.set_xscale("log")
        panel.set_yscale("log")
        horizons = [row["setting"]["horizon"] for row in rows]
        panel.set_xticks(horizons, [str(horizon) for horizon in horizons])
        panel.minorticks_off()
        dataset, _, kind = name.partition(", ")
        look.tidy(panel, "horizon, rows", "mean square error", f"{TITLES.get(dataset, dataset)}, {kind}")
        bottom, top = panel.get_ylim()
        subs = (1.0, 2.0, 5.0) if top > 10 * bottom else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
        panel.yaxis.set_major_locator(LogLocator(subs=subs))
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    look.title(figure, "Forecasting errors by horizon, test parts, standardised values")
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Draw a plot beside each record."""
    parser = argparse.ArgumentParser(description="Draw the picture of a forecasting table beside its record.")
    parser.add_argument("records", type=Path, nargs="+", help="such as results/forecast-cuda.json")
    for path in parser.parse_args(arguments).records:
        try:
            figure = draw(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            parser.error(f"records must be files that the forecasting table wrote, and {path} is not")
        replace_file(path.with_suffix(".png"), look.content(figure))
        print(path.with_suffix(".png"))


if __name__ == "__main__":
    main()
