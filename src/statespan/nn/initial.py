"""Initialises modules that were built on the meta device.

``with torch.device("meta"): model = …``, ``model.to_empty(device="cpu")``, ``model.reset_parameters()``: the values
equal those that the constructor draws after the same seed. Calling ``reset_parameters`` of every module in
``model.modules()``, as torch does, draws from the same distributions in another order.
"""

from __future__ import annotations

from torch import Tensor, nn


class Initialised(nn.Module):
    """A module that can initialise itself and its children.

    Example:
        >>> class Scale(Initialised):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.linear = nn.Linear(2, 2)
        >>> scale = Scale()
        >>> before = nn.init.zeros_(scale.linear.weight)
        >>> scale.reset_parameters()
        >>> bool((scale.linear.weight != 0).all())
        True
    """

    def reset_parameters(self) -> None:
        """Re-initialise all parameters and buffers as the constructor does; the same seed gives the same values."""
        for child in self.children():
            reset(child)


def reset(module: nn.Module) -> None:
    """Re-initialise a module, or its children if it has no ``reset_parameters``."""
    reset_parameters = getattr(module, "reset_parameters", None)
    if callable(reset_parameters):
        reset_parameters()
    else:
        for child in module.children():
            reset(child)


def assign(tensor: Tensor, value: Tensor) -> None:
    """Copy a value into a parameter or a buffer; if it is sharded, the first process's value."""
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is not None:
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(tensor, DTensor)
        value = distribute_tensor(value.to(tensor.device, tensor.dtype), mesh, tensor.placements)
    tensor.copy_(value)
