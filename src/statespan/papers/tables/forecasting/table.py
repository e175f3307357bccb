"""The forecasting table: every setting and model in one resumable command.

    python -m statespan.papers.tables.forecasting.table --data DATA --out results          everything
      --seconds 540    what fits; again for the rest
      --processes 8    side by side, on one device

It writes ``forecast-cuda.json`` (or -cpu) atomically after each fit, and skips the fits in it. Ctrl-C or SIGTERM ends
it at once, with 130 or 143; the fits that were running start over the next time. ``rows`` has a line for
each setting with the mean square error of each model beside the paper's S4. When all fits are done, a picture is drawn
beside the record.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from statespan import _plotting as look
from statespan._io import replace_file
from statespan._machine import commit
from statespan.papers.records import schema
from statespan.papers.tables.forecasting.harness import Budget
from statespan.papers.tables.forecasting.jobs import MODEL_ORDER, FitOptions, Stop, fits, longest_first
from statespan.papers.tables.forecasting.picture import draw
from statespan.papers.tables.forecasting.settings import HORIZONS, MODELS, SHOWN, Setting, paper, settings
from statespan.train.device import pick_device


def record(fits: list[dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """All fits and the findings as plain data."""
    rows = [row for setting in settings(tuple(HORIZONS)) if (row := _row(setting, fits)) is not None]
    caption = "Mean square errors of standardised values on the test part, Informer's borders"
    body = {"benchmark": "forecast", "caption": caption, "rows": rows, "findings": findings(rows), "fits": fits}
    return schema.new(body, device, "triton")


def findings(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """How often each model wins, in words.

    Example:
        >>> row = {"extra": {"S4": 1.0, "NLinear": 2.0, "SeasonalNaive": 3.0, "paper S4": 1.5}}
        >>> for what, count in findings([row]).items():
        ...     print(f"{what}: {count}")
        S4D-LegS at or below the paper's S4: 1 of 1
        S4D-LegS at or below the Informer: 0 of 0
        S4D-LegS at or below seasonal naive: 1 of 1
        best: S4D-LegS 1 of 1
    """
    errors = [row["extra"] for row in rows]
    counts = {}
    for words, other in (
        ("the paper's S4", "paper S4"),
        ("the Informer", "Informer"),
        ("seasonal naive", "SeasonalNaive"),
    ):
        pairs = [(e["S4"], e[other]) for e in errors if e.get("S4") is not None and e.get(other) is not None]
        counts[f"{SHOWN['S4']} at or below {words}"] = f"{sum(s4 <= error for s4, error in pairs)} of {len(pairs)}"
    by_model = [{name: e[name] for name in MODELS if e.get(name) is not None} for e in errors]
    winners = Counter(min(row, key=row.__getitem__) for row in by_model if len(row) > 1)
    ranked = ", ".join(f"{SHOWN.get(name, name)} {count}" for name, count in winners.most_common())
    return {**counts, "best": f"{ranked} of {winners.total()}"}


def _row(setting: Setting, fits: list[dict[str, Any]]) -> dict[str, Any] | None:
    mine = {fit["model"]: fit for fit in fits if _setting(fit) == setting}
    if not mine:
        return None
    reached = paper(setting)
    extra: dict[str, Any] = {name: mine[name]["mse"] if name in mine else None for name in MODELS}
    extra |= {f"{name} MAE": mine[name]["mae"] for name in MODELS if name in mine}
    extra["paper S4"] = None if reached is None else reached.mse
    extra["paper S4 MAE"] = None if reached is None else reached.mae
    kind = "one series" if setting.features == "S" else "all series"
    return {
        "name": f"{setting.dataset}, {kind}", "setting": {"horizon": setting.horizon}, "extra": extra, "status": "ok",
    }  # fmt: skip


def _setting(fit: dict[str, Any]) -> Setting:
    return Setting(fit["dataset"], fit["features"], fit["horizon"])


def main(arguments: list[str] | None = None) -> None:
    """Run the missing fits; see the module's docstring."""
    args, wanted = _parsed(arguments)
    device = pick_device(args.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    path = args.out / f"forecast-{device.type}.json"
    known_fits: list[dict[str, Any]] = schema.read(path)["fits"] if path.exists() else []
    done = {(fit["model"], _setting(fit)) for fit in known_fits}
    jobs = longest_first([(model, setting) for model in dict.fromkeys(args.models) for setting in wanted])
    todo = [job for job in jobs if job not in done]
    budget = Budget(steps=args.steps, batch=args.batch, every=args.every)
    options = FitOptions(budget, device, args.data, args.processes, args.seconds)
    number, ours, stop = 0, commit(), Stop()
    with stop, closing(fits(todo, options, stop)) as new:
        for number, fit in enumerate(new, 1):
            known_fits.append({**fit, "commit": ours})  # fits of one record may come from several commits
            schema.write(path, record(known_fits, device))
            print(f"{number}/{len(todo)} {_line(fit)}", flush=True)
    if number < len(todo):
        print(f"{len(todo) - number} of {len(todo)} fits are left; run the command again", file=sys.stderr)
    if stop.received:
        sys.exit(128 + stop.received)
    if number < len(todo):
        return
    whole = record(known_fits, device)
    for what, count in whole["findings"].items():
        print(f"{what}: {count}")
    if find_spec("matplotlib"):
        replace_file(path.with_suffix(".png"), look.content(draw(whole)))


def _parsed(arguments: list[str] | None) -> tuple[argparse.Namespace, list[Setting]]:
    """The options, and the settings that they name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the datasets (default: $STATESPAN_DATA)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the record (default: results)")
    parser.add_argument("--device", help="cpu or cuda (default: cuda if available)")
    parser.add_argument("--datasets", default="etth1,etth2,ettm1,weather", help="with commas (default: %(default)s)")
    parser.add_argument("--models", default=",".join(MODEL_ORDER), help="with commas (default: %(default)s)")
    parser.add_argument("--settings", default="", help="only these, such as etth1-S-24, with commas (default: all)")
    parser.add_argument("--steps", type=int, default=Budget.steps, help="updates per model (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=Budget.batch, help="windows per update (default: %(default)s)")
    parser.add_argument("--every", type=int, default=1, help="test every n-th window only (default: all)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further fit after this time")
    parser.add_argument("--processes", type=int, default=1, help="fits at a time (default: %(default)s)")
    args = parser.parse_args(arguments)
    args.datasets, args.models = tuple(args.datasets.split(",")), tuple(args.models.split(","))
    for option, given, known in (("--datasets", args.datasets, HORIZONS), ("--models", args.models, MODEL_ORDER)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"{option} must be of {', '.join(known)}, got {unknown[0]}")
    possible = {setting.name: setting for setting in settings(args.datasets)}
    chosen = args.settings.split(",") if args.settings else list(possible)
    if unknown := [name for name in chosen if name not in possible]:
        parser.error(f"--settings must be of {next(iter(possible))} … {list(possible)[-1]}, got {unknown[0]}")
    if args.processes < 1:
        parser.error(f"--processes must be at least 1, got {args.processes}")
    if not args.out.is_dir():
        parser.error(f"--out must be a folder that is there, got {args.out}")
    return args, [setting for name, setting in possible.items() if name in chosen]


def _line(fit: dict[str, Any]) -> str:
    setting = _setting(fit)
    reached = paper(setting)
    beside = "" if reached is None else f"   (S4 in the paper {reached.mse:.3f})"
    return f"{setting.name:16} {fit['model']:13} mse {fit['mse']:.4f}{beside}  {fit['seconds']:.0f} s"


if __name__ == "__main__":
    main()
