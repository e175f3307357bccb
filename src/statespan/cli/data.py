"""``statespan data``: the command."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statespan._fail import fail
from statespan._suggest import suggest
from statespan.cli import common

if TYPE_CHECKING:
    from statespan.data.registry import Status

HELP = """List the datasets, and how to get them.

\b
Examples:
  statespan data                       all datasets
  statespan data smnist                one of them: its files, their folder and origin, its options
  statespan data smnist --get          download missing files whose checksum is known
  statespan data sc35 --check          verify the checksums of everything prepared from its files
  statespan data --data ~/data         look in another folder
"""


def data(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A dataset.", show_default=False)] = None,
    *,
    get: Annotated[bool, typer.Option("--get", help="Download missing files.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Verify prepared arrays; damaged ones are removed.")] = False,
    folder: common.DataFolder = None,
) -> None:
    """Show datasets; :data:`HELP` is the text for users."""
    from statespan.data.registry import data_folder, status

    statuses = {each.name: each for each in status(folder)}
    if name is None:
        if get or check:
            fail(f"--{'get' if get else 'check'} needs the name of a dataset, one of {', '.join(statuses)}")
        _table(list(statuses.values()), data_folder(folder))
        return
    if name not in statuses:
        fail(f"there is no dataset {name!r}{suggest(name, statuses, 'see statespan data')}")
    if get and statuses[name].missing:
        _get(statuses[name])
        statuses = {each.name: each for each in status(folder)}
    _show(statuses[name])
    if check:
        _check(statuses[name])


def _table(statuses: list[Status], folder: Path) -> None:
    from statespan.data.registry import entry

    common.say(f"datasets in {folder}")
    table = common.table("name", "here", "what it is", wrapped=["what it is"])
    for status in statuses:
        if not status.ready:
            here = "[yellow]no[/yellow]"
        elif status.found:
            here = "[green]yes[/green]"
        else:  # a dataset with a required option reads the user's own files
            needs_files = inspect.Parameter.empty in entry(status.name).options.values()
            here = "yours" if needs_files else "[green]built in[/green]"
        table.add_row(status.name, here, status.summary)
    common.terminal().print(table)
    common.say("statespan data NAME shows where the files of a dataset belong, how to get them, and its options")


def _show(status: Status) -> None:
    from statespan.data.registry import entry
    from statespan.data.source import describe

    dataset = entry(status.name)

    common.say(f"{status.name}: {status.summary}")
    if dataset.files:
        common.say(f"folder  {status.folder}")
    else:
        common.say("here    needs no files of its own")
    for path in status.found:
        common.say(f"here    {path.relative_to(status.folder)}")
    for line in describe(status.missing):
        common.say(f"missing {line}")
    for line in describe(status.optional):
        common.say(f"extra   {line} (generated without them)")
    if any(source.url and source.sha256 for source in status.missing):
        common.say(f"get     statespan data {status.name} --get, or put the files into the folder")
    elif status.missing:
        common.say("get     put the files into the folder; they are not downloaded for you")
    defaults = {
        key: "…" if value is inspect.Parameter.empty else _yaml(value) for key, value in dataset.options.items()
    }
    if defaults:
        common.say(f"options {'  '.join(f'data.{key}={default}' for key, default in defaults.items())}")


def _yaml(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return shlex.quote(str(value))


def _get(status: Status) -> None:
    from statespan.data import MissingData
    from statespan.data.registry import entry
    from statespan.data.source import fetch

    with common.downloading() as progress:
        try:
            fetch(status.name, entry(status.name).files, status.folder, progress)
            return
        except MissingData as error:
            why = "; ".join(error.reasons) or "no address with a known checksum"
    # not in the context above, whose progress bar would overwrite the line
    fail(f"could not get {status.name!r} ({why}); put the files there yourself: statespan data {status.name}")


def _check(status: Status) -> None:
    from statespan.data.cache import check

    caches = check(status.folder)
    for path, good in caches.items():
        state = "whole" if good else "damaged and removed; it is rebuilt when needed"
        common.say(f"cache   {path.relative_to(status.folder)}: {state}")
    if not caches:
        common.say("cache   nothing was prepared yet")
