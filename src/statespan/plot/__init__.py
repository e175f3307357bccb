"""Plots of layers, models and runs in one style: functions that return a figure, and :func:`save`."""

from statespan.plot.accuracy import accuracy
from statespan.plot.kernels import basis, filters, impulse, kernels
from statespan.plot.runs import curves, forecasts
from statespan.plot.source import Part, fresh, parts_of, read_parts, save
from statespan.plot.spectrum import eigenvalues, response, steps

__all__ = [
    "Part", "accuracy", "basis", "curves", "eigenvalues", "filters", "forecasts", "fresh", "impulse", "kernels",
    "parts_of", "read_parts", "response", "save", "steps",
]  # fmt: skip
