"""``statespan publish``: the command."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from statespan._fail import fail
from statespan.cli import common
from statespan.cli.locate import find_run

HELP = """Publish finished runs: records, models, tables.

Each run's record goes to results/tasks. For each recipe, the weights with the best validation score go to models with a
model card, if they are at most 4 MB. Then the tables of README.md and docs/results.md beside the results, the numbers
of `statespan recipes` and the pictures of results/tasks are rewritten; without RUN, that is all that happens. An
unfinished run, or one that is already published, is rejected before anything is written.

\b
Examples:
  statespan publish runs/smnist-s4d
  statespan publish runs/smnist-s4d runs/smnist-s4d-2          two seeds
  statespan publish runs/mine --name smnist-small --replace
  statespan publish                                            tables and pictures only
"""
PAGES = ("README.md", "docs/results.md")
COVERAGE = "docs/reproduce.md"


def publish(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Folders of finished runs.", show_default=False)
    ] = None,
    *,
    name: Annotated[
        str | None, typer.Option(help="Name of the model. [default: the recipe's]", show_default=False)
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
    models: Annotated[Path, typer.Option(help="Folder of the models.")] = Path("models"),
    replace: Annotated[bool, typer.Option("--replace", help="Replace what is already published.")] = False,
    commit: Annotated[
        str | None, typer.Option(help="Commit of the runs, if they do not record it.", show_default=False)
    ] = None,
    data: common.DataFolder = None,
) -> None:
    """Publish; :data:`HELP` is the text for users."""
    common.need_training("publish")
    if name is not None and not runs:
        fail("--name needs a RUN to publish")
    with common.explained():
        from statespan.papers.records.schema import PublishError, read_runs

        if runs:
            from statespan.papers.records.publish import publish as write

            try:
                messages = write(
                    [find_run(run) for run in runs], name=name, results=results, models=models,
                    replace=replace, commit=commit, data=data,
                )  # fmt: skip
            except PublishError as error:
                fail(str(error))
            for line in messages:
                common.say(line)
        folder = results / "tasks"
        if not folder.is_dir():
            fail(f"--results must be a folder with records in tasks, got {results}")
        written = []
        if find_spec("matplotlib"):
            from statespan.papers.records.picture import write_pictures

            written += write_pictures(read_runs(folder), folder)
        written += _write_tables(results)
    for path in written:
        common.say(f"{'picture' if path.suffix == '.png' else 'tables':<8} {path}")


def _write_tables(results: Path) -> list[Path]:
    """Fill the tables in the pages of a checkout, and update the numbers of ``statespan recipes``."""
    from statespan.papers import markdown
    from statespan.papers.records import ours, table
    from statespan.papers.tables import coverage

    root = results.absolute().parent
    written = [root / page for page in PAGES if (root / page).is_file()]
    written = [page for page in written if table.PLACE.search(page.read_text(encoding="utf-8"))]
    for page in written:
        table.fill_page(page)
    numbers, page = ours.write(root), root / COVERAGE
    if numbers is not None and page.is_file():
        markdown.fill_page(page, coverage.filled)
        written += [numbers, page]
    return [results.parent / path.relative_to(root) for path in written]
