"""The numbers of a table as text: the paper's, ours and the difference; and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from statespan.papers.records import queue
from statespan.papers.records.matching import forms
from statespan.papers.records.text_table import TextTable
from statespan.papers.runs.outcome import DONE, MISSING, WAITING
from statespan.papers.tables.collect import NOT_RUN, PAPER_ONLY, Number
from statespan.papers.tables.spec import Compared, Counted, PaperTable, RowMean, Trained

CITED = " (cited)"
NONE = "–"
WORDS = {"missing": "data missing", "waiting": "not run yet", "stopped": "not finished", "failed": "failed"}


def numbers_table(table: PaperTable, results: Sequence[Number]) -> TextTable:
    """The paper's numbers and ours; settings that are equal are shown once."""
    by_place = {(result.entry.row, result.entry.column): result for result in results}
    is_settings = all(isinstance(result.entry, Compared) for result in results)
    heads, words = [""], [0]
    for column in table.columns:
        words += [len(heads)] if column.is_text else []
        heads += [column.name] if is_settings or column.is_text else [f"{column.name}, paper", "ours", "Δ"]
    rows = []
    for row in table.rows:
        cells = [row + CITED * (row in table.cited)]
        for column in table.columns:
            result = by_place.get((row, column.name))
            if is_settings or column.is_text:
                cells.append("" if result is None else _setting(result))
            else:
                cells += ["", "", ""] if result is None else _cells(result, table)
        rows.append(cells)
    return TextTable(heads, rows, words)


def _setting(result: Number) -> str:
    """A word or a setting: the paper's, and ours if it differs."""
    entry = result.entry
    if isinstance(entry, Compared) and entry.ours != entry.paper:
        return f"{entry.paper} (ours {entry.ours})"
    return entry.paper


def _cells(result: Number, table: PaperTable) -> list[str]:
    """The paper's number, ours and the difference as text."""
    entry = result.entry
    if result.status == PAPER_ONLY:
        return [entry.paper, "", ""]
    if result.ours is None:
        dash = table.published and result.status in (WAITING, NOT_RUN)
        word = "not run" if result.status == NOT_RUN else WORDS.get(result.status, result.status)
        return [entry.paper, NONE if dash else word, ""]
    if isinstance(entry, Counted):
        difference = "" if result.delta is None else _count(result.delta, entry.paper, "+")
        return [entry.paper, _count(result.ours, entry.paper), difference]
    digits = _digits(result)
    sign = "+" if result.is_difference else ""
    text = f"{result.ours:{sign}.{digits}f}" if abs(result.ours) < 1e4 else f"{result.ours:,.0f}"
    if result.deviation is not None:
        text += f" ± {result.deviation:.{digits}f}"
    if isinstance(entry, Trained) and not (result.source and len(result.values) == 1):
        text += f" ({len(result.values)})"
    text += f" {result.signs}" if result.signs else ""
    if result.status == "partly":
        text += ", more to run"
    if result.delta is None:
        return [entry.paper, text, ""]
    return [entry.paper, text, f"{result.delta:+.{digits}f}" if abs(result.delta) < 1e4 else f"{result.delta:+,.0f}"]


def _count(number: float, paper: str, sign: str = "") -> str:
    """A number of parameters in the unit of the paper's.

    Example:
        >>> _count(306_531.0, "307K"), _count(664_330.0, "249M", "+")
        ('307K', '+0.7M')
    """
    return f"{number / 1e3:{sign}.0f}K" if paper.endswith("K") else f"{number / 1e6:{sign}.1f}M"


def _digits(result: Number) -> int:
    """As many decimals as the paper prints, at least two for small numbers; by magnitude if the paper has none."""
    printed = result.entry.paper.split(" ")[0].lstrip("+-")
    digits = len(printed.partition(".")[2].rstrip("K")) if "." in printed else 0
    if printed:
        return max(digits, 2) if result.ours is not None and abs(result.ours) < 100 else digits
    size = 0.0 if result.ours is None else abs(result.ours)
    return 4 if size < 2 else 2 if size < 1000 else 0


def missing(table: PaperTable, results: Sequence[Number]) -> list[str]:
    """Why numbers are missing and what would make them, one line for each reason."""
    places_by_reason: dict[str, list[str]] = {}
    for result in results:
        if reason := _reason(result, table):
            places_by_reason.setdefault(reason, []).append(f"{result.entry.row} / {result.entry.column}")
    lines = []
    for why, places in places_by_reason.items():
        shown = ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
        lines.append(f"{shown}: {why}")
    return lines


def _reason(result: Number, table: PaperTable) -> str:
    """Why a number is missing; "" if it is not, or if its page says so elsewhere."""
    entry = result.entry
    if result.status in (DONE, PAPER_ONLY) or isinstance(entry, RowMean):
        return ""
    if isinstance(entry, Trained) and table.published and result.status in (WAITING, NOT_RUN, MISSING):
        command = " ".join(("statespan train", _recipe(entry), *entry.overrides))
        return "; ".join(filter(None, (f"`{command}`", result.why)))
    return "" if result.status == NOT_RUN else result.why


def _recipe(entry: Trained) -> str:
    """The recipe that would make a number: the form of it that the queue trains, if there is one."""
    chosen = queue.preferred().get(entry.recipe, entry.recipe)
    return chosen if chosen in forms(entry.recipe) else entry.recipe
