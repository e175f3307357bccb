"""Sampling from an adaptive softmax."""

from statespan.ops.sample.operator import VocabularyPart, fused_sample, sampling_is_fused

__all__ = ["VocabularyPart", "fused_sample", "sampling_is_fused"]
