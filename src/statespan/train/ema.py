"""A moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """A moving average of a model's parameters: average += (1 - decay) (parameter - average) at every update.

    The first updates count more: at update t the decay is at most (1 + t) / (10 + t). Buffers are not averaged.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> average = Average(model, 0.5)
        >>> with torch.no_grad():
        ...     _ = model.weight.add_(1.0)
        >>> average.prepare(100)
        >>> average.update(torch.tensor(0.0))
        >>> with average.swapped():
        ...     inside = model.weight.item()
        >>> round(model.weight.item() - inside, 4)
        0.5
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.values = {name: p.detach().clone() for name, p in self.parameters.items()}
        first = next(iter(self.values.values()), torch.zeros(()))
        self.weight = torch.zeros((), device=first.device)

    def prepare(self, step: int) -> None:
        """Set the weight of the update after ``step`` others; separate, so that :meth:`update` can be captured."""
        self.weight.fill_(1 - min(self.decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self, bad: Tensor) -> None:
        """Average in the current parameters, unless ``bad`` is 1."""
        parameters: list[Tensor] = list(self.parameters.values())
        values = list(self.values.values())
        change = torch._foreach_sub(parameters, values)
        torch._foreach_mul_(change, self.weight * (1 - bad))
        torch._foreach_add_(values, change)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Use the averages as the model's parameters within the context."""
        before = {name: p.detach().clone() for name, p in self.parameters.items()}
        self._set(self.values)
        try:
            yield
        finally:
            self._set(before)

    @torch.no_grad()
    def _set(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])
