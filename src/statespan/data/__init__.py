"""Datasets: ``load`` one by name, list all ``names``, show their ``status``; see :mod:`statespan.data.base`."""

from statespan.data import own, own_text  # noqa: F401 - they register their datasets
from statespan.data.base import Arrays, Batch, Dataset, Info, Split, Windows, trim
from statespan.data.registry import load, names, register_dataset, status
from statespan.data.source import MissingData, Source
from statespan.data.vocabulary import Vocabulary

__all__ = [
    "Arrays",
    "Batch",
    "Dataset",
    "Info",
    "MissingData",
    "Source",
    "Split",
    "Vocabulary",
    "Windows",
    "load",
    "names",
    "register_dataset",
    "status",
    "trim",
]
