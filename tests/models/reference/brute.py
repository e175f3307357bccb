"""The published formulas in plain float64: checkpoints with random weights, and what their models compute.

Every SSM is a dense recurrence over complex states of full size N, one head at a time. Nothing here is shared with the
library.

Shapes: B batch, L length, H heads, S independent SSMs (head h uses number h mod S), M = N/2 modes, K kernels, R rank.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import gelu

f64 = torch.float64


def rand(*shape):
    return torch.randn(*shape, dtype=f64)


def both(x):
    """Both of each conjugate pair, on the last axis."""
    return torch.cat([x, x.conj()], -1)


@dataclass
class SSM:
    """A (S, M), B (S, M), C (K, H, M), P (R, S, M) or None, dt (H,); Q (R, S, M) if it is not P."""

    A: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    P: torch.Tensor | None
    dt: torch.Tensor
    rule: str = "bilinear"
    Q: torch.Tensor | None = None

    def discrete(self, h):
        """Ā (N, N), B̄ (N,) and C (K, N) of a head."""
        s = h % len(self.A)
        A = torch.diag(both(self.A[s]))
        Q = self.P if self.Q is None else self.Q
        for p, q in [] if self.P is None else zip(self.P[:, s], Q[:, s]):
            A = A - torch.outer(both(p), both(q).conj())
        eye, dt = torch.eye(len(A), dtype=A.dtype), self.dt[h]
        if self.rule == "bilinear":
            left = eye - dt / 2 * A
            Abar, Bbar = torch.linalg.solve(left, eye + dt / 2 * A), torch.linalg.solve(left, dt * both(self.B[s]))
        else:
            Abar = torch.linalg.matrix_exp(dt * A)
            Bbar = torch.linalg.solve(A, (Abar - eye) @ both(self.B[s]))
        return Abar, Bbar, both(self.C[:, h])

    def run(self, u, ahead=0):
        """Outputs (B, L, K, H) of inputs u (B, L, H); the last ``ahead`` kernels look ahead."""
        batch, length, heads = u.shape
        kernels = len(self.C)
        y = torch.zeros(batch, length, kernels, heads, dtype=f64)
        for h in range(heads):
            Abar, Bbar, C = self.discrete(h)
            x = torch.zeros(batch, len(Abar), dtype=torch.complex128)
            for t in range(length):
                x = x @ Abar.T + u[:, t, h, None] * Bbar
                y[:, t, : kernels - ahead, h] = (x @ C[: kernels - ahead].T).real
            x = torch.zeros_like(x)
            for t in reversed(range(length)):  # the state is that of the samples behind t
                y[:, t, kernels - ahead :, h] = (x @ C[kernels - ahead :].T).real
                x = x @ Abar.T + u[:, t, h, None] * Bbar
        return y

    def truncated(self, length):
        """C̃ = C (I − Ā^length), the first of each pair, (K, H, M)."""
        rows = []
        for h in range(self.C.shape[1]):
            Abar, _, C = self.discrete(h)
            rows.append(C @ (torch.eye(len(Abar)) - torch.linalg.matrix_power(Abar, length)))
        return torch.stack(rows, 1)[..., : self.C.shape[-1]]


@dataclass
class Sizes:
    H: int = 6
    M: int = 3
    S: int = 6
    K: int = 1  # channels
    R: int = 1
    bidirectional: bool = False


def draw(sizes, *, low_rank=True, rule="bilinear"):
    """A random stable SSM."""
    H, M, S, K = sizes.H, sizes.M, sizes.S, sizes.K * (1 + sizes.bidirectional)
    A = torch.complex(-(0.2 + torch.rand(S, M, dtype=f64)), 3 * rand(S, M))
    P = torch.complex(rand(sizes.R, S, M), rand(sizes.R, S, M)) / 2 if low_rank else None
    B, C = torch.complex(rand(S, M), rand(S, M)), torch.complex(rand(K, H, M), rand(K, H, M))
    dt = 0.02 + 0.2 * torch.rand(H, dtype=f64)
    return SSM(A, B, C, P, dt, rule)


def pairs(x):
    return torch.view_as_real(x.resolve_conj().contiguous()).clone()


INVERSE = {
    "exp": torch.log, "softplus": lambda x: torch.log(torch.expm1(x)), "sigmoid": torch.logit,
    "relu": lambda x: x - 1e-4, "none": lambda x: x,
}  # fmt: skip


def v4(ssm, *, length=40, dt="exp", real="exp", imag="none"):
    """The tensors of a kernel in version 4."""
    A_imag = INVERSE[imag](-ssm.A.imag)
    found = {"inv_dt": INVERSE[dt](ssm.dt)[:, None], "A_real": INVERSE[real](-ssm.A.real), "A_imag": A_imag}
    found |= {"B": pairs(ssm.B[None]), "C": pairs(ssm.C)}
    if ssm.P is not None:
        found |= {"P": pairs(ssm.P), "l_kernel": torch.tensor(length)}
        if length:
            found["C"] = pairs(ssm.truncated(length))
    return found


def v3(ssm, *, length=40, real="exp"):
    found = {"log_dt": ssm.dt.log(), "B": pairs(ssm.B[None] if ssm.P is not None else ssm.B), "C": pairs(ssm.C)}
    if ssm.P is None:
        return found | {"inv_A_real": INVERSE[real](-ssm.A.real), "A_imag": ssm.A.imag, "A": pairs(ssm.A)}
    found |= {"P": pairs(ssm.P), "L": torch.tensor(length), "C": pairs(ssm.truncated(length))}
    inverse = INVERSE[real] if real != "relu" else lambda x: x
    return found | {"inv_w_real": inverse(-ssm.A.real), "w_imag": ssm.A.imag}


def nodes(length):
    return pairs(torch.exp(-2j * np.pi * torch.arange(length // 2 + 1, dtype=f64) / length))


def v2(ssm, *, length=40, free=False):
    found = {"log_dt": ssm.dt.log(), "B": pairs(ssm.B[None]), "P": pairs(ssm.P), "C": pairs(ssm.truncated(length))}
    found |= {"omega": nodes(length), "z": nodes(length)}
    if free:
        return found | {"w": pairs(ssm.A), "Q": pairs((ssm.P if ssm.Q is None else ssm.Q).conj())}
    return found | {"log_w_real": (-ssm.A.real).log(), "w_imag": ssm.A.imag}


def v1(ssm, *, length=40):
    """The low-rank terms are rows of B and C; C is conjugated where it is used."""
    P, Q = (x.movedim(0, 1) for x in (ssm.P, ssm.P if ssm.Q is None else ssm.Q))
    B, C = torch.cat([ssm.B[:, None], P], 1), torch.cat([ssm.truncated(length)[0][:, None].conj(), Q], 1)
    found = {"log_dt": ssm.dt.log(), "w": pairs(ssm.A), "B": pairs(B), "C": pairs(C)}
    return found | {"nodes": nodes(length), "z": nodes(length)}


def s4d(ssm):
    """The standalone S4D: B = 1."""
    ssm.B = torch.ones_like(ssm.B)
    return {"log_dt": ssm.dt.log(), "log_A_real": (-ssm.A.real).log(), "A_imag": ssm.A.imag, "C": pairs(ssm.C[0])}


class Block:
    """A layer: the SSM, a skip, GELU, and a linear map with or without a gate.

    Args:
        ssm: The SSM.
        kernel: Its tensors.
        layout: Where they are: "v4", "v3", "v1" or "s4d".
        mix: "glu" or "linear".
    """

    def __init__(self, ssm, kernel, layout="v4", mix="glu", bidirectional=False):
        self.ssm, self.mix, self.ahead = ssm, mix, len(ssm.C) // 2 if bidirectional else 0
        channels, heads = len(ssm.C) - self.ahead, ssm.C.shape[1]
        self.D = rand(channels, heads)
        outputs = heads * (2 if mix == "glu" else 1)
        self.weight, self.bias = rand(outputs, channels * heads) / 3, rand(outputs)
        where = {"v4": "layer.kernel.", "v3": "kernel.kernel.", "v1": "kernel.krylov.", "s4d": "kernel."}[layout]
        D = {"v4": "layer.D", "s4d": "D"}.get(layout, "D")
        self.tensors = {where + name: value for name, value in kernel.items()}
        self.tensors[D] = self.D[0] if layout in ("s4d", "v1") else self.D
        place = "output_linear." if mix == "linear" and layout != "v4" else "output_linear.0."
        weight = self.weight[..., None] if layout == "s4d" else self.weight
        self.tensors |= {f"{place}weight": weight, f"{place}bias": self.bias}

    def __call__(self, u):
        """Outputs of u (B, L, H)."""
        y = self.ssm.run(u, self.ahead)
        if self.ahead:  # both directions add up
            y = sum(y.chunk(2, 2))
        y = y + u[:, :, None] * self.D
        y = gelu(y).flatten(2) @ self.weight.T + self.bias
        if self.mix == "linear":
            return y
        value, gate = y.chunk(2, -1)
        return value * torch.sigmoid(gate)


class FeedForward:
    def __init__(self, d, expand):
        self.W, self.b, self.V, self.c = rand(expand * d, d), rand(expand * d), rand(d, expand * d), rand(d)
        self.tensors = {"ff.0.0.weight": self.W, "ff.0.0.bias": self.b, "ff.2.weight": self.V, "ff.2.bias": self.c}

    def __call__(self, u):
        return gelu(u @ self.W.T + self.b) @ self.V.T + self.c


class Norm:
    """Of "layer", "batch" or "none", with random weights and statistics."""

    def __init__(self, kind, d):
        self.kind, self.w, self.b, self.m, self.v = kind, rand(d), rand(d), rand(d), 0.5 + torch.rand(d, dtype=f64)
        self.tensors = {} if kind == "none" else {"weight": self.w, "bias": self.b}
        if kind == "batch":
            self.tensors |= {"running_mean": self.m, "running_var": self.v, "num_batches_tracked": torch.tensor(7)}

    def __call__(self, x):
        if self.kind == "none":
            return x
        m, v = self.m, self.v
        if self.kind == "layer":
            m, v = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - m) / torch.sqrt(v + 1e-5) * self.w + self.b


class Stack:
    """A sequence model: layers in residual blocks, before or after the norms."""

    def __init__(self, layers, norm="layer", prenorm=True, d=6):
        self.layers, self.prenorm = layers, prenorm
        self.norms = [Norm(norm, d) for _ in layers]
        self.last = Norm(norm if prenorm else "none", d)
        self.tensors = {f"norm.norm.{name}": value for name, value in self.last.tensors.items()}
        for i, (layer, own) in enumerate(zip(layers, self.norms)):
            self.tensors |= {f"layers.{i}.layer.{name}": value for name, value in layer.tensors.items()}
            self.tensors |= {f"layers.{i}.norm.norm.{name}": value for name, value in own.tensors.items()}

    def __call__(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + layer(norm(x)) if self.prenorm else norm(x + layer(x))
        return self.last(x)


def error(found, wanted):
    """The largest difference relative to the peak."""
    assert found.shape == wanted.shape
    return ((found - wanted).abs().max() / wanted.abs().max()).item()
