"""Applying an SSM to a sequence."""

from statespan.ops.chunked import chunked, state_after
from statespan.ops.dispatch import PATHS, apply, apply_from, use_path
from statespan.ops.fftconv import fftconv

__all__ = ["PATHS", "apply", "apply_from", "chunked", "fftconv", "state_after", "use_path"]
