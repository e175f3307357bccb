"""Training."""

from statespan.train.optim import param_groups

__all__ = ["param_groups"]
