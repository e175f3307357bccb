"""S4's kernel by the algorithm of its paper, the Cauchy kernel."""

from statespan.ops.cauchy.operator import cauchy_kernel

__all__ = ["cauchy_kernel"]
