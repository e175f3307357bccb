"""The slow, obviously right truth in float64 numpy: full conjugate sets, dense matrices, repeated products."""

from __future__ import annotations

import numpy as np
import scipy.linalg


def full(half: np.ndarray) -> np.ndarray:
    """The kept half and its conjugates."""
    return np.concatenate([half, half.conj()], -1)


def discretize(A: np.ndarray, B: np.ndarray, dt: float, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Dense Ā, B̄ by the definitions, with scipy's matrix exponential for the zero-order hold."""
    n = len(B)
    if rule == "bilinear":
        left = np.eye(n) - dt / 2 * A
        return scipy.linalg.solve(left, np.eye(n) + dt / 2 * A), scipy.linalg.solve(left, dt * B)
    block = np.zeros((n + 1, n + 1), dtype=np.result_type(A, B))
    block[:n, :n], block[:n, n] = dt * A, dt * B
    both = scipy.linalg.expm(block)
    return both[:n, :n], both[:n, n]


def first_order_hold(A: np.ndarray, B: np.ndarray, dt: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ā, P and R of ``x_k = Ā x_{k-1} + P u_{k-1} + R u_k``, exact for an input that is linear in between.

    The input is a state of its own: ``u' = v``, ``v' = 0``, with u = u_{k-1} and v = (u_k - u_{k-1})/Δ at the start.
    """
    n = len(B)
    block = np.zeros((n + 2, n + 2), dtype=np.result_type(A, B))
    block[:n, :n], block[:n, n], block[n, n + 1] = A, B, 1
    whole = scipy.linalg.expm(dt * block)
    R = whole[:n, n + 1] / dt
    return whole[:n, :n], whole[:n, n] - R, R


def kernel(A: np.ndarray, B: np.ndarray, C: np.ndarray, dt: float, rule: str, length: int) -> np.ndarray:
    """``C Ā^l B̄`` one power after the other; C (K, n) → (K, length)."""
    values = []
    if rule == "foh":
        Abar, P, R = first_order_hold(A, B, dt)
        values, x, length = [C @ R], Abar @ R + P, length - 1
    else:
        Abar, x = discretize(A, B, dt, rule)
    for _ in range(length):
        values.append(C @ x)
        x = Abar @ x
    return np.stack(values, -1)


def dense_form(ssm) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
    """(A, B, C, dt) of each head of a statespan structure as full dense matrices."""
    get = {name: getattr(ssm, name).detach().numpy() for name in ("A", "B", "C", "dt")}
    P = ssm.P.detach().numpy() if hasattr(ssm, "P") else None
    Q = P if getattr(ssm, "Q", None) is None else ssm.Q.detach().numpy()
    heads = []
    for h in range(ssm.heads):
        A, B, C = get["A"][h], get["B"][h], get["C"][:, h]
        if A.ndim == 1:
            A, B, C = np.diag(full(A)), full(B), full(C)
            if P is not None:
                A = A - full(P[:, h]).T @ full(Q[:, h]).conj()
        heads.append((A, B, C, float(get["dt"][h])))
    return heads


def structure_kernel(ssm, length: int) -> np.ndarray:
    """The kernel (K, H, length) of a structure by brute force."""
    rows = [kernel(*parts, ssm.discretization, length) for parts in dense_form(ssm)]
    return np.stack(rows, 1).real


def mimo(Abar: np.ndarray, Bbar: np.ndarray, C: np.ndarray, u: np.ndarray) -> np.ndarray:
    """``x_k = Ā x_{k-1} + B̄ u_k``, ``y_k = C x_k``: u (B, L, D), B̄ (n, D), C (K, D, n) → (B, L, K, D)."""
    x, y = np.zeros((u.shape[0], len(Abar)), dtype=complex), []
    for u_k in np.moveaxis(u, 1, 0):
        x = x @ Abar.T + u_k @ Bbar.T
        y.append(np.einsum("kdn,bn->bkd", C, x).real)
    return np.stack(y, 1)
