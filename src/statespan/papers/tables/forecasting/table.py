"""The forecasting table: every setting, every model, one command that goes on where it was stopped.

    python -m statespan.papers.tables.forecasting.table --data DATA --out results          everything
      --seconds 540    what fits; again for the rest
      --processes 8    side by side, on one device

It writes ``forecast-cuda.json`` (or -cpu), anew after each fit, whole or not at all. A fit that is in the file is not
made again. Ctrl-C or SIGTERM ends it at once, with 130 or 143; the fits that were running are made again the next time.
``rows`` has a line for each setting with the mean square error of each model beside the paper's S4. When all is there,
a picture of it is drawn beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from statespan import _plotting as look
from statespan._machine import device_name, installed
from statespan._version import __version__
from statespan.papers.bench.record import commit, write
from statespan.papers.tables.forecasting.harness import Budget
from statespan.papers.tables.forecasting.jobs import ORDER, Stop, made, ordered
from statespan.papers.tables.forecasting.picture import draw
from statespan.papers.tables.forecasting.settings import HORIZONS, MODELS, SHOWN, Setting, paper, settings
from statespan.train.device import pick_device


def record(fits: list[dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """All fits and what they say, as plain data."""
    import datetime

    rows = [row for setting in settings(tuple(HORIZONS)) if (row := _row(setting, fits)) is not None]
    return {
        "benchmark": "forecast",
        "caption": "Mean square errors of standardised values on the test part, Informer's borders",
        "rows": rows,
        "findings": findings(rows),
        "fits": fits,
        "machine": {"device": device_name(device)},
        "versions": {
            "commit": commit(),
            "statespan": __version__,
            "torch": torch.__version__,
            "triton": installed("triton"),
        },
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def findings(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Who wins how often, in words.

    Example:
        >>> row = {"extra": {"S4": 1.0, "NLinear": 2.0, "SeasonalNaive": 3.0, "paper S4": 1.5}}
        >>> for what, count in findings([row]).items():
        ...     print(f"{what}: {count}")
        S4D-LegS at or below the paper's S4: 1 of 1
        S4D-LegS at or below the Informer: 0 of 0
        S4D-LegS at or below seasonal naive: 1 of 1
        best: S4D-LegS 1 of 1
    """
    known = [row["extra"] for row in rows]
    found = {}
    for words, other in (
        ("the paper's S4", "paper S4"),
        ("the Informer", "Informer"),
        ("seasonal naive", "SeasonalNaive"),
    ):
        both = [e for e in known if e.get("S4") is not None and e.get(other) is not None]
        found[f"{SHOWN['S4']} at or below {words}"] = f"{sum(e['S4'] <= e[other] for e in both)} of {len(both)}"
    winners: dict[str, int] = {}
    for extra in known:
        errors = {name: extra[name] for name in MODELS if extra.get(name) is not None}
        if len(errors) > 1:
            best = min(errors, key=lambda name: errors[name])
            winners[best] = winners.get(best, 0) + 1
    ranked = sorted(winners.items(), key=lambda item: -item[1])
    found["best"] = (
        ", ".join(f"{SHOWN.get(name, name)} {count}" for name, count in ranked) + f" of {sum(winners.values())}"
    )
    return found


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
    """Run what is not there yet; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the datasets (default: $STATESPAN_DATA)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the record (default: results)")
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")
    parser.add_argument("--datasets", default="etth1,etth2,ettm1,weather", help="with commas (default: %(default)s)")
    parser.add_argument("--models", default=",".join(ORDER), help="with commas (default: %(default)s)")
    parser.add_argument("--settings", default="", help="only these, such as etth1-S-24, with commas (default: all)")
    parser.add_argument("--steps", type=int, default=Budget.steps, help="updates of each model (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=Budget.batch, help="windows an update (default: %(default)s)")
    parser.add_argument("--every", type=int, default=1, help="test every so manieth window only (default: all)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further fit after so long")
    parser.add_argument("--processes", type=int, default=1, help="fits at a time (default: %(default)s)")
    args = parser.parse_args(arguments)
    names, models = tuple(args.datasets.split(",")), tuple(args.models.split(","))
    for option, given, known in (("--datasets", names, HORIZONS), ("--models", models, ORDER)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"{option} must be of {', '.join(known)}, got {unknown[0]}")
    possible = {setting.name: setting for setting in settings(names)}
    chosen = args.settings.split(",") if args.settings else list(possible)
    if unknown := [name for name in chosen if name not in possible]:
        parser.error(f"--settings must be of {next(iter(possible))} … {list(possible)[-1]}, got {unknown[0]}")
    if args.processes < 1:
        parser.error(f"--processes must be at least 1, got {args.processes}")
    if not args.out.is_dir():
        parser.error(f"--out must be a folder that is there, got {args.out}")
    wanted = [setting for name, setting in possible.items() if name in chosen]
    device = pick_device(args.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    path = args.out / f"forecast-{device.type}.json"
    fits: list[dict[str, Any]] = json.loads(path.read_text())["fits"] if path.exists() else []
    done = {(fit["model"], _setting(fit)) for fit in fits}
    jobs = ordered([(model, setting) for model in dict.fromkeys(models) for setting in wanted])
    todo = [job for job in jobs if job not in done]
    budget, number, ours = Budget(steps=args.steps, batch=args.batch, every=args.every), 0, commit()
    stop = Stop()
    with stop, closing(made(todo, budget, device, args.data, args.processes, args.seconds, stop)) as found:
        for fit in found:
            number, setting = number + 1, _setting(fit)
            fits.append({**fit, "commit": ours})  # each its own, as the rest may be made by another one
            write(path, (json.dumps(record(fits, device), indent=1, allow_nan=False) + "\n").encode())
            reached = paper(setting)
            beside = "" if reached is None else f"   (S4 in the paper {reached.mse:.3f})"
            print(
                f"{number}/{len(todo)} {setting.name:16} {fit['model']:13} mse {fit['mse']:.4f}{beside}"
                f"  {fit['seconds']:.0f} s",
                flush=True,
            )
    if number < len(todo):
        print(f"{len(todo) - number} of {len(todo)} fits are left; run the command again", file=sys.stderr)
    if stop.received:
        sys.exit(128 + stop.received)
    if number < len(todo):
        return
    whole = record(fits, device)
    for what, count in whole["findings"].items():
        print(f"{what}: {count}")
    if find_spec("matplotlib"):
        write(path.with_suffix(".png"), look.content(draw(whole)))


if __name__ == "__main__":
    main()
