"""Attention layers to test with, and their definition: slow, in float64, by explicit masks."""

from __future__ import annotations

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from statespan.papers.baselines.attention import Attention
from statespan.papers.baselines.linear_attention import LinearAttention, Performer

KINDS = {
    "flash": (Attention, {}),
    "matrix": (Attention, {"flash": False}),
    "linear": (LinearAttention, {}),
    "performer": (Performer, {"n_features": 24}),
}


def build(kind, d_model=8, n_heads=2, dtype=torch.float64, **options):
    cls, own = KINDS[kind]
    return cls(d_model, n_heads, dtype=dtype, **{**own, **options})


def log_kernel(layer, q, k):
    """The logarithm of each query's weight on each key, before they are normalized: (B, H, L, L)."""
    if isinstance(layer, Attention):
        return q @ k.mT / math.sqrt(layer.d_head)
    if isinstance(layer, LinearAttention):
        phi_q, phi_k = (torch.where(x > 0, x + 1, x.clamp(min=-30).exp()) for x in (q, k))  # elu + 1
        return torch.einsum("bhtf,bhsf->bhts", phi_q, phi_k).log()
    log_phi = []
    for x in (q, k):
        x = x / layer.d_head**0.25
        exponent = x @ layer.projection.double().T - (x * x).sum(-1, keepdim=True) / 2
        floor = exponent.max(-1, keepdim=True).values + math.log(1e-6)
        log_phi.append(torch.logaddexp(exponent, floor))
    return (log_phi[0][:, :, :, None] + log_phi[1][:, :, None]).logsumexp(-1)


def heads_of(layer, x):
    """Queries, keys and values (B, H, L, E), one head after the other from the weights."""
    E, width = layer.d_head, layer.n_heads * layer.d_head
    weight, bias = layer.qkv.weight.double(), layer.qkv.bias.double()
    projected = []
    for first in (0, width, 2 * width):
        starts = [first + h * E for h in range(layer.n_heads)]
        projected.append(torch.stack([x.double() @ weight[s : s + E].T + bias[s : s + E] for s in starts], 1))
    return projected


def reference(layer, x, lengths=None):
    """The definition in float64: a softmax of the kernel's logarithm under an explicit mask."""
    batch, length, _ = x.shape
    lengths = [length] * batch if lengths is None else lengths
    t, s = torch.arange(length)[:, None], torch.arange(length)
    real = torch.tensor(lengths)[:, None, None, None]
    mask = (t < real) & (s < real) & ((s <= t) | layer.bidirectional)  # (B, 1, L, L)
    q, k, v = heads_of(layer, x)
    kernel = log_kernel(layer, q, k).masked_fill(~mask, -math.inf)
    kernel = kernel.masked_fill(~mask.any(-1, keepdim=True), 0.0)  # padding, which is overwritten below
    y = torch.cat(list((kernel.softmax(-1) @ v).unbind(1)), -1)
    y = y @ layer.out.weight.double().T + layer.out.bias.double()
    return y * mask.any(-1)[:, 0, :, None]


def run_steps(layer, x, state):
    outputs = []
    for x_t in x.unbind(1):
        y, state = layer.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


class Sizes(TorchDispatchMode):
    """The numbers of elements of all tensors that are made."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor):
                self.largest = max(self.largest, value.numel())
        return result
