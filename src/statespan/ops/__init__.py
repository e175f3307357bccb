"""Applying an SSM to a sequence."""

from statespan.ops.activation import gelu_linear
from statespan.ops.chunked import chunked, state_after
from statespan.ops.dispatch import PATHS, apply, apply_from, use_path
from statespan.ops.fftconv import fftconv
from statespan.ops.glu import linear_glu
from statespan.ops.step import Step, system_of

__all__ = [
    "PATHS",
    "Step",
    "apply",
    "apply_from",
    "chunked",
    "fftconv",
    "gelu_linear",
    "linear_glu",
    "state_after",
    "system_of",
    "use_path",
]
