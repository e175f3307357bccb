"""statespan: structured state space models of long sequences.

Names are imported when they are first used (PEP 562), so that ``statespan --help`` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statespan._version import __version__

if TYPE_CHECKING:
    from statespan import data, generation, models, nn, ops, ssm, train
    from statespan._load import load
    from statespan.estimators import S4Classifier, S4Forecaster, S4Regressor
    from statespan.generation import Stream, generate
    from statespan.nn import DSS, LSSL, S4, S4D, SSMLayer
    from statespan.ops import use_path
    from statespan.train import param_groups

_HOMES = {
    "DSS": "nn",
    "LSSL": "nn",
    "S4": "nn",
    "S4Classifier": "estimators",
    "S4D": "nn",
    "S4Forecaster": "estimators",
    "S4Regressor": "estimators",
    "SSMLayer": "nn",
    "Stream": "generation",
    "generate": "generation",
    "load": "_load",
    "param_groups": "train",
    "use_path": "ops",
}
"""The module below statespan in which each public name is defined."""
_MODULES = ("data", "generation", "models", "nn", "ops", "ssm", "train")

__all__ = [
    "DSS",
    "LSSL",
    "S4",
    "S4D",
    "S4Classifier",
    "S4Forecaster",
    "S4Regressor",
    "SSMLayer",
    "Stream",
    "__version__",
    "data",
    "generate",
    "generation",
    "load",
    "models",
    "nn",
    "ops",
    "param_groups",
    "ssm",
    "train",
    "use_path",
]


def __getattr__(name: str) -> Any:
    """Import a public name, or a module below this one, on first use."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
