"""What the papers' tables of settings say of this library: settings of recipes, and defaults of layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statespan import DSS, S4, S4D
from statespan.train.config import Recipe

SETTINGS: Mapping[str, Callable[[Recipe], Any]] = {
    "depth": lambda recipe: recipe.model["n_layers"],
    "features": lambda recipe: recipe.model["d_model"],
    "state size": lambda recipe: recipe.model["d_state"],
    "norm": lambda recipe: recipe.model["norm"],
    "pre-norm": lambda recipe: recipe.model["prenorm"],
    "dropout": lambda recipe: recipe.model["dropout"],
    "rate": lambda recipe: recipe.train.lr,
    "batch": lambda recipe: recipe.train.batch,
    "epochs": lambda recipe: recipe.train.epochs,
    "weight decay": lambda recipe: recipe.train.weight_decay,
    "patience": lambda recipe: recipe.train.plateau_patience,
    "Δ min": lambda recipe: recipe.model["ssm"]["dt_min"],
    "Δ max": lambda recipe: recipe.model["ssm"]["dt_max"],
}
LAYERS: Mapping[str, type] = {"S4": S4, "DSS": DSS, "S4D": S4D}
_OPTIONS = {
    "kernel": "kernel", "discretization": "discretization", "Re A": "real_part", "B trained": "train_B",
    "initialization of A": "init",
}  # fmt: skip
_WORDS: Mapping[Any, str] = {True: "yes", False: "no", "legs": "HiPPO"}


def settings(recipe: Recipe, columns: Sequence[str]) -> list[str]:
    """The settings of a recipe as text.

    Example:
        >>> from statespan.train import recipes
        >>> settings(recipes.read("lra-image-s4"), ["features", "norm", "pre-norm", "rate"])
        ['512', 'layer', 'false', '0.01']
    """
    values = (SETTINGS[column](recipe) for column in columns)
    return [str(value).lower() if isinstance(value, (bool, str)) else f"{value:g}" for value in values]


def choices(name: str, columns: Sequence[str]) -> list[str]:
    """The defaults of a layer in the words of S4D Table 1.

    Example:
        >>> choices("DSS", ["structure", "kernel", "Re A", "B trained"])
        ['diagonal', 'softmax', 'none', 'no']
    """
    structure = "DPLR" if name == "S4" else "diagonal"
    defaults = inspect.signature(LAYERS[name]).parameters
    words = []
    for column in columns:
        value = structure if column == "structure" else defaults[_OPTIONS[column]].default
        word = _WORDS[value] if value in _WORDS else str(value)
        words.append(f"{word}-D" if word == "HiPPO" and structure == "diagonal" else word)
    return words
