"""Batch normalization in training over the real positions of sequences, on a GPU."""

from statespan.ops.batch_norm.operator import Moved, Norm, batch_fits, batch_norm, batch_norm_before

__all__ = ["Moved", "Norm", "batch_fits", "batch_norm", "batch_norm_before"]
