"""One call of a module: its arguments, and the state of torch that decides what it computes."""

from __future__ import annotations

import copy
import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_flatten, tree_unflatten

from statespan.nn.capture.recorder import CannotCaptureError
from statespan.nn.capture.surface import PLAIN
from statespan.ops.dispatch import forced_path

CONSTANTS = (
    bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.layout, torch.Size,
    torch.memory_format,
)  # fmt: skip
_saved_tensor_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)


def is_traced() -> bool:
    """Whether a compiler or a tracer traces the call, which needs the module itself."""
    return torch.compiler.is_compiling() or bool(torch._C._is_tracing())


def mode_obstacle() -> str | None:
    """The mode of torch in which calls have to run eagerly, or None."""
    if torch._C._are_functorch_transforms_active():
        return "torch.func transforms it"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode watches it"
    if torch.is_anomaly_enabled():
        return "torch.autograd detects anomalies"
    if forward_ad._current_level >= 0:
        return "torch.autograd.forward_ad differentiates it"
    if _saved_tensor_hooks(True) is not None:
        return "hooks for saved tensors watch it, as those of torch.utils.checkpoint"
    if parametrize._cache_enabled:
        return "torch.nn.utils.parametrize.cached() keeps its weights"
    return None


class Call:
    """The arguments of a call. Equal keys mean that one recording serves both calls.

    Args:
        args: Tensors, constants, and nested tuples, lists and dictionaries of them.
        kwargs: The same by name.
        device: Where the module is; None for that of the first tensor.

    Example:
        >>> first, second, longer = (Call([torch.zeros(n)], {}, None) for n in (2, 2, 3))
        >>> first.key() == second.key(), first.key() == longer.key()
        (True, False)
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device | None) -> None:
        self.leaves, self.spec = tree_flatten((tuple(args), dict(kwargs)))
        self.tensors = [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]
        if device is None:
            if not self.tensors:
                raise CannotCaptureError("neither it nor its arguments have tensors")
            device = self.tensors[0].device
        self.device = device
        self.differentiates = torch.is_grad_enabled()
        self.autocast: torch.dtype | None = None

    def key(self) -> tuple[Any, ...]:
        """What determines the computation, apart from the module."""
        if torch.is_autocast_enabled(self.device.type):
            self.autocast = torch.get_autocast_dtype(self.device.type)
        modes = self.differentiates, self.autocast, forced_path(), torch.are_deterministic_algorithms_enabled()
        return self.spec, tuple(map(self._signature, self.leaves)), modes

    def _signature(self, leaf: Any) -> tuple[Any, ...]:
        if isinstance(leaf, Tensor):
            self._check(leaf)
            return leaf.shape, leaf.dtype, self.differentiates and leaf.requires_grad
        if not isinstance(leaf, CONSTANTS):
            raise CannotCaptureError(
                f"an argument is a {type(leaf).__name__}, which is neither a tensor nor a constant"
            )
        return type(leaf), leaf.hex() if isinstance(leaf, float) else leaf  # -0.0 is not 0.0, and NaN is itself

    def _check(self, tensor: Tensor) -> None:
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided or tensor.is_nested:
            raise CannotCaptureError(f"an argument is a {type(tensor).__name__}, not a plain tensor")
        if tensor.device != self.device:
            raise CannotCaptureError(f"an argument is on {tensor.device} and the module on {self.device}")

    def with_static_tensors(self) -> Call:
        """The same call with copies of its tensors, in memory that stays theirs."""
        static = copy.copy(self)
        with torch.inference_mode(False), torch.no_grad():
            static.tensors = [torch.empty_like(tensor).copy_(tensor) for tensor in self.tensors]
        for own, tensor in zip(static.tensors, self.tensors):
            own.requires_grad_(self.differentiates and tensor.requires_grad)
        values = iter(static.tensors)
        static.leaves = [next(values) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        return static

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional arguments and those by name."""
        args, kwargs = tree_unflatten(self.leaves, self.spec)
        return args, kwargs

    @contextmanager
    def modes(self) -> Iterator[None]:
        """The modes of the call, for its recording.

        Autocast keeps no 16-bit copies of the weights: a graph would use those of the recording forever.
        """
        kind, enabled = self.device.type, self.autocast is not None
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(self.differentiates),
            torch.autocast(kind, dtype=self.autocast, enabled=enabled, cache_enabled=False),
        ):
            yield


def without_autocast(device: torch.device) -> torch.autocast:
    """The mode of backward passes."""
    return torch.autocast(device.type, enabled=False)


class Returned:
    """What a module returned: tensors, and the structure around them.

    Args:
        value: Tensors, constants, and nested tuples, named tuples, lists and dictionaries of them.
        device: Where its tensors have to be.

    Example:
        >>> returned = Returned({"y": torch.zeros(2), "count": 1}, torch.device("cpu"))
        >>> returned.rebuild([torch.ones(2)])
        {'y': tensor([1., 1.]), 'count': 1}
    """

    def __init__(self, value: Any, device: torch.device) -> None:
        leaves, self.spec = tree_flatten(value)
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                if type(leaf) not in PLAIN or leaf.layout is not torch.strided or leaf.device != device:
                    raise CannotCaptureError(f"it returns a {type(leaf).__name__} on {leaf.device}, not on {device}")
            elif not isinstance(leaf, CONSTANTS):
                raise CannotCaptureError(f"it returns a {type(leaf).__name__}, neither a tensor nor a constant")
        self.constants = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        self.kinds = [(tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in self.tensors]

    def matches(self, other: Returned) -> bool:
        """Whether both have the same structure, constants and kinds of tensors."""
        return (self.spec, self.constants, self.kinds) == (other.spec, other.constants, other.kinds)

    def take(self) -> list[Tensor]:
        """The tensors, which are then no longer kept here."""
        tensors, self.tensors = self.tensors, []
        return tensors

    def rebuild(self, tensors: Sequence[Tensor]) -> Any:
        """The same structure around other tensors."""
        values = iter(tensors)
        leaves = [next(values) if constant is None else constant[0] for constant in self.constants]
        return tree_unflatten(leaves, self.spec)
