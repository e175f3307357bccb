"""Guards against non-finite losses and gradients: skips the update on the device, then names the cause.

Every update passes through :meth:`Guard.look`, which sets a flag on the device, without the host waiting for it. The
optimizer and the averages change nothing while the flag is set, and it stays set. So when the host looks at it, some
steps later, the weights are those from before the first bad step, and running that step again shows where it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


class NonFiniteError(ArithmeticError):
    """The loss or a gradient became NaN or infinite; the message is one line that says where.

    Example:
        >>> try:
        ...     raise NonFiniteError("the loss or a gradient is not finite in step 12")  # as the training loop does
        ... except ArithmeticError as error:
        ...     print(error)
        the loss or a gradient is not finite in step 12
    """


class Guard:
    """The flag of a bad step and the number of updates before it.

    Example:
        >>> guard = Guard(torch.device("cpu"))
        >>> for loss in (1.0, 2.0, float("nan"), 3.0):
        ...     guard.look(torch.tensor(loss), torch.tensor(1.0))
        >>> guard.first_bad()
        2
    """

    def __init__(self, device: torch.device) -> None:
        self.bad = torch.zeros((), device=device)  # 0 or 1
        self.updates = torch.zeros((), device=device, dtype=torch.int64)  # before the first bad one

    def look(self, loss: Tensor, norm: Tensor) -> None:
        """Record whether an update's loss and the norm of its gradient are finite."""
        self.bad.logical_or_(~(torch.isfinite(loss) & torch.isfinite(norm)))
        self.updates += self.bad == 0

    def first_bad(self) -> int | None:
        """The number of updates before the first bad one, or None; waits for the device."""
        return int(self.updates) if bool(self.bad) else None

    def reset(self) -> None:
        """Reset the flag and the count."""
        self.bad.zero_()
        self.updates.zero_()


def find_cause(model: nn.Module, batch: tuple[Tensor | None, ...], loss_of: Callable[[], Tensor]) -> str | None:
    """Run a bad step again and say where the first non-finite number came from; None if the step is good."""
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return f"the parameter {name}"
    for name, part in zip(("input", "target"), batch):
        if not _finite(part):
            return f"the {name} of the batch"
    seen: list[str] = []
    watch = _Watch(seen)
    handles = [module.register_forward_hook(watch.hook(name, module)) for name, module in model.named_modules()]
    try:
        with torch.enable_grad():
            loss = loss_of()
    finally:
        for handle in handles:
            handle.remove()
    if seen:
        return seen[0]
    if not _finite(loss):
        return "the loss (the model's output is finite)"
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    if seen:
        return seen[0]
    bad = [name for (name, _), gradient in zip(named, gradients) if not _finite(gradient)]
    return f"the gradient of {bad[-1]}" if bad else None


class _Watch:
    """Records outputs and gradients that are not finite, by the module that computed them.

    A gradient is recorded at the tensor where it arrives: the output of one module and the input of another. The second
    module computed it.
    """

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen
        self.labels: dict[int, tuple[bool, str]] = {}  # whether a module took the tensor in, and the message
        self.tensors: list[Tensor] = []  # kept, so that no two have the same id

    def hook(self, name: str, module: nn.Module) -> Callable[[nn.Module, Any, Any], None]:
        """Return a forward hook for one module."""
        label = f"{name or 'the model'} ({type(module).__name__})"

        def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
            for tensor in _tensors(inputs):
                if not self.labels.get(id(tensor), (False, ""))[0]:
                    self._label(tensor, True, f"the gradient that {label} passes back")
            for tensor in _tensors(outputs):
                if not _finite(tensor):
                    self.seen.append(f"the output of {label}")
                if id(tensor) not in self.labels:
                    self._label(tensor, False, f"the gradient that arrives at the output of {label}")

        return hook

    def _label(self, tensor: Tensor, is_input: bool, message: str) -> None:
        new = id(tensor) not in self.labels
        self.labels[id(tensor)] = is_input, message
        self.tensors.append(tensor)
        if new and tensor.requires_grad:
            number = id(tensor)
            tensor.register_hook(lambda gradient: self._arrived(gradient, number))

    def _arrived(self, gradient: Tensor, number: int) -> None:
        if not _finite(gradient):
            self.seen.append(self.labels[number][1])


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _finite(tensor: Tensor | None) -> bool:
    return tensor is None or not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
