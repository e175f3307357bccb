"""Running the command inside of a test."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from statespan.cli.app import app


def invoke(*arguments: object) -> Result:
    """Run ``statespan`` with these arguments."""
    return CliRunner().invoke(app(), [str(argument) for argument in arguments])


def quick(folder: Path, *arguments: object) -> tuple[Result, dict]:
    """Run one benchmark at toy sizes on the CPU; its result and its record."""
    done = invoke("bench", *arguments, "--quick", "--device", "cpu", "--out", folder)
    return done, json.loads((folder / f"{arguments[0]}-cpu-quick.json").read_text())


def ok(record: dict) -> list[dict]:
    """All rows of a record, every one of which must be fine."""
    assert [row["reason"] for row in record["rows"] if row["status"] != "ok"] == []
    return record["rows"]
