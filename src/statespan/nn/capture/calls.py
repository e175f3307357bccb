"""Runs the calls of a module: replays recordings if possible, else calls it eagerly.

A forward pass leaves activations in the memory of its graph until its backward pass has read them. Recordings therefore
live in lanes. Those of one lane share memory, and a lane serves one call at a time: from its forward pass until its
backward pass has run, or its outputs are gone. A call that begins in between takes another lane.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from statespan.nn.capture.call import Call, is_traced, mode_obstacle
from statespan.nn.capture.recorder import CannotCaptureError, LoopRecorder, Recorder
from statespan.nn.capture.recording import Recording
from statespan.nn.capture.surface import Surface, UnsettledError

LANES = 4
"""Calls that may wait for their backward passes at once; further ones run eagerly."""
RENEWALS = 8
"""Times that parameters may be replaced before the module runs eagerly for good."""
WORTH = 100
"""Replays that amortize a recording; a renewal after them is not counted."""
_recording = False
"""Whether some module is being recorded: the modules inside it belong to its graph."""


class Lane:
    """Recordings that share memory.

    Example:
        >>> lane = Lane(recorder=None)  # recordings are added by Calls
        >>> lane.is_busy, lane.recordings
        (False, {})
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.recordings: dict[Any, Recording] = {}
        self.is_busy = False


class Flight:
    """A call between its forward and its backward pass.

    Example:
        >>> if torch.cuda.is_available():
        ...     module, x = nn.Linear(2, 2).cuda(), torch.ones(3, 2).cuda()
        ...     lane, recording, tensors = Calls(module, graphs=8).plan((x,), {})
        ...     flight = Flight(lane, recording, tensors)
        ...     assert torch.allclose(flight.run()[0], module(x)) and lane.is_busy
        ...     flight.close()
    """

    def __init__(self, lane: Lane, recording: Recording, tensors: Sequence[Tensor]) -> None:
        self.lane, self.recording, self.tensors = lane, recording, tensors
        self.is_open = lane.is_busy = True
        self.versions = recording.versions()

    def run(self) -> list[Tensor]:
        """The outputs."""
        tensors, self.tensors = self.tensors, ()
        return self.recording.run(tensors)

    def gradients(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the wanted tensors; the flight ends."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a captured module has no second derivatives (create_graph=True); use the module without capture"
            )
        if not self.is_open:
            raise RuntimeError(
                "a captured module runs backward once for each forward pass, also with retain_graph=True; use the "
                "module without capture"
            )
        if self.recording.versions() != self.versions:
            raise RuntimeError(
                "a parameter or buffer of a captured module was changed in place between a forward pass and its "
                "backward pass, which would compute with the new values; call backward() before the optimizer's step"
            )
        try:
            return self.recording.gradients(gradients)
        finally:
            self.close()

    def close(self) -> None:
        """Let other calls use the lane."""
        if self.is_open:
            self.is_open = self.lane.is_busy = False

    def __del__(self) -> None:  # with the last output that remembers it
        self.close()


class Replayed(torch.autograd.Function):
    """A recording for autograd. Its inputs are the tensors whose gradients it has.

    Example:
        >>> from statespan import capture
        >>> if torch.cuda.is_available():
        ...     y = capture(nn.Linear(2, 2).cuda())(torch.ones(3, 2).cuda())
        ...     assert type(y.grad_fn).__name__ == "ReplayedBackward"
    """

    @staticmethod
    def forward(ctx: Any, flight: Flight, *wanted: Tensor) -> tuple[Tensor, ...]:
        """Copies of the outputs."""
        outputs, differentiable = flight.run(), flight.recording.is_differentiable
        ctx.flight, ctx.differentiable = flight, differentiable
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(output for output, flag in zip(outputs, differentiable) if not flag))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs, in memory of their own."""
        wanted = [gradient for gradient, flag in zip(gradients, ctx.differentiable) if flag]
        return None, *ctx.flight.gradients(wanted)


class Calls:
    """The recordings of a module, made when they are first needed.

    Args:
        module: The module.
        graphs: The largest number of recordings.
        recorder: Makes a recorder for a device.

    Example:
        >>> calls = Calls(nn.Linear(2, 2), graphs=8)
        >>> calls.lanes  # recordings are made when they are first needed
        []
    """

    def __init__(self, module: nn.Module, graphs: int, recorder: type[Recorder] = LoopRecorder) -> None:
        self.module, self.graphs, self.recorder = module, graphs, recorder
        self.warned: set[str] = set()
        self.given_up: str | None = None
        self.replays = self.renewals = self.renewed_at = self.unsettled = 0
        self._start(Surface(module))

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the module."""
        plan = self.plan(args, kwargs)
        if plan is None:
            return self.module(*args, **kwargs)
        lane, recording, tensors = plan
        self.replays += 1
        if recording.wanted:
            sources = [tensors[i] for i in recording.wanted_inputs] + recording.wanted_parameters
            outputs = Replayed.apply(Flight(lane, recording, tensors), *sources)
        else:
            outputs = recording.run(tensors)
        return recording.rebuild(outputs)

    def plan(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, depth: int = 3
    ) -> tuple[Lane, Recording, Sequence[Tensor]] | None:
        """A free lane, the recording in it that serves a call, and the call's tensors; None for an eager call.

        Args:
            args: Positional arguments.
            kwargs: Arguments by name.
            depth: How many frames above this one a warning is meant for.
        """
        if _recording or is_traced():
            return None
        try:
            self._check()
            call = Call(args, kwargs, self.surface.device)
            if (obstacle := self.recorder.obstacle(call.device)) is not None:
                raise CannotCaptureError(obstacle)
            if self.recorder.is_recording():
                return None
            key = self._known((*call.key(), self.surface.settings()))
            found = next((lane for lane in self.lanes if not lane.is_busy and key in lane.recordings), None)
            if found is None:
                if torch._C._current_graph_task_id() != -1:  # a backward pass that computes a forward pass again
                    return None
                found = self._record(key, call)
        except CannotCaptureError as error:
            self._warn(error, depth)
            return None
        return found, found.recordings[key], call.tensors

    def _start(self, surface: Surface) -> None:
        """Begin without recordings. Flights keep what they need of the old ones."""
        self.surface = surface
        self.lanes: list[Lane] = []
        self.refused: dict[Any, CannotCaptureError] = {}

    def _check(self) -> None:
        """Reject calls that need the module itself; notice parameters that were replaced."""
        reason = self.given_up or mode_obstacle()
        if reason is None and not self.surface.is_intact():
            surface = Surface(self.module)
            reason = surface.obstacle  # of a state that may pass, as in torch.func.functional_call
            if reason is None:
                self._renew(surface)
        if reason is None and (path := self.surface.hooked()) is not None:
            reason = f"a hook is registered on {path}"
        reason = reason or self.surface.obstacle
        if reason is not None:
            raise CannotCaptureError(reason)

    def _renew(self, surface: Surface) -> None:
        self.renewals = 0 if self.replays - self.renewed_at >= WORTH else self.renewals + 1
        self.renewed_at = self.replays
        replaced = self.surface.replaced()
        self._start(surface)
        if self.renewals > RENEWALS:
            self.given_up = f"{replaced} is replaced again and again"
            raise CannotCaptureError(self.given_up)

    def _known(self, key: Any) -> Any:
        try:
            hash(key)
        except TypeError as error:
            raise CannotCaptureError(f"a number of the module or of the call became something else: {error}") from error
        if key in self.refused:
            raise self.refused[key]
        return key

    def _record(self, key: Any, call: Call) -> Lane:
        """Record a call in a lane that is free."""
        global _recording
        if sum(len(lane.recordings) for lane in self.lanes) + len(self.refused) >= self.graphs:
            raise CannotCaptureError(
                f"it needs more than graphs={self.graphs} of them: there is one for each combination of shapes, types, "
                "modes and constants"
            )
        lane = next((lane for lane in self.lanes if not lane.is_busy), None)
        if lane is None:
            if len(self.lanes) >= LANES:
                raise CannotCaptureError(f"{LANES} calls already wait for their backward passes")
            lane = Lane(self.recorder(call.device))
        _recording = True
        try:
            lane.recordings[key] = Recording(self.module, self.surface, call, lane.recorder)
        except CannotCaptureError as error:
            self.refused[key] = error.with_traceback(None)
            raise
        finally:
            _recording = False
        if lane not in self.lanes:
            self.lanes.append(lane)
        return lane

    def _warn(self, error: CannotCaptureError, depth: int) -> None:
        """Say once why calls run eagerly."""
        if isinstance(error, UnsettledError):
            self.unsettled += 1
            if self.unsettled == 1:  # a first call may set up the module
                return
        reason = str(error)
        if reason not in self.warned:
            self.warned.add(reason)
            message = f"{type(self.module).__name__} runs without CUDA graphs here: {reason}"
            warnings.warn(message, UserWarning, stacklevel=depth + 2)
