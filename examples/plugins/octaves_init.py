"""A package that adds an initialization: frequencies in octaves, from slow to fast.

Its pyproject.toml says

    [project.entry-points."statespan.inits"]
    octaves = "octaves_init:octaves"

and then S4D and DSS layers can start from it:

    statespan train digits-s4d model.ssm.init=octaves
"""

from __future__ import annotations

from typing import Any

import numpy as np


def octaves(d_state: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A = -1/2 + i 2ⁿ and B = 1, one mode of each conjugate pair, both (N/2,)."""
    n = np.arange(d_state // 2)
    return -0.5 + 1j * 2.0 ** np.minimum(n, 12), np.ones(len(n))
