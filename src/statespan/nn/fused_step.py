"""Steps of residual blocks on a CPU without gradients: the work of their modules in a few calls.

At batch 1 a step is a few thousand multiplications, so its time is that of calling modules and operations. Here a block
is normalization, the recurrence, GELU, the mixing and the sum, on arrays that are used again. Factors are folded into
the weights: with y' = y/√2 GELU is ``(y' + y' erf y')/√2``, and a gate ``a σ(b)`` is ``a/2 + a/2 tanh(b/2)``.

It is taken only where that makes no difference: a module that is hooked, replaced or parametrized is called, as are all
under autocast, gradients, tracers or transforms. Parameters are those at the time the step was made.

Shapes: B batch, D features, H = D heads, N state size, K channels, F = K·D features to mix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as _torch

from statespan.nn.dropout import DROPOUTS
from statespan.nn.norm import BatchNorm, LayerNorm, NoNorm, ResidualNorm
from statespan.ops import Stepper
from statespan.ops.dispatch import forced_path
from statespan.ops.fusion import GLU, plain_linear, untouched
from statespan.ops.step.eager import EagerStep, StepMemory, is_eager_on_cpu

Normalize = Callable[[Tensor], Tensor]
DTYPES = (torch.float32, torch.float64)
HALF = math.sqrt(0.5)


class StepParts(NamedTuple):
    """The modules of a block with a layer between a norm and a residual.

    Example:
        >>> from statespan.nn import S4D, ResidualBlock
        >>> block = ResidualBlock(S4D(4)).eval()
        >>> layer, stepper = block.layer, block.layer.stepper().set_up
        >>> parts = StepParts(block.norm, block.prenorm, (layer.dropout, block.dropout), layer.mix, stepper)
        >>> fused_block(parts, torch.float32).state_shape
        (4, 64)
    """

    norm: ResidualNorm
    prenorm: bool
    dropouts: tuple[nn.Module, nn.Module]
    """Before the mixing, and of the layer's output."""
    mix: nn.Module
    stepper: Stepper


class _Mix(NamedTuple):
    """A linear map, whose second half is a gate if there is one."""

    weight: Tensor
    bias: Tensor
    gated: bool


class _Memory:
    """The arrays of a step of ``count`` rows, and their views."""

    def __init__(self, rows: StepMemory, mix: _Mix | None, dtype: torch.dtype) -> None:
        self.rows, count = rows, rows.count
        heads, channels = rows.y.shape[1:]
        self.y = torch.empty(count, channels, heads, dtype=dtype)
        self.erf, self.features = torch.empty_like(self.y), self.y.view(count, -1)
        self.y_array, self.erf_array = self.y.numpy(), self.erf.numpy()
        if mix is not None:
            self.mixed = torch.empty(count, mix.weight.shape[0], dtype=dtype)
            array = self.mixed.numpy()
            self.value, self.gate = (array[:, :heads], array[:, heads:]) if mix.gated else (array, array)
        else:
            self.value = self.gate = self.features.numpy()


class FusedBlock:
    """The step of one block; see :func:`fused_block`.

    Example:
        >>> from statespan.nn import S4D, ResidualBlock
        >>> block = ResidualBlock(S4D(4)).eval()
        >>> with torch.no_grad():
        ...     x, state = torch.ones(2, 4), block.initial_state(2)
        ...     y, _ = block.step(x, state)
        ...     after = block.stepper().fused.advance(x, state, in_place=False)  # replaces x
        >>> torch.allclose(x, y)
        True
    """

    def __init__(self, parts: StepParts, dtype: torch.dtype, mix: _Mix | None) -> None:
        system, early = parts.stepper.system, parts.stepper.early
        self.dtype, self.mix, self.gelu, self.prenorm = dtype, mix, parts.stepper.gelu, parts.prenorm
        self.step = EagerStep(system, early=early, scale=HALF if self.gelu else 1.0)
        self.normalize = normalizer(parts.norm)
        self.state_shape = tuple(system.B.shape)
        self.modules = [parts.norm, *parts.dropouts, *parts.mix.modules()]
        self._spares: list[_Memory] = []

    def takes(self, state: Tensor, count: int) -> bool:
        """Whether this is a state of so many rows for which the step is made."""
        return state.shape == (count, *self.state_shape) and state.dtype in DTYPES and count <= self.step.most

    def advance(self, x: Tensor, state: Tensor, *, in_place: bool) -> Tensor:
        """Replace x (B, D) by the output of the block, and return the new state."""
        memory = self._take(x.shape[0])
        rows, normalize = memory.rows, self.normalize
        rows.u_rows.copy_(x if normalize is None or not self.prenorm else normalize(x))
        self.step.advance(rows, state)
        memory.y.copy_(rows.y_rows)
        if self.gelu:
            torch.erf(memory.y, out=memory.erf)
            np.multiply(memory.y_array, memory.erf_array, out=memory.erf_array)
            np.add(memory.y_array, memory.erf_array, out=memory.y_array)
        value = self._mixed(memory)
        array = x.numpy()
        np.add(array, value, out=array)
        if normalize is not None and not self.prenorm:
            x.copy_(normalize(x))
        after = state.copy_(rows.new) if in_place else rows.new.to(state.dtype, copy=True)
        if len(self._spares) < 2:
            self._spares.append(memory)
        return after

    def _mixed(self, memory: _Memory) -> Any:
        """The mixing's output, an array (B, D)."""
        mix, value, gate = self.mix, memory.value, memory.gate
        if mix is None:
            return np.multiply(value, HALF, out=value) if self.gelu else value
        if len(value) == 1:
            torch.addmv(mix.bias, mix.weight, memory.features[0], out=memory.mixed[0])
        else:
            torch.addmm(mix.bias, memory.features, mix.weight.mT, out=memory.mixed)
        if mix.gated:
            np.tanh(gate, out=gate)
            np.multiply(value, gate, out=gate)
            np.add(value, gate, out=value)
        return value

    def _take(self, count: int) -> _Memory:
        try:
            memory = self._spares.pop()
        except IndexError:
            return self._new(count)
        return memory if memory.rows.count == count else self._new(count)

    def _new(self, count: int) -> _Memory:
        with torch.inference_mode(False):  # it may be written to outside of that mode, too
            return _Memory(StepMemory(count, self.step), self.mix, self.dtype)


class StepGuard:
    """Whether modules still do what their classes do, asked at every step.

    Args:
        modules: Those whose work is done without calling them.

    Example:
        >>> linear = nn.Linear(2, 2)
        >>> guard = StepGuard([linear])
        >>> guard.holds()
        True
        >>> hook = linear.register_forward_hook(print)
        >>> guard.holds()
        False
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.random = [m for m in modules if isinstance(m, BatchNorm) or getattr(m, "p", None)]
        self.hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]

    def holds(self) -> bool:
        """False with a hook, or in training where that makes a difference."""
        if any(self.hooks) or _torch._has_any_global_hook() or torch.is_autocast_enabled("cpu"):
            return False
        if forced_path() == "triton":  # whose interpreted kernels are what is asked for
            return False
        return not any(m.training for m in self.random)


def fused_block(parts: StepParts, dtype: torch.dtype) -> FusedBlock | None:
    """The step of a block, or None if one of its modules has to be called.

    Args:
        parts: Its modules.
        dtype: Of its parameters, inputs and outputs.
    """
    stepper, norm = parts.stepper, parts.norm
    if dtype not in DTYPES or type(stepper) is not Stepper or stepper.eager is None:
        return None
    if not untouched(norm, LayerNorm, BatchNorm, NoNorm):
        return None
    if not all(untouched(m, *DROPOUTS) for m in parts.dropouts):
        return None
    mix = folded(parts.mix, gelu=stepper.gelu)
    if mix is None and (type(parts.mix) is not nn.Identity or not untouched(parts.mix, nn.Identity)):
        return None
    tensors = [*norm.parameters(), *norm.buffers(), *(mix[:2] if mix else ())]
    if any(x.dtype != dtype or not x.is_cpu for x in tensors):
        return None
    return FusedBlock(parts, dtype, mix)


@torch.no_grad()
def folded(module: nn.Module, *, gelu: bool) -> _Mix | None:
    """The map of a mixing with the factors of GELU and of its gate in the weights; None if it has to be called."""
    gated = isinstance(module, GLU)
    inner = module.linear() if isinstance(module, GLU) and untouched(module, GLU) else module
    linear = None if inner is None else plain_linear(inner)
    if linear is None:
        return None
    half = 0.5 if gated else 1.0
    return _Mix((half * (HALF if gelu else 1.0)) * linear.weight.detach(), half * linear.bias.detach(), gated)


def normalizer(norm: ResidualNorm) -> Normalize | None:
    """The norm of rows (B, D) as a function, which returns a new tensor; None for the identity."""
    if isinstance(norm, NoNorm):
        return None
    if isinstance(norm, LayerNorm):
        shape, weight, bias, eps = list(norm.normalized_shape), norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    assert isinstance(norm, BatchNorm)
    wide = (norm.running_var.double() + norm.eps).rsqrt() * norm.weight.detach().double()
    shift = (norm.bias.detach().double() - norm.running_mean.double() * wide).to(norm.weight.dtype)
    scale = wide.to(norm.weight.dtype)
    return lambda x: torch.addcmul(shift, x, scale)


class FusedSteps:
    """Blocks one after the other, and a last norm.

    Args:
        blocks: Their steps.
        last: The norm after them.
        in_place: Whether new states take the place of the old ones.

    Example:
        >>> from statespan.nn import S4D, Backbone
        >>> backbone = Backbone([S4D(4), S4D(4)]).eval()
        >>> blocks = [block.stepper().fused for block in backbone.blocks]
        >>> steps = FusedSteps(blocks, backbone.norm, in_place=False)
        >>> with torch.no_grad():
        ...     x, states = torch.ones(2, 4), backbone.initial_state(2)
        ...     print(steps.takes(x, states), torch.allclose(steps(x, states)[0], backbone.step(x, states)[0]))
        True True
    """

    def __init__(self, blocks: Sequence[FusedBlock], last: ResidualNorm, *, in_place: bool) -> None:
        self.blocks, self.in_place, self.normalize = tuple(blocks), in_place, normalizer(last)
        self.guard = StepGuard([last, *(m for block in blocks for m in block.modules)])
        self.dtype, self.features = blocks[0].dtype, blocks[0].state_shape[0]

    def takes(self, x: Any, states: Sequence[Any]) -> bool:
        """Whether the steps are made for this input (B, D) and these states."""
        if len(states) != len(self.blocks) or not is_eager_on_cpu(x, *states) or not self.guard.holds():
            return False
        if x.dtype != self.dtype or x.ndim != 2 or x.shape[1] != self.features or not x.shape[0]:
            return False
        return all(block.takes(state, x.shape[0]) for block, state in zip(self.blocks, states))

    def __call__(self, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output (B, D), and the new states."""
        x = x.detach().clone(memory_format=torch.contiguous_format)
        after = tuple(block.advance(x, state, in_place=self.in_place) for block, state in zip(self.blocks, states))
        return x if self.normalize is None else self.normalize(x), after
