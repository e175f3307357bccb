"""Sampling from an adaptive softmax."""

from statespan.ops.sample.operator import Part, choice_is_fused, fused_choice

__all__ = ["Part", "choice_is_fused", "fused_choice"]
