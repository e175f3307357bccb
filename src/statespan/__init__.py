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
    from statespan.models.reference import from_reference, to_reference
    from statespan.nn import DSS, LRU, LSSL, S4, S4D, S5, SSMLayer
    from statespan.nn.capture import capture
    from statespan.ops import use_path
    from statespan.ops.parallel import packed, sequence_parallel
    from statespan.train import param_groups

_HOMES = {
    "_load": ("load",),
    "estimators": ("S4Classifier", "S4Forecaster", "S4Regressor"),
    "generation": ("Stream", "generate"),
    "models.reference": ("from_reference", "to_reference"),
    "nn": ("DSS", "LRU", "LSSL", "S4", "S4D", "S5", "SSMLayer"),
    "nn.capture": ("capture",),
    "ops": ("use_path",),
    "ops.parallel": ("packed", "sequence_parallel"),
    "train": ("param_groups",),
}
"""The public names by the module below statespan in which they are defined."""
_MODULES = ("data", "generation", "models", "nn", "ops", "ssm", "train")

__all__ = [
    "DSS",
    "LRU",
    "LSSL",
    "S4",
    "S4D",
    "S5",
    "S4Classifier",
    "S4Forecaster",
    "S4Regressor",
    "SSMLayer",
    "Stream",
    "__version__",
    "capture",
    "data",
    "from_reference",
    "generate",
    "generation",
    "load",
    "models",
    "nn",
    "ops",
    "packed",
    "param_groups",
    "sequence_parallel",
    "ssm",
    "to_reference",
    "train",
    "use_path",
]


def __getattr__(name: str) -> Any:
    """Import a public name, or a module below this one, on first use."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    for module, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
