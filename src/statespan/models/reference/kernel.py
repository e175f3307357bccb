"""The SSM of a layer: from the reference's tensors to A, B, C, P and Δ, and C̃ to C.

S4's kernel is computed from a truncated generating function, and the reference trains its coefficients

    C̃ = C (I − Ā^l)

in place of C, where l is the length that its kernel was last prepared for. Both have the same shape, but loading C̃ as C
gives a kernel that is wrong by several per cent. So we solve for C in float64, with the dense Ā of every head.

Shapes: H heads, S independent SSMs (head h uses number h mod S), M = N/2 kept modes, K kernels, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from statespan.models.pretrained import LoadError
from statespan.models.reference.names import Version, version_of
from statespan.models.reference.options import ReferenceOptions
from statespan.models.reference.source import NotExpressibleError
from statespan.nn.real_part import real_part
from statespan.ssm import DPLR
from statespan.ssm.packed import pack_rows
from statespan.ssm.powers import matrix_power


@dataclass(frozen=True)
class ConvertedSSM:
    """An SSM in the parameters of statespan, in float64.

    Args:
        log_dt: (H,).
        A_real: (S, M), before ``real_part``.
        A_imag: (S, M).
        B: (S, M, 2); None if it is 1 and not trained.
        C: (K, H, M, 2).
        P: (R, S, M, 2), or None for a diagonal SSM.
        Q: (R, S, M, 2), or None if it is P.
        real_part: "exp", "softplus", "relu" or "none".
        disc: "zoh" or "bilinear".

    Example:
        >>> zeros = torch.zeros(1, 2, dtype=torch.float64)
        >>> pairs = torch.ones(1, 1, 2, 2, dtype=torch.float64)
        >>> ssm = ConvertedSSM(zeros[0, :1], zeros, zeros, pairs[0], pairs, P=None, Q=None, real_part="exp", disc="zoh")
        >>> ssm.C.shape, ssm.P is None
        (torch.Size([1, 1, 2, 2]), True)
    """

    log_dt: Tensor
    A_real: Tensor
    A_imag: Tensor
    B: Tensor | None
    C: Tensor
    P: Tensor | None
    Q: Tensor | None
    real_part: str
    disc: str


def convert(kernel: Mapping[str, Tensor], options: ReferenceOptions, where: str) -> ConvertedSSM:
    """The SSM of a kernel's tensors.

    Args:
        kernel: By the names of :data:`statespan.models.reference.names.VERSIONS`.
        options: The options of the conversion.
        where: The common prefix of the names, for messages.
    """
    version = version_of(kernel, where)
    kernel = {name: value.double() if value.is_floating_point() else value for name, value in kernel.items()}
    C, B, P, Q = _vectors(kernel, version, where)
    A_real, A_imag, kind = _modes(kernel, version, options, P is not None)
    dt = _steps(kernel[version.dt], C.shape[1], version, options=options, where=where)
    S, M = A_real.shape
    if C.shape[-1] != M:
        raise LoadError(f"{where}C must have {M} modes, as {version.A_imag} has, got shape {tuple(kernel['C'].shape)}")
    for name, x in (("B", B), ("P", P)):
        if x is not None and x.shape[-1:] != (M,):
            shapes = f"{tuple(kernel['C'].shape)}, got shape {tuple(kernel.get(name, kernel['B']).shape)}"
            raise LoadError(f"{where}{name} must have {M} modes, as {where}C has of shape {shapes}")
    if not bool(real_part(kind, A_real).isfinite().all()):
        raise LoadError(f"{where}{version.A_real} must give finite Re A, got up to {A_real.max().item():g}")
    if B is not None:
        A_real, A_imag, B, P, Q = _common(A_real, A_imag, B, P, Q=Q)
        S = len(A_real)
    if A_imag.shape != (S, M) or C.shape[1] % S or (B is not None and B.shape != (S, M)):
        raise LoadError(f"{where}C must have a multiple of {S} heads, as there are {S} SSMs, got {C.shape[1]}")
    if P is not None:
        assert B is not None  # every version with P has it
        if P.ndim != 3 or P.shape[0] not in (1, 2) or P.shape[1:] != (S, M):
            raise NotExpressibleError(
                f"{where}P has shape {tuple(P.shape)}; statespan's low-rank terms have rank 1 or 2"
            )
        ssm = _system((A_real, A_imag, kind), B, C, P, dt=dt, Q=Q)
        length = _length(kernel, options, where)
        try:
            C = untruncate(C, ssm, length, where)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            largest = f"{where}{version.A_real or version.A_imag} gives |A| up to {ssm.A.abs().max().item():g}"
            raise LoadError(f"{where}C cannot be solved for at length {length}: {largest}") from error
    disc = "bilinear" if P is not None else options.disc or version.disc
    pairs = [None if x is None else _pairs(x) for x in (B, P, Q)]
    return ConvertedSSM(dt.log(), A_real, A_imag, pairs[0], _pairs(C), pairs[1], pairs[2], kind, disc)


def untruncate(C_tilde: Tensor, ssm: DPLR, length: int, where: str = "") -> Tensor:
    """C from C̃ = C (I − Ā^length), both (K, H, M), complex.

    Args:
        C_tilde: C̃.
        ssm: The SSM, with any C.
        length: The length l; 0 if the kernel was never prepared, so that C̃ is C.
        where: For messages.
    """
    if length == 0:
        return C_tilde
    rows = torch.linalg.solve(_remainder(ssm, length).mT, pack_rows(C_tilde)[..., None])[..., 0]
    if not bool(rows.isfinite().all()):
        raise LoadError(f"{where}C cannot be solved for: I − Ā^{length} is singular")
    return _unpack_rows(rows)


def truncate(C: Tensor, ssm: DPLR, length: int) -> Tensor:
    """C̃ = C (I − Ā^length), both (K, H, M), complex."""
    return _unpack_rows((pack_rows(C)[..., None, :] @ _remainder(ssm, length))[..., 0, :])


def _remainder(ssm: DPLR, length: int) -> Tensor:
    """I − Ā^length, (H, N, N) on packed states."""
    power = matrix_power(ssm.recurrence().transition.matrix(), length)
    return torch.eye(power.shape[-1], dtype=power.dtype, device=power.device) - power


def _unpack_rows(rows: Tensor) -> Tensor:
    """The inverse of ``pack_rows``."""
    real, imag = rows.chunk(2, -1)
    return torch.complex(real, -imag) / 2


def _system(
    modes: tuple[Tensor, Tensor, str], B: Tensor, C: Tensor, P: Tensor, *, dt: Tensor, Q: Tensor | None
) -> DPLR:
    A_real, A_imag, kind = modes
    copies = C.shape[1] // A_real.shape[0]
    A = torch.complex(real_part(kind, A_real), A_imag)
    Q = None if Q is None else Q.repeat(1, copies, 1)
    return DPLR(A.repeat(copies, 1), P.repeat(1, copies, 1), B.repeat(copies, 1), C, dt=dt, Q=Q)


def transformed(x: Tensor, transform: str, offset: float = 1e-4) -> Tensor:
    """The positive value of a parameter under one of the reference's transforms."""
    if transform == "exp":
        return x.exp()
    if transform == "softplus":
        return torch.logaddexp(x, torch.zeros_like(x))
    if transform == "relu":
        return x.relu() + offset
    return x.sigmoid() if transform == "sigmoid" else x


def _steps(x: Tensor, heads: int, version: Version, *, options: ReferenceOptions, where: str) -> Tensor:
    """Δ, (H,)."""
    if x.ndim == 2 and x.shape[1] > 1 and not bool((x == x[:, :1]).all()):
        raise NotExpressibleError(
            f"{where}{version.dt} has one Δ for each mode (dt_tie=False); statespan has one for each head"
        )
    if x.shape[:1] != (heads,) or x.ndim > 2:
        raise LoadError(f"{where}{version.dt} must be one Δ for each of {heads} heads, got shape {tuple(x.shape)}")
    x = x[:, 0] if x.ndim == 2 else x
    dt = transformed(x, options.dt_transform or "exp") if version.transformed_dt else x.exp()
    if not bool(((dt > 0) & dt.isfinite()).all()):
        raise LoadError(f"{where}{version.dt} must give step sizes > 0, got {dt.min().item():g} … {dt.max().item():g}")
    return dt


def _modes(
    kernel: Mapping[str, Tensor], version: Version, options: ReferenceOptions, low_rank: bool
) -> tuple[Tensor, Tensor, str]:
    """The parameters of Re A and Im A, (S, M), and the ``real_part`` of the first."""
    if not version.A_real:
        A = _complex(kernel[version.A_imag])
        A = A if A.ndim == 2 else A[None]
        return A.real, A.imag, "none"
    x = kernel[version.A_real]
    imag = (
        transformed(kernel[version.A_imag], options.imag_transform or "none")
        if version.title == "v4"
        else kernel[version.A_imag]
    )
    kind = "exp" if version.title in ("S4D", "v2") else options.real_transform or "exp"
    if kind == "relu":
        x = transformed(x, kind, version.relu_offset[low_rank])
    elif kind == "none":
        x = -x
    elif kind == "sigmoid":
        x, kind = torch.nn.functional.logsigmoid(x), "exp"
    return x, version.sign * imag, kind


def _vectors(
    kernel: Mapping[str, Tensor], version: Version, where: str
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """C (K, H, M), B (S, M), P and Q (R, S, M), complex; C may still be C̃, and Q is None if it is P."""
    C = _complex(kernel["C"])
    if "nodes" in kernel:
        return _stacked(_complex(kernel["B"]), C, where)
    C = C[None] if C.ndim == 2 else C
    if C.ndim != 3:
        raise LoadError(f"{where}C must have shape (channels, heads, modes, 2), got {tuple(kernel['C'].shape)}")
    heads = kernel[version.dt].shape[0] if kernel[version.dt].ndim else 1
    C = C.expand(-1, heads, -1) if C.shape[1] == 1 else C
    B = _complex(kernel["B"]) if "B" in kernel else None
    P = _complex(kernel["P"]) if "P" in kernel else None
    if B is not None and B.ndim == 3 and B.shape[0] == 1:
        B = B[0]
    Q = _apart(P, _complex(kernel["Q"]).conj(), where) if "Q" in kernel and P is not None else None
    return C, B, P, Q


def _stacked(B: Tensor, C: Tensor, where: str) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """C, B, P and Q of v1, which stores the low-rank terms as further rows of B and C, and C conjugated."""
    B, C = (x if x.ndim == 3 else x[None] for x in (B, C))  # (H, 1 + R, M)
    if B.shape != C.shape or B.shape[1] < 2:
        raise LoadError(
            f"{where}B and {where}C must have equal shapes (heads, 1 + rank, modes) beside nodes, the low-rank term "
            f"in the rows after the first; got {tuple(B.shape)} and {tuple(C.shape)}"
        )
    P, Q = B[:, 1:].movedim(1, 0), C[:, 1:].movedim(1, 0)
    return C[None, :, 0].conj().resolve_conj(), B[:, 0], P, _apart(P, Q, where)


def _apart(P: Tensor, Q: Tensor, where: str) -> Tensor | None:
    """Q if the two were trained apart, None if they are the same."""
    if P.shape != Q.shape:
        raise LoadError(f"{where}P and {where}Q must have equal shapes, got {tuple(P.shape)} and {tuple(Q.shape)}")
    return None if torch.allclose(P, Q, rtol=1e-6, atol=1e-7) else Q.resolve_conj()


def _common(
    A_real: Tensor, A_imag: Tensor, B: Tensor, P: Tensor | None, *, Q: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The tensors repeated to the largest number of SSMs among them."""
    counts = [len(A_real), len(A_imag), B.shape[0], *([] if P is None else [P.shape[-2]])]
    S = max(counts)
    if B.ndim != 2 or any(S % count for count in counts) or (P is not None and P.ndim != 3):
        return A_real, A_imag, B, P, Q  # reported by the caller
    A_real, A_imag, B = (x.repeat(S // len(x), 1) for x in (A_real, A_imag, B))
    P, Q = (None if x is None else x.repeat(1, S // x.shape[1], 1) for x in (P, Q))
    return A_real, A_imag, B, P, Q


def _length(kernel: Mapping[str, Tensor], options: ReferenceOptions, where: str) -> int:
    """The length that C̃ was prepared for."""
    stored = kernel.get("l_kernel", kernel.get("L"))
    if stored is not None:
        if stored.numel() != 1 or stored.is_floating_point() or int(stored) < 0:
            raise LoadError(f"{where}l_kernel must be one whole number >= 0, got {stored}")
        return int(stored)
    nodes = kernel.get("omega", kernel.get("nodes"))
    if nodes is not None and nodes.shape[0] > 1:
        length = round(2 * math.pi / -_complex(nodes)[1].angle().item())
        if length != 2 * (nodes.shape[0] - 1):
            raise NotExpressibleError(
                f"{where} was prepared for an odd length, {length}, which this version computes wrongly"
            )
        return length
    if options.l_kernel is None:
        raise LoadError(f"{where}l_kernel is missing; give the length that the kernel was prepared for as l_kernel=")
    return options.l_kernel


def _complex(x: Tensor) -> Tensor:
    """A complex tensor, converted from real and imaginary parts in a trailing axis of 2 if needed."""
    if x.is_complex():
        return x.to(torch.complex128)
    if x.ndim < 2 or x.shape[-1] != 2:
        raise LoadError(f"complex weights must have a last axis of 2, got shape {tuple(x.shape)}")
    return torch.complex(*x.double().unbind(-1))


def _pairs(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj().contiguous())
