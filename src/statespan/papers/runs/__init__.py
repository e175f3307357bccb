"""Sweeps of training runs: cells, running them in parallel, and their combined results."""

from statespan.papers.runs.cell import Cell, Evaluation
from statespan.papers.runs.choose import Axis, check_rows, parse_axis, product
from statespan.papers.runs.outcome import Outcome, outcome
from statespan.papers.runs.work import run_cells

__all__ = ["Axis", "Cell", "Evaluation", "Outcome", "check_rows", "outcome", "parse_axis", "product", "run_cells"]
