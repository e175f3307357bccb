"""One update of the weights: forward and backward of each piece, guard, clipping, optimizer, average.

Nothing here waits for the device, so that a step can be captured as a CUDA graph; only with a registered optimizer it
does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from statespan.data.base import Batch
from statespan.train.config import Train
from statespan.train.device import Processes
from statespan.train.ema import Average
from statespan.train.guard import Guard
from statespan.train.parts import OPTIMIZERS


class TrainStep:
    """The work of one update.

    Example:
        >>> from statespan.models import build
        >>> from statespan.train.device import OneProcess
        >>> from statespan.train.optim import build_optimizer
        >>> from statespan.train.tasks import TASKS, Objective
        >>> model = build("classifier", options={"d_input": 1, "d_output": 3, "d_model": 8, "n_layers": 1})
        >>> module, optimizer = Objective(model, TASKS["classification"]), build_optimizer(model, Train())
        >>> step = TrainStep(OneProcess(torch.device("cpu")), module, optimizer, train=Train(), average=None)
        >>> step.piece(Batch(torch.zeros(2, 50, 1), torch.tensor([0, 2])), last=True)
        >>> step.update()
        >>> step.mean_loss() > 0
        True
    """

    def __init__(
        self,
        processes: Processes,
        module: nn.Module,
        optimizer: Optimizer,
        *,
        train: Train,
        average: Average | None,
        is_sharded: bool = False,
    ) -> None:
        self.processes, self.module, self.optimizer = processes, module, optimizer
        self.train, self.average, self.is_sharded = train, average, is_sharded
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.guard = Guard(processes.device)
        self.skips_bad_steps = train.optimizer in OPTIMIZERS.built_in  # for others the host asks, and waits
        if self.skips_bad_steps:
            optimizer.found_inf = self.guard.bad  # type: ignore[attr-defined]  # torch's fused ones skip where it is 1
        self.keep_gradients = False  # a graph needs them where they are
        self.loss = torch.zeros((), device=processes.device)  # of this step
        self.meter = {
            "sum": torch.zeros((), device=processes.device),
            "count": torch.zeros((), device=processes.device),
        }

    def piece(self, batch: Batch, last: bool) -> None:
        """Forward and backward of one piece of the batch; gradients add up until :meth:`update`."""
        with self.processes.no_backward_sync(self.module, enabled=not last):  # type: ignore[arg-type]
            loss = self.module(*batch) / self.train.accumulate
            self.processes.backward(loss)
        self.loss += loss.detach()

    @torch.no_grad()
    def update(self) -> None:
        """Update the weights with the gradients of all pieces, unless the loss or gradient is not finite."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.processes.world_size > 1:
            self.loss.copy_(self._reduced(self.loss, "mean"))
            norm = self._reduced(norm.square(), "sum").sqrt() if self.is_sharded else norm
        self.guard.look(self.loss, norm)
        if self.train.clip is not None:
            torch._foreach_mul_(gradients, (self.train.clip / (norm + 1e-6)).clamp(max=1.0))
        if self.skips_bad_steps or not bool(self.guard.bad):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.keep_gradients)
        if self.average is not None:
            self.average.update(self.guard.bad)
        self.meter["sum"] += self.loss
        self.meter["count"] += 1
        self.loss.zero_()

    def prepare(self, step: int, factor: float) -> None:
        """Set the learning rates (``factor`` times the base ones) and the average's weight for an update."""
        for group in self.optimizer.param_groups:
            value = group["base_lr"] * factor
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value
        if self.average is not None:
            self.average.prepare(step)

    def mean_loss(self) -> float:
        """The mean loss since the last call; waits for the device."""
        total, count = self.meter["sum"].item(), self.meter["count"].item()
        self.meter["sum"].zero_()
        self.meter["count"].zero_()
        return total / max(count, 1)

    def _reduced(self, value: Tensor, operation: str) -> Tensor:
        reduced: Any = self.processes.all_reduce(value.clone(), reduce_op=operation)
        return reduced
