"""Training budgets by name, and the cost of a cell.

Costs are estimates for one NVIDIA H200, from the time of a training step that ``statespan bench loop`` measured there
(11.7 ms for 50 sequences of 1,024 samples through 6 layers of 512 features) and the sizes of the recipe.
"""

from __future__ import annotations

from statespan.papers.tables.definitions import sections
from statespan.train.config import Recipe

_MS_PER_NUMBER = 11.7 / (50 * 1024 * 512 * 6)
_LEAST_MS = 1.5  # launching a step as a graph, and the loop around it


def overrides(recipe: Recipe, budget: str) -> tuple[str, ...]:
    """The overrides that a budget implies for a recipe.

    Example:
        >>> from statespan.train import recipes
        >>> overrides(recipes.read("ablation-scifar-s4d-inv"), "minutes")
        ('train.epochs=8', 'train.warmup=450', 'train.valid_batch=500')
        >>> overrides(recipes.read("ablation-scifar-s4d-inv"), "full")
        ()
    """
    changes = sections("budget.yaml")["minutes"].get(recipe.data["name"], ()) if budget == "minutes" else ()
    unused = {"train.milestones": recipe.train.schedule != "multistep", "train.warmup": recipe.train.warmup == 0}
    return tuple(change for change in changes if not unused.get(change.partition("=")[0]))


def cost(recipe: Recipe) -> float:
    """The approximate seconds that a recipe takes on one H200."""
    rows, length = sections("budget.yaml")["rows"].get(recipe.data["name"], (10_000, 1000))
    if recipe.data.get("features") == "mfcc":
        length = 161
    train, model = recipe.train, recipe.model
    epoch = max(1, rows // train.batch)
    steps = train.steps or train.epochs * epoch
    layers = int(model.get("n_layers", 4)) * (2 if recipe.model["name"] in ("pixels", "language") else 1)
    step = max(_LEAST_MS, _MS_PER_NUMBER * train.batch * length * int(model.get("d_model", 128)) * layers)
    validations = steps / (train.validate_every or epoch)
    return (steps * step + validations * 0.1 * epoch * step) / 1e3 + 10
