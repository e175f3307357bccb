"""A cell: one recipe with one seed, and the folder of its run.

The folder's name ends in a digest of everything that decides the result: a cell that two tables share is trained once,
and changing a recipe makes a new cell.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from statespan.train.config import Recipe, read_recipe

# settings of logging and saving, which do not affect what a run learns
_NOT_DECIDING = ("log_every", "save_every", "keep", "tensorboard", "valid_batch")
# settings that are newer than recorded cells: at their defaults they do not change a cell's key
_LATER = {
    "fast_dt": False, "group_lengths": False, "metrics": [], "optimizer_options": {}, "schedule_options": {},
    "select": "valid", "start": None,
}  # fmt: skip
_WORD = re.compile(r"[^A-Za-z0-9.]+")


@dataclass(frozen=True)
class Evaluation:
    """A further evaluation of the trained model: on other data, or at another sampling rate.

    Example:
        >>> Evaluation("half", overrides=("data.subsample=2",), rate=2.0).name
        'half'
    """

    name: str  # what it is called in the results
    overrides: tuple[str, ...] = ()  # changes of the recipe, such as ``data.subsample=2``
    rate: float = 1.0  # step of the data relative to that of training


@dataclass(frozen=True)
class Cell:
    """One training run of a sweep.

    Example:
        >>> from statespan.train import recipes
        >>> cell = Cell(recipes.read("digits-s4d", ["train.seed=3", "model.ssm.init=inv"]))
        >>> cell.seed, cell.key.rpartition("-")[0]
        (3, 'digits-s4d-init.inv-seed3')
    """

    recipe: Recipe  # all of it, the seed included
    evaluations: tuple[Evaluation, ...] = ()  # what else to measure when it is trained

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return self.recipe.train.seed

    @cached_property
    def key(self) -> str:
        """The name of its folder: readable, and unique to the cell."""
        facts: dict[str, Any] = self.recipe.to_dict()
        facts.pop("about")
        train = {key: v for key, v in facts["train"].items() if key not in _NOT_DECIDING}
        facts["train"] = {key: v for key, v in train.items() if key not in _LATER or v != _LATER[key]}
        facts["evaluations"] = [dataclasses.asdict(evaluation) for evaluation in self.evaluations]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
        changes = [c for c in self.recipe.overrides if not c.startswith(("train.", "name="))]
        words = [_WORD.sub("", c.partition("=")[0].rpartition(".")[2] + "." + c.partition("=")[2]) for c in changes]
        return f"{'-'.join([self.recipe.name, *words])[:96]}-seed{self.seed}-{digest}"

    def folder(self, cells: Path) -> Path:
        """The folder of its run."""
        return cells / self.key

    def job(self) -> dict[str, Any]:
        """The cell as plain data, for another process."""
        evaluations = [dataclasses.asdict(evaluation) for evaluation in self.evaluations]
        return {"recipe": self.recipe.to_dict(), "overrides": list(self.recipe.overrides), "evaluations": evaluations}

    @classmethod
    def from_job(cls, job: dict[str, Any]) -> Cell:
        """The inverse of :meth:`job`."""
        recipe = dataclasses.replace(read_recipe(job["recipe"]), overrides=tuple(job["overrides"]))
        return cls(recipe, tuple(Evaluation(e["name"], tuple(e["overrides"]), e["rate"]) for e in job["evaluations"]))
