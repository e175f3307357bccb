"""Shared by all studies: their options and their record."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from statespan._machine import commit
from statespan.papers.records import schema
from statespan.train.device import pick_device

PACKAGES = ("numpy", "scikit-learn", "aeon", "triton")  # whose versions matter


def parser(text: str | None, out: str) -> argparse.ArgumentParser:
    """The options of all studies."""
    options = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, help="folder of the datasets, in their public layouts")
    options.add_argument("--out", type=Path, default=Path(out), help="the record, JSON (default: %(default)s)")
    options.add_argument("--device", default=None, help="cpu or cuda (default: cuda if available)")
    return options


class Study:
    """A record that grows by rows, each written at once; a study that was stopped resumes with the rows there are.

    Example:
        >>> study = Study("rates", "Data at other rates", Path("no/such/rates.json"), device="cpu")
        >>> study.add("S4D", {"rate": 0.5}, {"accuracy": 0.97})
        >>> study.rows[0]["extra"]
        {'accuracy': 0.97}
    """

    def __init__(self, name: str, caption: str, path: Path, device: str | None = None) -> None:
        self.name, self.caption, self.path = name, caption, path
        self.device = pick_device(device)
        self.rows: list[dict[str, Any]] = schema.read(path)["rows"] if path.exists() else []

    def add(self, name: str, setting: dict[str, Any], figures: dict[str, Any]) -> None:
        """Add a row with the commit that made it, because other rows may have another one."""
        self.rows.append({"name": name, "setting": setting, "extra": figures, "status": "ok", "commit": commit()})

    def save(self, **more: Any) -> None:
        """Write the record, with ``more`` in it."""
        body = {"benchmark": self.name, "caption": self.caption, "rows": self.rows, **more}
        schema.write(self.path, schema.new(body, self.device, *PACKAGES))
