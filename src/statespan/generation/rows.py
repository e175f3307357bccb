"""Arithmetic that gives a sequence the same bits in any batch.

Matrix products depend on the batch: libraries choose their kernels, and thereby the order of summation, by its size,
and some sum an unaligned row in another order. Here they always have TILE rows of whole, aligned vectors, padded with
zeros. Elementwise functions treat the last numbers of a tensor differently unless they fill a vector, so the batch is
padded until they do. A CPU uses one thread, because each thread's share of a tensor has its own remainder.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import glu, linear, pad

from statespan.generation.tree import leaves, map_leaves
from statespan.nn.adaptive import AdaptiveTokens
from statespan.ops.fusion import GLU

TILE = {"cpu": 16, "cuda": 256}
VECTOR = 32  # numbers that elementwise functions take at a time: twice the longest vectors
ALIGNED = 64  # bytes of the longest vectors, and the alignment of torch's tensors


def tiled_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x Wᵀ + b`` for x (…, features), computed for TILE rows at a time.

    Example:
        >>> x, weight = torch.randn(3, 5), torch.randn(2, 5)
        >>> bool((tiled_linear(x, weight)[1] == tiled_linear(x[1:2], weight)[0]).all())
        True
    """
    tile = TILE.get(x.device.type, 16)
    flat = x.reshape(-1, x.shape[-1])
    count = flat.shape[0]
    if count == 0:
        return linear(x, weight, bias)
    short = -flat.shape[1] % (ALIGNED // flat.element_size())
    flat = pad(flat, (0, short, 0, -count % tile))
    if flat.data_ptr() % ALIGNED:  # part of a larger tensor
        flat = flat.clone()
    weight = pad(weight, (0, short)) if short else weight
    parts = [linear(part, weight, bias) for part in flat.split(tile)] if count > tile else [linear(flat, weight, bias)]
    y = (torch.cat(parts) if len(parts) > 1 else parts[0])[:count]
    return y.unflatten(0, x.shape[:-1]) if x.ndim > 2 else y


class TiledLinear(nn.Linear):
    """A linear layer computed in tiles.

    Example:
        >>> linear, x = TiledLinear(16, 5), torch.randn(7, 16)
        >>> torch.equal(linear(x)[:1], linear(x[:1]))  # the same bits in any batch
        True
    """

    def forward(self, input: Tensor) -> Tensor:
        """Apply to x (…, features)."""
        return tiled_linear(input, self.weight, self.bias)


class TiledGLU(GLU):
    """A gated linear layer computed in tiles.

    Example:
        >>> mix, x = TiledGLU(nn.Linear(16, 8)), torch.randn(7, 16)
        >>> torch.equal(mix(x)[:1], mix(x[:1]))  # the same bits in any batch
        True
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply to x (positions, features)."""
        inner: Any = self[0]
        return glu(tiled_linear(x, inner.weight, inner.bias), -1)


class TiledTokens(AdaptiveTokens):
    """The adaptive softmax computed in tiles.

    Example:
        >>> tokens, x = TiledTokens(100, 16, cutoffs=[20]), torch.randn(7, 16)
        >>> tokens.log_probs(x).shape
        torch.Size([7, 100])
    """

    linear = staticmethod(tiled_linear)


_TILED: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: TiledLinear, GLU: TiledGLU, AdaptiveTokens: TiledTokens}


def tiled(model: nn.Module) -> Any:
    """A copy of the model with the same parameters and its matrix products in tiles."""
    shared: dict[int, Any] = {id(x): x for x in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    for module in twin.modules():
        if type(module) in _TILED:
            module.__class__ = _TILED[type(module)]
    return twin


def filling(model: Any) -> int:
    """The multiple that batches are padded to, so that every tensor consists of whole SIMD vectors."""
    if next(model.parameters()).is_cuda:
        return 1
    widths = [module.d_model for module in model.modules() if isinstance(getattr(module, "d_model", None), int)]
    return VECTOR // math.gcd(VECTOR, *widths)


@contextlib.contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, disable parallelism within an operation."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def independent(step: Callable[[Tensor, Any], tuple[Tensor, Any]], x: Tensor, state: Any, multiple: int) -> bool:
    """Test whether rows really are independent of each other.

    Batches are padded to this multiple; there must be at least twice as many rows.
    """
    together, rows = step(x, state), len(x)

    def same(where: Callable[[Tensor], Tensor]) -> bool:
        again = step(where(x), map_leaves(where, state))
        return all(map(torch.equal, leaves(again), leaves(map_leaves(where, together))))

    first, last = (lambda t: t[:multiple]), (lambda t: t[rows - multiple :])
    return same(first) and same(last) and same(lambda t: t.roll(1, 0))  # with fewer others, and elsewhere
