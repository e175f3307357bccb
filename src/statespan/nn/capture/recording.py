"""One call of a module as graphs with memory of their own: a forward pass, and its backward pass.

The graphs read their arguments, and the gradients of their outputs, from fixed tensors. Everything that is returned is
a copy, so the next replay changes nothing that a user holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from statespan.nn.capture.call import Call, Returned, without_autocast
from statespan.nn.capture.gradients import GradientMemory, reachable
from statespan.nn.capture.recorder import CannotCaptureError, Recorder, Replay
from statespan.nn.capture.surface import Surface

WARM_UP = 2
"""Warm-up calls that may synchronize; libraries choose their kernels in them."""


class Recording:
    """The graphs of one call.

    Recording leaves the module and the random numbers unchanged; :meth:`run` makes the call itself.

    Args:
        module: The module.
        surface: What is fixed of it.
        call: An example of the calls to come.
        recorder: Records the graphs.

    Example:
        >>> from statespan.nn.capture.recorder import CudaRecorder
        >>> if torch.cuda.is_available():
        ...     module, x = nn.Linear(2, 2).cuda(), torch.ones(3, 2).cuda()
        ...     recording = Recording(module, Surface(module), Call([x], {}, x.device), CudaRecorder(x.device))
        ...     assert torch.allclose(recording.run([x])[0], module(x))
    """

    def __init__(self, module: nn.Module, surface: Surface, call: Call, recorder: Recorder) -> None:
        self.module, self.surface, self.call = module, surface, call.with_static_tensors()
        self.order = recorder.order
        self.inputs, self.aliases = self.call.tensors, surface.aliases()
        # whose gradients are wanted; a first backward pass tells which of them there are
        self.wanted = [x for x in (*self.inputs, *self.aliases) if call.differentiates and x.requires_grad]
        self.candidates = self.wanted
        self.reach: list[set[int]] = []  # of each differentiable output: the ids of the tensors it comes from
        self.live: list[Tensor] = []  # outputs with autograd's nodes, between a forward and a backward pass
        self.result: Returned | None = None
        self.constants: list[Tensor] = []  # tensors that a forward pass does not move
        self._prepare(recorder)
        recorder.free_memory()
        wanted = {id(x) for x in self.wanted}
        self.wanted_inputs = [i for i, x in enumerate(self.inputs) if id(x) in wanted]
        self.wanted_parameters = [p for p, x in zip(surface.parameters, self.aliases) if id(x) in wanted]
        self._record(recorder)

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Replay the forward pass on these tensors. Returns copies of its outputs."""
        self.order()
        with torch.no_grad():
            for static, tensor in zip(self.inputs, tensors):
                static.copy_(tensor)
            self.replay_forward()
            return [output.clone() for output in self.outputs]

    def gradients(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Replay the backward pass of the last :meth:`run`, which is possible once.

        Args:
            gradients: Of the differentiable outputs; None for one that was not used.

        Returns:
            Gradients of the wanted tensors, in memory of their own; None for one that no used output depends on.
        """
        self.order()
        for static, gradient in zip(self.output_gradients, gradients):
            if gradient is None:
                static.zero_()
            else:
                static.copy_(gradient)
        self.replay_backward()
        count = len(self.wanted_inputs)
        found: list[Tensor | None] = [gradient.clone() for gradient in self.found[:count]]
        found += self.memory.copies(self.found[count:])
        used = set[int]().union(*(reach for reach, g in zip(self.reach, gradients) if g is not None))
        return [gradient if id(x) in used else None for x, gradient in zip(self.wanted, found)]

    def versions(self) -> int:
        """Grows when a tensor that a backward pass may read is changed in place."""
        return sum(tensor._version for tensor in self.constants)

    def rebuild(self, outputs: Sequence[Tensor]) -> Any:
        """What the module returns, with these outputs."""
        assert self.result is not None
        return self.result.rebuild(outputs)

    def _prepare(self, recorder: Recorder) -> None:
        """Run both passes a few times, then restore the previous values."""
        surface, state = self.surface, recorder.random_state()
        settings, snapshot = surface.settings(), surface.save()
        versions = [tensor._version for tensor in self.inputs]
        try:
            for _ in range(WARM_UP):
                recorder.warm(self._try)
            recorder.warm(self._try, strict=True)
            surface.check_unchanged(settings)
            if recorder.random_state().host != state.host:
                raise CannotCaptureError("it draws random numbers on the CPU, which a graph would repeat")
        except torch.OutOfMemoryError as error:
            raise CannotCaptureError("there is not enough memory for its graphs") from error
        finally:
            moved = {id(tensor) for tensor in surface.restore(snapshot)}
            recorder.set_random_state(state)
            self.live = []
        self.constants = [tensor for tensor in surface.tensors.values() if id(tensor) not in moved]
        if [tensor._version for tensor in self.inputs] != versions:
            raise CannotCaptureError("it changes an argument in place")

    def _try(self) -> None:
        """Run both passes to find the structure of the result and the gradients that exist."""
        before = self.result
        outputs = self._forward()
        self._check_same(before)
        differentiable = [output for output in self.live if output.requires_grad]
        self.reach = [reachable(output, self.candidates) for output in differentiable]
        starts = [torch.zeros_like(output) for output, live in zip(outputs, self.live) if live.requires_grad]
        try:
            found = self._backward(starts)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CannotCaptureError(f"its backward pass fails: {error}".partition("\n")[0]) from error
        if any(gradient is not None and gradient.layout is not torch.strided for gradient in found):
            raise CannotCaptureError("it has sparse gradients")
        self.wanted = [x for x, gradient in zip(self.wanted, found) if gradient is not None]

    def _record(self, recorder: Recorder) -> None:
        """Record both passes."""
        before = self.result
        self.replay_forward, self.outputs = _recorded(recorder, self._forward)
        self._check_same(before)
        self.is_differentiable = [output.requires_grad and bool(self.wanted) for output in self.live]
        if self.wanted:
            self.memory = GradientMemory(self.wanted[len(self.wanted_inputs) :])
            self.output_gradients = [
                torch.zeros_like(output) for output, live in zip(self.outputs, self.live) if live.requires_grad
            ]
            self.replay_backward, self.found = _recorded(recorder, self._backward_into_memory)
        self.live = []  # what autograd saved lies in the memory of the graphs

    def _check_same(self, before: Returned | None) -> None:
        assert self.result is not None
        if before is not None and not self.result.matches(before):
            raise CannotCaptureError("it returns something else in each call")

    def _forward(self) -> list[Tensor]:
        self.live = []
        args, kwargs = self.call.arguments()
        with self.call.modes(), self.surface.swapped(self.aliases):
            value = self.module(*args, **kwargs)
        self.result = Returned(value, self.call.device)
        self.live = self.result.take()
        return [output.detach() for output in self.live]

    def _backward(self, starts: Sequence[Tensor]) -> list[Tensor | None]:
        outputs, self.live = [output for output in self.live if output.requires_grad], []
        if not outputs or not self.wanted:
            return [None] * len(self.wanted)
        with without_autocast(self.call.device):
            return list(torch.autograd.grad(outputs, self.wanted, starts, allow_unused=True))

    def _backward_into_memory(self) -> list[Tensor]:
        found: Any = self._backward(self.output_gradients)
        count = len(self.wanted_inputs)
        return [*found[:count], *self.memory.store(found[count:])]


def _recorded(recorder: Recorder, function: Callable[[], list[Tensor]]) -> tuple[Replay, list[Tensor]]:
    """Record what has just run eagerly: whatever fails now does so because of the recording."""
    try:
        return recorder.record(function)
    except CannotCaptureError:
        raise
    except Exception as error:
        raise CannotCaptureError(f"recording it fails: {error}".partition("\n")[0]) from error
