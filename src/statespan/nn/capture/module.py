"""A module whose calls replay CUDA graphs, and which otherwise behaves like the original."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from types import new_class
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from statespan._check import check_int
from statespan.nn.capture.calls import Calls
from statespan.ops.parallel.packing import on_whole_sequences

M = TypeVar("M", bound=nn.Module)


class CapturedModule:
    """Mixin of captured modules, whose calls replay graphs.

    It shares its attributes with the module that was captured: parameters, buffers, submodules, hooks and mode.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> captured = capture(layer)
        >>> isinstance(captured, CapturedModule), captured.weight is layer.weight
        (True, True)
        >>> type(copy.copy(captured)).__name__  # without graphs
        'Linear'
    """

    __slots__ = ("_calls",)
    _calls: Calls

    def __init_subclass__(cls) -> None:
        """Leave registries of the module's class alone."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replay the graph of such a call; see :func:`capture`."""
        calls = getattr(self, "_calls", None)  # replicas and copies have none
        if calls is None or torch.compiler.is_compiling() or not on_whole_sequences():
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        return calls(args, kwargs)

    def __copy__(self) -> Any:
        """A copy of the module itself, without graphs."""
        return copy.copy(self._calls.module)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Deep copies and pickles are those of the module itself, without graphs."""
        calls = getattr(self, "_calls", None)
        return super().__reduce_ex__(protocol) if calls is None else (_itself, (calls.module,))


def _itself(module: M) -> M:
    return module


@cache
def _captured_class(cls: type[nn.Module]) -> type[Any]:
    name = f"Captured{cls.__name__}"
    return new_class(name, (CapturedModule, cls), {}, lambda body: body.update(__slots__=(), __module__=cls.__module__))


def capture(model: M, args: Any = None, kwargs: Mapping[str, Any] | None = None, *, graphs: int = 8) -> M:
    """Record a model's forward and backward passes as CUDA graphs, for your own training loop.

    On a GPU, launching the kernels of a small model from Python can take longer than running them. A graph launches all
    of them at once. Use the returned model in the loop; nothing else changes::

        model = statespan.capture(model)
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    The captured model is an instance of the same class and shares parameters, buffers, submodules, mode and
    ``state_dict`` with the original, which still runs eagerly. Gradients, dropout and running statistics are those of
    the eager model; outputs are copies. Copies and pickles are those of the original, without graphs.

    There is a recording for each combination of shapes, dtypes, constants, autocast, ``no_grad`` and mode. The first
    such call makes it, after three warm-up runs that leave the model and random numbers unchanged. Calls run eagerly,
    with one warning that gives the reason, if there is no CUDA device or the model synchronizes with it. The same holds
    for models with hooks, under ``torch.func`` and similar modes, and beyond ``graphs`` recordings. Under
    ``torch.compile``, the compiler traces the original. Second derivatives are an error.

    Args:
        model: A model of statespan or any other module.
        args: An example, to record its graphs immediately: a tensor, or a tuple of positional arguments. Autocast, mode
            and ``no_grad`` have to be those of the loop.
        kwargs: The example's arguments by name.
        graphs: The largest number of recordings.

    Example:
        >>> from statespan import S4D, capture
        >>> layer = S4D(4, 8)
        >>> model = capture(layer)
        >>> isinstance(model, S4D), model.D is layer.D, list(model.state_dict()) == list(layer.state_dict())
        (True, True, True)
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"model must be a torch.nn.Module that is not a ScriptModule, got {type(model).__name__}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dictionary of arguments by name, got {type(kwargs).__name__}")
    if not (args is None or isinstance(args, (Tensor, tuple, list))):
        raise TypeError(f"args must be a tensor or a tuple of arguments, got {type(args).__name__}")
    check_int("graphs", graphs, minimum=1)
    original = model._calls.module if isinstance(model, CapturedModule) else model
    captured = view(original, Calls(original, graphs))
    if args is not None or kwargs is not None:
        captured._calls.plan((args,) if isinstance(args, Tensor) else args or (), kwargs or {}, depth=2)
    return captured


def view(module: nn.Module, calls: Calls) -> Any:
    """The module with other calls, as an object that shares its attributes."""
    captured = object.__new__(_captured_class(type(module)))  # type: ignore[arg-type]  # mypy: a class has a hash
    object.__setattr__(captured, "__dict__", vars(module))
    object.__setattr__(captured, "_calls", calls)
    return captured
