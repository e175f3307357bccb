"""Training. ``param_groups`` needs torch only; everything else is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statespan.train.optim import param_groups

if TYPE_CHECKING:
    from statespan._io import CheckpointError
    from statespan.train.config import About, ConfigError, Recipe, Train, read_recipe, write_recipe
    from statespan.train.guard import NonFiniteError
    from statespan.train.result import Result
    from statespan.train.run import evaluate, fit, load_run
    from statespan.train.signals import Interrupted

_WHERE = {
    "About": "config",
    "CheckpointError": "_io",
    "ConfigError": "config",
    "Interrupted": "signals",
    "NonFiniteError": "guard",
    "Recipe": "config",
    "Result": "result",
    "Train": "config",
    "evaluate": "run",
    "fit": "run",
    "load_run": "run",
    "read_recipe": "config",
    "write_recipe": "config",
}

__all__ = [
    "About",
    "CheckpointError",
    "ConfigError",
    "Interrupted",
    "NonFiniteError",
    "Recipe",
    "Result",
    "Train",
    "evaluate",
    "fit",
    "load_run",
    "param_groups",
    "read_recipe",
    "write_recipe",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    where = "statespan" if _WHERE[name].startswith("_") else __name__
    return getattr(import_module(f"{where}.{_WHERE[name]}"), name)
