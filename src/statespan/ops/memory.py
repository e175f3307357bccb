"""The shared memory of a GPU program, by which tiles are chosen."""

from __future__ import annotations

import torch

UNLIMITED = 1 << 30
"""Where there is no GPU: an interpreter takes tiles of any size."""
_found: dict[int, int] = {}


def shared_memory(device: torch.device) -> int:
    """The shared memory available to one program on this device, in bytes. A tracer treats it as a constant.

    Example:
        >>> shared_memory(torch.device("cpu")) == UNLIMITED
        True
    """
    if device.type != "cuda":
        return UNLIMITED
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _found:
        about = torch.cuda.get_device_properties(index)
        each = (getattr(about, name, 0) for name in ("shared_memory_per_block_optin", "shared_memory_per_block"))
        _found[index] = max(each)
    return _found[index]


# what torch.compiler.assume_constant_result does; it would import the compiler
shared_memory._dynamo_marked_constant = True  # type: ignore[attr-defined]
