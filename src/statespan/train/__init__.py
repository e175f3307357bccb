"""Training. ``param_groups`` needs only torch; everything else is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statespan.train.optim import param_groups

if TYPE_CHECKING:
    from statespan._io import CheckpointError
    from statespan.train.config import About, ConfigError, Recipe, Train, read_recipe, write_recipe
    from statespan.train.guard import NonFiniteError
    from statespan.train.lightning import as_lightning
    from statespan.train.parts import Metric, register_metric, register_optimizer, register_schedule
    from statespan.train.result import Result
    from statespan.train.run import evaluate, fit, load_run
    from statespan.train.signals import Interrupted

_HOMES = {
    "statespan._io": ("CheckpointError",),
    "statespan.train.config": ("About", "ConfigError", "Recipe", "Train", "read_recipe", "write_recipe"),
    "statespan.train.guard": ("NonFiniteError",),
    "statespan.train.parts": ("Metric", "register_metric", "register_optimizer", "register_schedule"),
    "statespan.train.lightning": ("as_lightning",),
    "statespan.train.result": ("Result",),
    "statespan.train.run": ("evaluate", "fit", "load_run"),
    "statespan.train.signals": ("Interrupted",),
}

__all__ = [
    "About",
    "CheckpointError",
    "ConfigError",
    "Interrupted",
    "Metric",
    "NonFiniteError",
    "Recipe",
    "Result",
    "Train",
    "as_lightning",
    "evaluate",
    "fit",
    "load_run",
    "param_groups",
    "read_recipe",
    "register_metric",
    "register_optimizer",
    "register_schedule",
    "write_recipe",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
