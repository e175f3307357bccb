"""Untrusted text for terminals and spreadsheets: names of files, classes and columns may contain anything."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of a cell that a spreadsheet evaluates


def printable(text: str, keep: str = "") -> str:
    r"""Text that is safe for a terminal: control and format characters become escapes, except those to ``keep``.

    Example:
        >>> print(printable("a\x1b[2Jb\u202ec ü"))
        a\x1b[2Jb\u202ec ü
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def cell(value: object) -> str:
    r"""A value for a CSV file: numbers unchanged; text without control characters or formulas.

    Example:
        >>> cell("=1+1"), cell("-1"), cell(-2.5), cell("a\x07")
        ("'=1+1", '-1', '-2.5', 'a\\x07')
    """
    text = str(value)
    if isinstance(value, (int, float)) or is_number(text):
        return text
    return printable("'" + text if text.startswith(FORMULA) else text, keep="\n")


def csv_line(values: Iterable[object]) -> str:
    r"""A line of a CSV file with its line break, quoted where necessary.

    Example:
        >>> csv_line([1, "a,b", "@c"])
        '1,"a,b",\'@c\n'
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([cell(value) for value in values])
    return line.getvalue()


def metric_number(number: float, metric: str) -> str:
    """A metric's value with its significant digits.

    Example:
        >>> metric_number(99.634, "accuracy"), metric_number(0.33219, "rmse"), metric_number(98.7654, "perplexity")
        ('99.63', '0.332', '98.8')
    """
    return f"{number:.2f}" if metric == "accuracy" else f"{number:.3f}" if abs(number) < 10 else f"{number:.1f}"


def metric_text(metric: str, value: float) -> str:
    """A metric and its value for display; an accuracy (a fraction) is shown in per cent.

    Example:
        >>> metric_text("accuracy", 0.98607), metric_text("rmse", 0.3321)
        ('accuracy 98.61 %', 'rmse 0.332')
    """
    if metric == "accuracy":
        return f"accuracy {metric_number(100 * value, metric)} %"
    return f"{metric.replace('_', ' ')} {metric_number(value, metric)}"


def is_number(text: str, *, finite: bool = False) -> bool:
    """Whether a text is a number; NaN and infinity count unless it must be ``finite``."""
    try:
        number = float(text)
    except ValueError:
        return False
    return math.isfinite(number) or not finite
