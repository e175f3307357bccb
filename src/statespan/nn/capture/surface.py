"""What a graph of a module assumes to be fixed: its tensors, submodules and settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from statespan.nn.capture.recorder import CannotCaptureError

PLAIN: tuple[type[Any], ...] = (Tensor, nn.Parameter)
"""Subclasses of tensors (sharded, quantized) do more than their memory shows."""
SETTING = (bool, int, float, str, type(None))
GLOBAL_HOOKS = (
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
)


class UnsettledError(CannotCaptureError):
    """A forward pass changed numbers of the module: perhaps only the first one, in order to set it up.

    Example:
        >>> module = torch.nn.Dropout(0.5)
        >>> surface = Surface(module)
        >>> before = surface.settings()
        >>> module.p = 0.1
        >>> surface.check_unchanged(before)
        Traceback (most recent call last):
            ...
        statespan.nn.capture.surface.UnsettledError: a forward pass changes p
    """


class Place(NamedTuple):
    """An entry of one of the dictionaries of a module.

    Example:
        >>> [place.path for place in Surface(torch.nn.Linear(2, 2)).places]
        ['weight', 'bias']
    """

    table: dict[str, Any]
    name: str
    value: Any
    path: str  # for messages


class Snapshot(NamedTuple):
    """Values to restore.

    Example:
        >>> module = torch.nn.Linear(2, 2)
        >>> surface = Surface(module)
        >>> snapshot = surface.save()
        >>> torch.nn.init.zeros_(module.weight).sum().item()
        0.0
        >>> [tensor.shape for tensor in surface.restore(snapshot)]
        [torch.Size([2, 2])]
    """

    tensors: list[tuple[Tensor, Tensor]]
    settings: list[tuple[dict[str, Any], dict[str, Any]]]


class Surface:
    """A module as a graph of it sees it.

    A graph reads the memory of parameters and buffers, so changes in place reach it. Everything else is fixed when
    it is recorded. :meth:`is_intact` detects tensors and submodules that were replaced; :meth:`settings` are the
    numbers that may change (``training``, the probability of a dropout, ``requires_grad``), with a graph for each.
    ``obstacle`` is why no graph can be made, or None.

    Args:
        module: The module; its submodules belong to it.

    Example:
        >>> module = torch.nn.Linear(2, 2)
        >>> surface = Surface(module)
        >>> surface.is_intact()
        True
        >>> module.weight = torch.nn.Parameter(torch.zeros(2, 2))
        >>> surface.is_intact(), surface.replaced()
        (False, 'weight')
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.places: list[Place] = []
        self.tables: list[dict[str, Any]] = []
        self.options: list[tuple[dict[str, Any], list[str], str]] = []
        self.hooks: list[tuple[dict[Any, Any], str]] = [(hooks, "all modules") for hooks in GLOBAL_HOOKS]
        for path, each in module.named_modules():
            self._add(path, each)
        tensors = {id(place.value): place for place in self.places if isinstance(place.value, Tensor)}
        self.tensors: dict[str, Tensor] = {place.path: place.value for place in tensors.values()}
        self.parameters = [x for x in self.tensors.values() if isinstance(x, nn.Parameter)]
        self.device = next((tensor.device for tensor in self.tensors.values()), None)
        self.obstacle = self._obstacle()
        self.pointers = self._pointers() if self.obstacle is None else []
        self.sizes = list(map(len, self.tables))

    def _add(self, path: str, module: nn.Module) -> None:
        prefix, own = path + "." * bool(path), vars(module)
        for table in (module._modules, module._parameters, module._buffers):
            self.tables.append(table)
            self.places += [Place(table, name, value, prefix + name) for name, value in table.items()]
        attributes = [name for name, value in own.items() if isinstance(value, Tensor)]
        self.places += [Place(own, name, own[name], prefix + name) for name in attributes]
        self.options.append((own, [name for name, value in own.items() if type(value) in SETTING], prefix))
        kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        self.hooks += [(hooks, path or type(module).__name__) for hooks in kinds]

    def hooked(self) -> str | None:
        """The module on which a hook is registered, or None."""
        return next((path for hooks, path in self.hooks if hooks), None)

    def is_intact(self) -> bool:
        """Whether all tensors and submodules are where they were."""
        return (
            all(table.get(name) is value for table, name, value, _ in self.places)
            and (self.obstacle is not None or self._pointers() == self.pointers)
            and list(map(len, self.tables)) == self.sizes
        )

    def replaced(self) -> str:
        """What is not as it was, if :meth:`is_intact` is false."""
        moved = (path for table, name, value, path in self.places if table.get(name) is not value)
        return next(moved, "the memory of its parameters")

    def settings(self) -> tuple[Any, ...]:
        """The numbers of each submodule, and which parameters require a gradient."""
        numbers = tuple(tuple(map(own.get, names)) for own, names, _ in self.options)
        return numbers, tuple(parameter.requires_grad for parameter in self.parameters)

    def save(self) -> Snapshot:
        """The values of all tensors and numbers."""
        return Snapshot(
            [(tensor, tensor.detach().clone()) for tensor in self.tensors.values()],
            [(own, {name: own[name] for name in names}) for own, names, _ in self.options],
        )

    @torch.no_grad()
    def restore(self, snapshot: Snapshot) -> list[Tensor]:
        """Restore these values. Returns the tensors that had changed."""
        for own, values in snapshot.settings:
            own.update(values)
        moved = [(tensor, value) for tensor, value in snapshot.tensors if not torch.equal(tensor, value)]
        for tensor, value in moved:
            tensor.data.copy_(value)  # has no version: nothing that autograd saved is different from before
        return [tensor for tensor, _ in moved]

    def aliases(self) -> list[nn.Parameter]:
        """Parameters that share the memory, but not the user's hooks, ``grad`` and autograd nodes."""
        made = []
        for parameter in self.parameters:
            alias = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
            alias.__dict__.update(parameter.__dict__)
            made.append(alias)
        return made

    @contextmanager
    def swapped(self, aliases: Sequence[nn.Parameter]) -> Iterator[None]:
        """The module with aliases for parameters, inside the context."""
        by_id = {id(parameter): alias for parameter, alias in zip(self.parameters, aliases)}
        places = [place for place in self.places if id(place.value) in by_id]
        for table, name, value, _ in places:
            table[name] = by_id[id(value)]
        try:
            yield
        finally:
            replaced = [path for table, name, value, path in places if table.get(name) is not by_id[id(value)]]
            for table, name, value, _ in places:
                table[name] = value
        if replaced:
            raise CannotCaptureError(f"a forward pass replaces {replaced[0]}")

    def check_unchanged(self, settings: tuple[Any, ...]) -> None:
        """Reject a module whose forward pass replaced tensors or changed numbers; puts its tensors back."""
        moved = [place for place in self.places if place.table.get(place.name) is not place.value]
        for table, name, value, _ in moved:
            table[name] = value
        if moved:
            raise CannotCaptureError(f"a forward pass replaces {moved[0].path}")
        if self.settings() in {settings}:  # compares as dictionaries of recordings do
            return
        changed = (
            prefix + name
            for (own, names, prefix), values in zip(self.options, settings[0])
            for name, value in zip(names, values)
            if own.get(name) not in {value}
        )
        raise UnsettledError(f"a forward pass changes {next(changed, 'which parameters require a gradient')}")

    def _obstacle(self) -> str | None:
        modules = list(self.module.modules())
        for module in modules:
            if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
                kind = type(module).__name__
                return f"it is a {kind}; capture the module inside, as in {kind}(statespan.capture(model))"
        own = {id(module._parameters) for module in modules}
        for table, _, value, path in self.places:
            if not isinstance(value, Tensor):
                continue
            is_parameter = isinstance(value, nn.Parameter)
            if type(value) not in PLAIN or value.layout is not torch.strided:
                return f"{path} is a {type(value).__name__} of layout {value.layout}, not a plain tensor"
            if (id(table) in own or value.requires_grad) and not (is_parameter and value.is_leaf):
                return f"{path} is not a parameter of the module itself"
            if value.is_inference():
                return f"{path} was made in inference mode"
        devices: dict[torch.device, str] = {}
        for path, tensor in self.tensors.items():
            devices.setdefault(tensor.device, path)
        if len(devices) > 1:
            places = ", ".join(f"{path} on {device}" for device, path in devices.items())
            return f"its tensors are on several devices: {places}"
        return None

    def _pointers(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self.tensors.values()]
