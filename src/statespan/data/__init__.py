"""Datasets: ``load`` one by name, list all ``names``, show their ``status``; see :mod:`statespan.data.base`."""

from statespan.data import own  # noqa: F401 - registers its dataset
from statespan.data.base import Arrays, Batch, Dataset, Info, Split, Windows, trim
from statespan.data.registry import load, names, register_dataset, status
from statespan.data.source import MissingData, Source

__all__ = [
    "Arrays",
    "Batch",
    "Dataset",
    "Info",
    "MissingData",
    "Source",
    "Split",
    "Windows",
    "load",
    "names",
    "register_dataset",
    "status",
    "trim",
]
