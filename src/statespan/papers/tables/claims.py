"""The S4D paper's conclusions from Tables 2 and 3, checked against our numbers.

Everything is in *gains*: by how much a row is better than another, in points of accuracy, or in per cent of the other's
RMSE. Two seeds say little about their own spread, so that a gain's standard error comes from all rows of its column:
from what is left between runs when the mean of each row and of each seed is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from statespan.papers.runs.stats import mean, spread
from statespan.papers.tables.collect import Number
from statespan.papers.tables.definitions import sections
from statespan.papers.tables.spec import PaperTable, number

TOLERANCE = {False: 1.0, True: 15.0}  # by whether small is good: points of accuracy, per cent of RMSE
RULE = (
    "A gain is how much better the first of a pair is than the second: in points of accuracy, or in per cent of the "
    "second's RMSE, ± its standard error (from the spread between runs of all rows together, without what all rows of "
    "a seed have in common). The paper's gains are in brackets. Where the paper says better or worse, a gain has to be "
    "above twice its error, and for “clearly” also above 1 point or 15 %. Where it says that there is no difference, a "
    "gain has to be below these bounds, and twice its error below 1 point or 15 %. What lies between is “not decided”, "
    "and “reversed” is the opposite of what the paper says. (By this rule the paper's own numbers of Table 2 bear out "
    "its conclusions.)"
)
CLAIMS = sections("claims.yaml")
HOLDS, OPEN, REVERSED, DIFFERS = "holds", "not decided", "reversed", "does not hold"


@dataclass(frozen=True)
class Gain:
    """The improvement of one row over another in a column."""

    better: str
    worse: str
    column: str
    ours: float
    error: float
    tolerance: float
    paper: float | None

    def beyond(self, least: float) -> str:
        """The verdict at this bound: "holds" for a gain, "reversed" for a loss, otherwise "not decided"."""
        bound = max(least, 2 * self.error)
        return HOLDS if self.ours > bound else REVERSED if self.ours < -bound else OPEN

    @property
    def sharp(self) -> bool:
        """Whether a difference as large as the tolerance would have been detected."""
        return 2 * self.error <= self.tolerance

    def __str__(self) -> str:
        """The gain in words."""
        unit = " %" if self.tolerance > 1 else ""
        paper = "" if self.paper is None else f" ({self.paper:+.2f}{unit})"
        error = f" ± {self.error:.2f}" if self.error else ""
        return f"{self.column}, {self.better} over {self.worse}: {self.ours:+.2f}{error}{unit}{paper}"


@dataclass(frozen=True)
class Claim:
    """A conclusion of the paper and our verdict on it."""

    text: str
    verdict: str
    """"holds", "not decided", "reversed", "does not hold"; in how many of the pairs each; or "not known"."""
    evidence: tuple[str, ...]  # the gains it rests on


class Book:
    """The numbers of a table by row and column."""

    def __init__(self, table: PaperTable, numbers: Sequence[Number]) -> None:
        self.table = table
        self.by_place = {(one.entry.row, one.entry.column): one for one in numbers}

    def noise(self, column: str) -> float:
        """The pooled standard deviation between seeds in a column, over all its rows."""
        rows = [one.values for (_, at), one in self.by_place.items() if at == column and len(one.values) > 1]
        if not rows:
            return 0.0
        seeds = len(rows[0])
        if len(rows) == 1 or any(len(row) != seeds for row in rows):
            return math.sqrt(mean([(spread(row) or 0.0) ** 2 for row in rows]))
        shared = [mean(same) for same in zip(*rows)]  # a seed means the same data order and random numbers for all rows
        residuals = [(x - mean(row) - s + mean(shared)) ** 2 for row in rows for x, s in zip(row, shared)]
        return math.sqrt(math.fsum(residuals) / ((len(rows) - 1) * (seeds - 1)))

    def gain(self, better: str, worse: str, column: str) -> Gain | None:
        """The gain of one row over another, None if either is unknown."""
        a, b = self.by_place.get((better, column)), self.by_place.get((worse, column))
        if a is None or b is None or not a.values or not b.values:
            return None
        lower = next(c.lower for c in self.table.columns if c.name == column)
        ours, error = _gain(a.values, b.values, self.noise(column), lower)
        return Gain(better, worse, column, ours, error, TOLERANCE[lower], self._paper(a, b, lower))

    def _paper(self, a: Number, b: Number, lower: bool) -> float | None:
        first, second = self._printed(a), self._printed(b)
        if first is None or second is None:
            return None
        return 100 * (second - first) / second if lower else first - second

    def _printed(self, one: Number) -> float | None:
        """The absolute number, where the paper prints a difference."""
        value = number(one.entry.paper)
        if value is not None and one.is_difference:
            base = self.by_place.get((getattr(one.entry, "against", ""), one.entry.column))
            under = None if base is None else number(base.entry.paper)
            return None if under is None else under + value
        return value

    def gains(self, pairs: Sequence[tuple[str, str]]) -> list[Gain]:
        """All known gains of these pairs, in all columns."""
        gains = [self.gain(a, b, column.name) for column in self.table.columns for a, b in pairs]
        return [gain for gain in gains if gain is not None]


def _gain(a: Sequence[float], b: Sequence[float], noise: float, lower: bool) -> tuple[float, float]:
    difference = mean(b) - mean(a) if lower else mean(a) - mean(b)
    error = noise * math.sqrt(1 / len(a) + 1 / len(b))
    scale = 100.0 / abs(mean(b)) if lower and mean(b) else 1.0
    return scale * difference, scale * error


def judge(text: str, gains: Sequence[Gain], says: Callable[[Gain], str]) -> Claim:
    """Judge a claim by the gains it is about."""
    if not gains:
        return Claim(text, "not known", ())
    verdicts = [says(gain) for gain in gains]
    counts = {word: verdicts.count(word) for word in (HOLDS, OPEN, REVERSED, DIFFERS) if word in verdicts}
    if len(counts) == 1:
        verdict = verdicts[0]
    else:
        verdict = ", ".join(f"{word} in {count}" for word, count in counts.items()) + f" of {len(verdicts)}"
    return Claim(text, verdict, tuple(str(gain) for gain in gains))


def _no_difference(gain: Gain) -> str:
    if gain.beyond(gain.tolerance) != OPEN:
        return DIFFERS
    return HOLDS if gain.sharp else OPEN


def _not_worse(gain: Gain) -> str:
    verdict = gain.beyond(gain.tolerance)
    return HOLDS if verdict == OPEN and gain.sharp else verdict


RULES: dict[str, Callable[[Gain], str]] = {
    "no difference": _no_difference,
    "not worse": _not_worse,
    "better": lambda gain: gain.beyond(0.0),
    "clearly better": lambda gain: gain.beyond(gain.tolerance),
}


def conclusions(book: Book) -> list[Claim]:
    """What the paper concludes from a table, judged by our numbers; nothing for most tables."""
    judged = []
    for claim in CLAIMS.get(book.table.name, {}).get("claims", ()):
        gains = [gain for gain in book.gains(claim["pairs"]) if gain.column in claim.get("columns", [gain.column])]
        judged.append(judge(claim["text"], gains, RULES[claim["rule"]]))
    return judged
