"""The S4D paper's conclusions from Tables 2 and 3, checked against our numbers.

All comparisons are *gains*: how much better a row is than another, in points of accuracy or in per cent of the other's
RMSE. Two seeds say little about their spread, so a gain's standard error comes from all rows of its column: from the
residuals of the runs after removing the mean of each row and of each seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from statespan.papers.runs.stats import spread
from statespan.papers.tables.collect import Number
from statespan.papers.tables.definitions import sections
from statespan.papers.tables.spec import PaperTable, number

TOLERANCE = {False: 1.0, True: 15.0}  # by whether small is good: points of accuracy, per cent of RMSE
RULE = (
    "A gain is how much better the first row of a pair is than the second: in points of accuracy, or in per cent of "
    "the second's RMSE, ± its standard error (pooled from the spread between runs over all rows, without what all "
    "rows of a seed have in common). The paper's gains are in brackets. Where the paper claims better or worse, the "
    "gain must exceed twice its error, and for “clearly” also 1 point or 15 %. Where it claims no difference, the "
    "gain must stay below these bounds, and twice its error below 1 point or 15 %. Anything in between is “not "
    "decided”; “reversed” is the opposite of the paper's claim. (By this rule, the paper's own numbers in Table 2 "
    "support its conclusions.)"
)
CLAIMS = sections("claims.yaml")
HOLDS, OPEN, REVERSED, DIFFERS = "holds", "not decided", "reversed", "does not hold"


@dataclass(frozen=True)
class Gain:
    """The improvement of one row over another in a column.

    Example:
        >>> gain = Gain("A", "B", "sCIFAR", ours=1.2, error=0.3, tolerance=1.0, paper=1.0)
        >>> gain.beyond(0.0), gain.sharp, str(gain)
        ('holds', True, 'sCIFAR, A over B: +1.20 ± 0.30 (+1.00)')
    """

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
    """A conclusion of the paper and our verdict on it.

    Example:
        >>> claim = Claim("A is better than B.", "holds", ("sCIFAR, A over B: +1.20",))
        >>> claim.verdict
        'holds'
    """

    text: str
    verdict: str
    """"holds", "not decided", "reversed", "does not hold"; in how many of the pairs each; or "not known"."""
    evidence: tuple[str, ...]  # the gains it rests on


class TableNumbers:
    """The numbers of a table by row and column.

    Example:
        >>> from statespan.papers.tables.spec import Column, Printed
        >>> entries = (Printed("A", "sCIFAR", "92.0"), Printed("B", "sCIFAR", "91.0"))
        >>> table = PaperTable("t", "Table", "", columns=(Column("sCIFAR"),), entries=entries)
        >>> numbers = TableNumbers(table, [Number(entry, "paper only") for entry in entries])
        >>> numbers.gains([("A", "B")])  # none without numbers of ours
        []
    """

    def __init__(self, table: PaperTable, numbers: Sequence[Number]) -> None:
        self.table = table
        self.by_place = {(result.entry.row, result.entry.column): result for result in numbers}

    def noise(self, column: str) -> float:
        """The pooled standard deviation between seeds in a column, over all its rows."""
        in_column = (result.values for (_, name), result in self.by_place.items() if name == column)
        rows = [values for values in in_column if len(values) > 1]
        if not rows:
            return 0.0
        seeds = len(rows[0])
        if len(rows) == 1 or any(len(row) != seeds for row in rows):
            return math.sqrt(fmean([(spread(row) or 0.0) ** 2 for row in rows]))
        # a seed gives all rows the same data order and random numbers
        shared = [fmean(same) for same in zip(*rows)]
        residuals = [(x - fmean(row) - s + fmean(shared)) ** 2 for row in rows for x, s in zip(row, shared)]
        return math.sqrt(math.fsum(residuals) / ((len(rows) - 1) * (seeds - 1)))

    def gain(self, better: str, worse: str, column: str) -> Gain | None:
        """The gain of one row over another, None if either is unknown."""
        a, b = self.by_place.get((better, column)), self.by_place.get((worse, column))
        if a is None or b is None or not a.values or not b.values:
            return None
        lower = next(c.lower for c in self.table.columns if c.name == column)
        mean_a, mean_b = fmean(a.values), fmean(b.values)
        difference = mean_b - mean_a if lower else mean_a - mean_b
        error = self.noise(column) * math.sqrt(1 / len(a.values) + 1 / len(b.values))
        scale = 100.0 / abs(mean_b) if lower and mean_b else 1.0
        paper_a, paper_b = self._printed(a), self._printed(b)
        paper = None
        if paper_a is not None and paper_b is not None:
            paper = 100 * (paper_b - paper_a) / paper_b if lower else paper_a - paper_b
        return Gain(better, worse, column, scale * difference, scale * error, TOLERANCE[lower], paper)

    def _printed(self, result: Number) -> float | None:
        """The absolute number, where the paper prints a difference."""
        value = number(result.entry.paper)
        if value is not None and result.is_difference:
            base = self.by_place.get((getattr(result.entry, "against", ""), result.entry.column))
            base_value = None if base is None else number(base.entry.paper)
            return None if base_value is None else base_value + value
        return value

    def gains(self, pairs: Sequence[tuple[str, str]]) -> list[Gain]:
        """All known gains of these pairs, in all columns."""
        gains = [self.gain(a, b, column.name) for column in self.table.columns for a, b in pairs]
        return [gain for gain in gains if gain is not None]


def judge(text: str, gains: Sequence[Gain], rule: Callable[[Gain], str]) -> Claim:
    """Judge a claim by the gains it is about."""
    if not gains:
        return Claim(text, "not known", ())
    verdicts = [rule(gain) for gain in gains]
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


def conclusions(table_numbers: TableNumbers) -> list[Claim]:
    """What the paper concludes from a table, judged by our numbers; nothing for most tables."""
    claims = []
    for claim in CLAIMS.get(table_numbers.table.name, {}).get("claims", ()):
        gains = table_numbers.gains(claim["pairs"])
        if "columns" in claim:
            gains = [gain for gain in gains if gain.column in claim["columns"]]
        claims.append(judge(claim["text"], gains, RULES[claim["rule"]]))
    return claims
