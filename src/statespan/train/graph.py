"""The update as CUDA graphs, one per piece shape and one for the rest, without gaps between kernels.

Batches are copied into fixed tensors; learning rates, the average's weight and the random seed are set from outside
before a replay. Only for one process on a CUDA device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from statespan.data.base import Batch
from statespan.nn.capture.recorder import CannotCaptureError, no_waiting
from statespan.train.step import TrainStep

__all__ = ["CannotCaptureError", "GraphStep", "no_waiting"]

WARM_UP = 3


class GraphStep:
    """A captured :class:`~statespan.train.step.TrainStep`; capturing leaves everything as it was.

    The optimizer must be capturable, with tensors as learning rates. There is one example for each shape of a batch,
    the largest first: the others fit into its memory. A step that cannot be a graph raises a CannotCaptureError.

    Example:
        >>> from statespan.models import build
        >>> from statespan.train.device import OneProcess
        >>> from statespan.train.optim import build_optimizer
        >>> from statespan.train.config import Train
        >>> from statespan.train.tasks import TASKS, Objective
        >>> if torch.cuda.is_available():
        ...     model = build("classifier", options={"d_input": 1, "d_output": 3, "d_model": 8, "n_layers": 1}).cuda()
        ...     train, module = Train(compile="graph"), Objective(model, TASKS["classification"])
        ...     optimizer = build_optimizer(model, train, captured=True)
        ...     step = TrainStep(OneProcess(torch.device("cuda")), module, optimizer, train=train, average=None)
        ...     batch = Batch(torch.zeros(2, 50, 1).cuda(), torch.tensor([0, 2]).cuda())
        ...     graph = GraphStep(step, model, [batch])
        ...     graph.piece(batch, last=True)
        ...     graph.update()
    """

    def __init__(self, step: TrainStep, model: nn.Module, examples: Sequence[Batch]) -> None:
        self.step = step
        self.batches = {example.x.shape: example.map(torch.clone) for example in examples}
        start = {name: value.clone() for name, value in model.state_dict().items()}
        device = step.processes.device
        step.keep_gradients = True
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        try:
            with torch.cuda.stream(stream):
                for number, batch in enumerate(self.batches.values()):
                    for _ in range(1 if number else WARM_UP - 1):
                        step.piece(batch, last=True)  # libraries choose their kernels, the optimizer makes its state
                        step.update()
                    with no_waiting():
                        step.piece(batch, last=True)
                        step.update()
        except CannotCaptureError:
            self._start_again(model, start)
            step.keep_gradients = False
            step.optimizer.zero_grad()
            raise
        finally:
            torch.cuda.current_stream(device).wait_stream(stream)
        self.forwards: dict[torch.Size, torch.cuda.CUDAGraph] = {}
        self.rest = torch.cuda.CUDAGraph()
        for shape, batch in self.batches.items():
            first = next(iter(self.forwards.values()), None)
            pool = None if first is None else first.pool()  # nothing of a piece is read after the next one began
            self.forwards[shape] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.forwards[shape], pool=pool, stream=stream):
                step.piece(batch, last=True)
        with torch.cuda.graph(self.rest, stream=stream):
            step.update()
        self._start_again(model, start)

    def piece(self, batch: Batch, last: bool) -> None:
        """See :meth:`TrainStep.piece`."""
        for into, value in zip(self.batches[batch.x.shape], batch):
            if into is not None and value is not None:
                into.copy_(value)
        self.forwards[batch.x.shape].replay()

    def update(self) -> None:
        """See :meth:`TrainStep.update`."""
        self.rest.replay()

    @torch.no_grad()
    def _start_again(self, model: nn.Module, start: dict[str, torch.Tensor]) -> None:
        step = self.step
        for name, value in model.state_dict().items():
            value.copy_(start[name])
        for state in step.optimizer.state.values():
            for value in state.values():
                value.zero_()
        step.optimizer.zero_grad(set_to_none=False)
        if step.average is not None:
            for name, value in step.average.values.items():
                value.copy_(step.average.parameters[name])
        step.guard.reset()
        step.loss.zero_()
        step.mean_loss()
