"""Layer normalization before a layer and after its residual, on a GPU."""

from statespan.ops.norm.after import ResidualSum, after_fits, norm_after
from statespan.ops.norm.before import WIDEST, Affine, featurewise, norm_before, norm_fits

__all__ = ["WIDEST", "Affine", "ResidualSum", "after_fits", "featurewise", "norm_after", "norm_before", "norm_fits"]
