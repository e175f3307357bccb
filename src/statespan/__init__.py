"""statespan: structured state space models of long sequences."""

from statespan import data, generation, models, nn, ops, ssm, train
from statespan._version import __version__
from statespan.generation import Stream, generate
from statespan.models.find import load
from statespan.nn import DSS, LSSL, S4, S4D
from statespan.train import param_groups

__all__ = [
    "DSS",
    "LSSL",
    "S4",
    "S4D",
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
]
