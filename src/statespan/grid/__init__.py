"""Grids of training runs: cells, running them side by side, and what they say together."""

from statespan.grid.cell import Cell, Evaluation
from statespan.grid.choose import Axis, check_rows, parse_axis, product
from statespan.grid.outcome import Outcome, outcome
from statespan.grid.pool import run_cells

__all__ = ["Axis", "Cell", "Evaluation", "Outcome", "check_rows", "outcome", "parse_axis", "product", "run_cells"]
