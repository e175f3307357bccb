"""The update as two CUDA graphs, one for a piece of the batch and one for the rest: no time between kernels.

Batches are copied into fixed tensors; learning rates, the average's weight and the random seed are set from outside
before a replay. Only for one process on a CUDA device.
"""

from __future__ import annotations

import torch
from torch import nn

from statespan.data.base import Batch
from statespan.train.step import Step

WARM_UP = 3


class GraphStep:
    """A captured :class:`~statespan.train.step.Step`; everything is as before it was made.

    Args:
        step: The update, whose optimizer must be capturable and have tensors as learning rates.
        model: The model, to put back what warming up changes.
        example: A batch of the shapes that all batches have.
    """

    def __init__(self, step: Step, model: nn.Module, example: Batch) -> None:
        self.step = step
        self.batch = Batch(*(None if t is None else t.clone() for t in example))  # type: ignore[arg-type]
        start = {name: value.clone() for name, value in model.state_dict().items()}
        device = step.fabric.device
        step.keep_gradients = True
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):  # libraries choose their kernels, the optimizer makes its state
                step.piece(self.batch, last=True)
                step.update()
        torch.cuda.current_stream(device).wait_stream(stream)
        self.forward, self.rest = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward, stream=stream):
            step.piece(self.batch, last=True)
        with torch.cuda.graph(self.rest, stream=stream):
            step.update()
        self._start_again(model, start)

    def piece(self, batch: Batch, last: bool) -> None:
        """See :meth:`Step.piece`."""
        for into, value in zip(self.batch, batch):
            if into is not None and value is not None:
                into.copy_(value)
        self.forward.replay()

    def update(self) -> None:
        """See :meth:`Step.update`."""
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
