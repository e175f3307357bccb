"""Training budgets by name, and the cost of a cell.

Costs are estimates for one NVIDIA H200, from the time of a training step that ``statespan bench loop`` measured there
(11.7 ms for 50 sequences of 1,024 samples through 6 layers of 512 features) and the sizes of the recipe.
"""

from __future__ import annotations

from statespan.train.config import Recipe

BUDGETS = ("minutes", "full")
MINUTES: dict[str, tuple[str, ...]] = {
    "scifar": ("train.epochs=8", "train.warmup=450", "train.valid_batch=500"),
    "image": ("train.epochs=8", "train.warmup=450", "train.valid_batch=500"),
    "bidmc-spo2": ("train.epochs=20", "train.milestones=[10,15]", "train.valid_batch=200"),
    "bidmc-hr": ("train.epochs=20", "train.milestones=[10,15]", "train.valid_batch=200"),
    "bidmc-rr": ("train.epochs=20", "train.milestones=[10,15]", "train.valid_batch=200"),
    "sc35": ("train.epochs=1", "train.warmup=250"),
    "sc10": ("train.epochs=3",),
    "smnist": ("train.epochs=3",),
    "pmnist": ("train.epochs=3",),
    "listops": ("train.epochs=2",),
    "text": ("train.epochs=2",),
    "retrieval": ("train.epochs=1",),
    "pathfinder": ("train.epochs=2",),
    "path-x": ("train.steps=1000", "train.warmup=100", "train.validate_every=500"),
    "cifar-density": ("train.steps=2000", "train.validate_every=1000"),
    "wikitext103": ("train.steps=2000", "train.warmup=200", "train.validate_every=1000"),
}
"""What the budget "minutes" changes, by dataset. Data without an entry is small enough for the recipe as it is."""
_ROWS = {  # training rows and samples of each
    "scifar": (45_000, 1024), "image": (45_000, 1024), "bidmc-spo2": (5_565, 4000), "bidmc-hr": (5_565, 4000),
    "bidmc-rr": (5_565, 4000), "sc35": (84_843, 16_000), "sc10": (24_482, 16_000), "smnist": (54_000, 784),
    "pmnist": (54_000, 784), "listops": (96_000, 2048), "text": (25_000, 4096), "retrieval": (147_086, 8000),
    "pathfinder": (160_000, 1024), "path-x": (160_000, 16_384), "cifar-density": (49_000, 3072),
    "wikitext103": (12_600, 8192), "etth1": (7_200, 1440), "etth2": (7_200, 1440), "ettm1": (33_000, 1344),
    "weather": (23_000, 1440), "ecl": (17_000, 1680), "digits": (1_293, 64),
}  # fmt: skip
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
    changes = MINUTES.get(str(recipe.data["name"]), ()) if budget == "minutes" else ()
    if recipe.train.schedule != "multistep":
        changes = tuple(change for change in changes if not change.startswith("train.milestones"))
    if recipe.train.warmup == 0:
        changes = tuple(change for change in changes if not change.startswith("train.warmup"))
    return changes


def cost(recipe: Recipe) -> float:
    """The approximate seconds that a recipe takes on one H200."""
    rows, length = _ROWS.get(str(recipe.data["name"]), (10_000, 1000))
    if recipe.data.get("features") == "mfcc":
        length = 161
    train, model = recipe.train, recipe.model
    epoch = max(1, rows // train.batch)
    steps = train.steps or train.epochs * epoch
    layers = int(model.get("n_layers", 4)) * (2 if recipe.model["name"] in ("pixels", "language") else 1)
    step = max(_LEAST_MS, _MS_PER_NUMBER * train.batch * length * int(model.get("d_model", 128)) * layers)
    validations = steps / (train.validate_every or epoch)
    return (steps * step + validations * 0.1 * epoch * step) / 1e3 + 10
