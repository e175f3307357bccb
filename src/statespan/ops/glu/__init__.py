"""The position-wise part of a layer: GELU and a linear map, or a linear map and a gate."""

from statespan.ops.glu.activation import gelu_linear
from statespan.ops.glu.operator import linear_glu

__all__ = ["gelu_linear", "linear_glu"]
