"""``statespan models``: the command."""

from __future__ import annotations

import json
from typing import Any

from statespan._text import metric_text
from statespan.cli import common

HELP = """List the trained models that come with statespan. A test result in % is an accuracy.

\b
Examples:
  statespan models
  statespan eval digits-s4d                        evaluate one
  statespan predict --model digits-s4d image.csv   use one

In Python: statespan.load("digits-s4d")
"""


def models() -> None:
    """List models; :data:`HELP` is the text for users."""
    from statespan.models import find

    table = common.table("name", "data", "test", "parameters", "size", right=["parameters", "size"], wrapped=["data"])
    for name in find.names():
        folder = find.find(name)
        record: dict[str, Any] = {}
        if (folder / find.RECORD).is_file():
            record = json.loads((folder / find.RECORD).read_text(encoding="utf-8"))
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        metric = record.get("metric", "")
        table.add_row(
            name,
            record["recipe"]["data"]["name"] if record else "",
            metric_text(metric, record["test"][metric]).removeprefix("accuracy ") if record else "",
            f"{record['parameters']:,}" if record else "",
            f"{size / 1e6:.2f} MB",
        )
    if table.row_count:
        common.terminal().print(table)
    else:
        common.say("no published models found")
