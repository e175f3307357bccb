"""Layer normalization in front of a layer and behind its residual, on a GPU."""

from statespan.ops.norm.after import after_fits, norm_after
from statespan.ops.norm.before import WIDEST, featurewise, norm_before, norm_fits

__all__ = ["WIDEST", "after_fits", "featurewise", "norm_after", "norm_before", "norm_fits"]
