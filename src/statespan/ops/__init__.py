"""Operations on sequences: one folder for each op; ``dispatch`` alone decides which implementation runs."""

from statespan.ops.dispatch import PATHS, use_path
from statespan.ops.glu import gelu_linear, linear_glu
from statespan.ops.ssm.apply import apply, apply_from
from statespan.ops.ssm.chunked import chunked, state_after
from statespan.ops.ssm.fftconv import fftconv
from statespan.ops.step import Stepper, system_of

__all__ = [
    "PATHS",
    "Stepper",
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
