"""The names of an SSM's tensors in each version of the reference; docs/reference.md has the same table.

Shapes: H heads, S independent SSMs, M = N/2 kept modes, K kernels, R rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from statespan.models.pretrained import LoadError
from statespan.models.reference.source import NotExpressibleError

ANCHOR = re.compile(r"^(?P<kernel>(?P<owner>(?:.*?\.)??)kernel\.(?:kernel\.|krylov\.)?)C$")
"""Finds a kernel by its C. The owner also has D."""


@dataclass(frozen=True)
class Version:
    """The names of one version, and its conventions.

    Args:
        title: For messages.
        dt: The step sizes before their transform.
        A_real: Re A before its transform; "" if A is one complex tensor.
        A_imag: Im A, or A itself.
        sign: Sign of Im A.
        transformed_dt: Whether the transform of the step sizes is an option; otherwise it is exp.
        disc: Default discretization of a diagonal SSM.
        relu_offset: The constant added to relu(A_real), for a diagonal SSM and for one with a low-rank term.
        others: Names that may occur, and are read if they are needed.

    Example:
        >>> version_of({"log_dt": None, "log_A_real": None, "A_imag": None, "C": None}, "layer").title
        'S4D'
    """

    title: str
    dt: str
    A_real: str
    A_imag: str
    sign: int = 1
    transformed_dt: bool = False
    disc: str = "zoh"
    relu_offset: tuple[float, float] = (1e-4, 0.0)
    others: tuple[str, ...] = ()


VERSIONS = (
    Version("v4", "inv_dt", "A_real", "A_imag", sign=-1, transformed_dt=True, relu_offset=(1e-4, 1e-4),
            others=("B", "P", "l_kernel")),
    Version("S4D", "log_dt", "log_A_real", "A_imag"),
    Version("v3 with a low-rank term", "log_dt", "inv_w_real", "w_imag", others=("B", "P", "L")),
    Version("v3, diagonal", "log_dt", "inv_A_real", "A_imag", disc="bilinear", others=("A", "B")),
    Version("v2", "log_dt", "log_w_real", "w_imag", others=("B", "P", "omega", "z")),
    Version("v1 or v2, A not constrained", "log_dt", "", "w",
            others=("B", "P", "Q", "omega", "nodes", "z")),
)  # fmt: skip


_LOW_RANK = ("l_kernel", "L", "omega", "z", "Q")
"""Names that only a kernel with a low-rank term has."""


def version_of(kernel: Mapping[str, Tensor], where: str) -> Version:
    """The version whose names these are.

    Args:
        kernel: The tensors of one kernel.
        where: Their common prefix, for messages.
    """
    if "A" in kernel and "A_imag" not in kernel:
        raise NotExpressibleError(f"{where}A is a dense complex state matrix, which no layer of statespan has")
    if {"alpha", "beta", "gamma"} & kernel.keys():
        raise NotExpressibleError(f"{where} is the moving average of Mega, not an SSM of statespan")
    if "inv_dt" in kernel and "A_real" in kernel and "A_imag" not in kernel:
        raise NotExpressibleError(f"{where} has real modes (is_real=True), but statespan's are conjugate pairs")
    for version in VERSIONS:
        needed = {name for name in ("C", version.dt, version.A_real, version.A_imag) if name}
        if needed <= kernel.keys():
            extra = sorted(kernel.keys() - needed - set(version.others))
            if extra:
                raise LoadError(f"{where} has {', '.join(extra)}, which the reference's {version.title} does not")
            if "B" not in kernel and "B" in version.others:
                raise LoadError(f"{where}B is missing, which the reference's {version.title} has")
            _check_low_rank(kernel, where)
            return version
    near = max(VERSIONS, key=lambda version: len({version.dt, version.A_real, version.A_imag} & kernel.keys()))
    missing = [name for name in (near.dt, near.A_real, near.A_imag) if name and name not in kernel]
    raise LoadError(f"{where}{missing[0]} is missing, which the reference's {near.title} has; got {', '.join(kernel)}")


def _check_low_rank(kernel: Mapping[str, Tensor], where: str) -> None:
    """Reject part of a low-rank kernel, which would otherwise pass for a diagonal one."""
    if "P" in kernel or "nodes" in kernel:  # v1 has P in further rows of B
        return
    beside = [name for name in _LOW_RANK if name in kernel]
    if beside:
        raise LoadError(f"{where}P is missing, which a kernel with {beside[0]} has; a diagonal SSM has neither")
