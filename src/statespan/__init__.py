"""statespan: structured state space models of long sequences."""

from statespan import nn, ops, ssm
from statespan._version import __version__
from statespan.nn import DSS, LSSL, S4, S4D
from statespan.train import param_groups

__all__ = ["DSS", "LSSL", "S4", "S4D", "__version__", "nn", "ops", "param_groups", "ssm"]
