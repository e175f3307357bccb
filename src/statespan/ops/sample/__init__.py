"""Sampling from an adaptive softmax."""

from statespan.ops.sample.operator import Part, fused_sample, sampling_is_fused

__all__ = ["Part", "fused_sample", "sampling_is_fused"]
