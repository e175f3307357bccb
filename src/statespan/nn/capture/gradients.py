"""Memory for the gradients of a recording, and which tensors each output depends on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from statespan.nn.capture.recorder import CannotCaptureError

ALIGNMENT = 128
"""Bytes; aligned memory lets optimizer kernels use vectorized loads."""


class GradientMemory:
    """The gradients of some tensors in one piece of memory for each dtype, so that copying them is one kernel.

    Args:
        tensors: Those that the gradients belong to.

    Example:
        >>> memory = GradientMemory([torch.zeros(2), torch.zeros(3)])
        >>> pieces = memory.store([torch.ones(2), 2 * torch.ones(3)])
        >>> memory.copies(pieces)
        [tensor([1., 1.]), tensor([2., 2., 2.])]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.layout: list[tuple[int, torch.Size, tuple[int, ...], int]] = []  # piece, shape, strides, offset
        sizes: dict[torch.dtype, int] = {}
        for tensor in tensors:
            offset, unit = sizes.get(tensor.dtype, 0), ALIGNMENT // tensor.itemsize
            sizes[tensor.dtype] = offset + -(-tensor.numel() // unit) * unit
            # the strides of the tensor, if they leave no gaps: autograd then keeps the gradient instead of copying it
            strides = torch.empty_like(tensor, device="meta").stride()
            self.layout.append((list(sizes).index(tensor.dtype), tensor.shape, strides, offset))
        self.pieces = [torch.zeros(size, dtype=dtype, device=tensors[0].device) for dtype, size in sizes.items()]
        self.views = self._views(self.pieces)

    @torch.no_grad()
    def store(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Copy the gradients into the memory, and return its pieces."""
        if gradients:
            torch._foreach_copy_(self.views, list(gradients))
        return self.pieces

    def copies(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """The gradients in memory of their own, from pieces filled by :meth:`store`."""
        return self._views([piece.clone() for piece in pieces])

    def _views(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        return [pieces[i].as_strided(shape, strides, offset) for i, shape, strides, offset in self.layout]


def reachable(output: Tensor, wanted: Sequence[Tensor]) -> set[int]:
    """The ids of the wanted tensors that an output was computed from.

    A tensor that requires a gradient and is not wanted is an error: its gradient would be lost.
    """
    found = {}
    if output.grad_fn is None:
        found[id(output)] = output
    else:
        seen, stack = {output.grad_fn}, [output.grad_fn]
        while stack:
            node = stack.pop()
            if (leaf := getattr(node, "variable", None)) is not None:
                found[id(leaf)] = leaf
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    stack.append(following)
    ids = {id(tensor) for tensor in wanted}
    for leaf in found.values():
        if id(leaf) not in ids:
            raise CannotCaptureError(
                f"it uses a tensor of shape {tuple(leaf.shape)} that requires a gradient and is neither an argument "
                "nor a parameter of its own"
            )
    return set(found)
