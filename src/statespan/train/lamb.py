"""LAMB: Adam with each parameter's step scaled to the parameter's norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lamb(Optimizer):
    """LAMB (You et al., 2020, Algorithm 2), with decoupled weight decay inside the scaled step.

    Nothing in a step waits for the device. Like torch's fused optimizers it leaves everything as it is where the
    attribute ``found_inf`` is a tensor that is not 0. The arguments are those of :class:`torch.optim.AdamW`.

    Example:
        >>> weight = torch.nn.Parameter(torch.full((4,), 2.0))
        >>> weight.grad = torch.ones(4)
        >>> Lamb([weight], lr=0.1, weight_decay=0.0).step()
        >>> weight[0].item()  # the step has the length of the parameter, times lr
        1.7999999523162842
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        beta1, beta2 = group["betas"]
        step = state["step"] + 1
        mean = state["exp_avg"].lerp(gradient, 1 - beta1)
        square = state["exp_avg_sq"].lerp(gradient.square(), 1 - beta2)
        update = (mean / (1 - beta1**step)) / ((square / (1 - beta2**step)).sqrt() + group["eps"])
        update = update + group["weight_decay"] * parameter
        size, length = parameter.norm(), update.norm()
        trust = torch.where((size > 0) & (length > 0), size / length, 1.0)
        changed = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
        bad = self.found_inf
        for name, value in changed.items():
            state[name].copy_(value if bad is None else torch.where(bad == 0, value, state[name]))
        moved = parameter - group["lr"] * trust * update
        parameter.copy_(moved if bad is None else torch.where(bad == 0, moved, parameter))
