"""Results and models that are shown to others: publishing a run, finding a model by name, tables and pictures."""

from statespan.published.find import UnknownModelError, load, names

__all__ = ["UnknownModelError", "load", "names"]
