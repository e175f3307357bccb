"""Applying an SSM to a sequence."""

from statespan.ops.chunked import chunked, state_after
from statespan.ops.fftconv import fftconv

__all__ = ["chunked", "fftconv", "state_after"]
