"""What all studies share: the record, and where it goes."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from pathlib import Path
from typing import Any

import torch

from statespan._machine import device_name, installed
from statespan._version import __version__
from statespan.papers.bench.record import commit, write


def parser(text: str | None, out: str) -> argparse.ArgumentParser:
    """The options of all studies."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, required=True, help="folder of the datasets, in their public layouts")
    made.add_argument("--out", type=Path, default=Path(out), help="the record, JSON (default: %(default)s)")
    made.add_argument("--device", default=None, help="cpu or cuda (default: cuda where there is one)")
    return made


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a record that is there already, so that a study goes on where it was stopped."""
    return list(json.loads(path.read_text())["rows"]) if path.exists() else []


def save(path: Path, name: str, caption: str, rows: list[dict[str, Any]], **more: Any) -> None:
    """Write a record, whole or not at all.

    Args:
        path: Where.
        name: Of the study.
        caption: What its figures are.
        rows: Each with "name", "setting", "extra" and "status", as tables of the documents are made from.
        more: What else to keep.
    """
    packages = ("numpy", "scikit-learn", "aeon", "triton")
    record = {
        "benchmark": name,
        "caption": caption,
        "rows": rows,
        **more,
        "machine": {"device": device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))},
        "versions": {
            "statespan": __version__, "commit": commit(), "torch": torch.__version__,
            "python": platform.python_version(), **{package: installed(package) for package in packages},
        },
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def row(name: str, setting: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    """A row of a record, with the commit it was made by: a study that goes on may end with another one."""
    return {"name": name, "setting": setting, "extra": figures, "status": "ok", "commit": commit()}
