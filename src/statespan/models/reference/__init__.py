"""Weights of the papers' public code (the repository state-spaces/s4), read and written; see docs/reference.md."""

from statespan.models.reference._files import LARGEST_PICKLE
from statespan.models.reference.convert import from_reference, read_model
from statespan.models.reference.source import RATIO, NotExpressibleError
from statespan.models.reference.write import to_reference

__all__ = ["LARGEST_PICKLE", "RATIO", "NotExpressibleError", "from_reference", "read_model", "to_reference"]
