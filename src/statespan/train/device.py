"""The processes and the device of a run: one process, or all that torchrun started (by Lightning Fabric)."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from statespan._check import check_device
from statespan._quiet import quiet as silenced
from statespan.train.config import ConfigError, Train
from statespan.train.signals import Interrupted

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Processes: TypeAlias = "OneProcess | Fabric"


class OneProcess:
    """The part of Lightning Fabric that training on one device needs; Fabric takes seconds to import.

    Example:
        >>> process = OneProcess(torch.device("cpu"))
        >>> model = process.setup_module(nn.Linear(2, 1))
        >>> process.backward(model(torch.ones(1, 2)).sum())
        >>> model.weight.grad
        tensor([[1., 1.]])
    """

    world_size = 1
    global_rank = 0
    is_global_zero = True

    def __init__(self, device: torch.device, precision: str = "fp32") -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = device if device.type == "cpu" else torch.device(device.type, device.index or 0)
        self.is_half = precision == "bf16"

    def setup_module(self, module: nn.Module) -> nn.Module:
        """The module on the device, in mixed precision for bf16."""
        module = module.to(self.device)
        return _MixedPrecision(module, self.autocast) if self.is_half else module

    def autocast(self) -> AbstractContextManager[object]:
        """The precision of a forward pass."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.is_half else nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of a loss."""
        loss.backward()

    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> AbstractContextManager[None]:
        """Do nothing: there is no other process."""
        return nullcontext()

    def all_reduce(self, value: Tensor, reduce_op: str = "mean") -> Tensor:
        """Return the value itself: there is no other process."""
        return value

    def barrier(self) -> None:
        """Do nothing: there is no other process."""


class _MixedPrecision(nn.Module):
    def __init__(self, inner: nn.Module, autocast: Callable[[], AbstractContextManager[object]]) -> None:
        super().__init__()
        self.inner, self.autocast = inner, autocast

    def forward(self, *parts: Tensor | None, dt_scale: float = 1.0) -> Tensor:
        """As in Fabric: 16-bit inputs, 32-bit output."""
        half = [p.bfloat16() if p is not None and p.is_floating_point() else p for p in parts]
        with self.autocast():
            output: Tensor = self.inner(*half, dt_scale=dt_scale)
        return output.to(torch.get_default_dtype())


def pick_device(device: torch.device | str | None) -> torch.device:
    """The device to use: the one given, or else CUDA if available, or the CPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return check_device("device", device)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def quiet() -> contextlib.AbstractContextManager[None]:
    """Silence the warnings and messages of torch and Lightning."""
    return silenced("lightning", "lightning.fabric", "lightning.pytorch")


# The process group of the last run. A model under DDP lives on in the traceback of an exception; were it the last to
# hold the group, it would free it with Python's lock held, which gloo's thread may need to finish: neither ever would.
_last_group: list[object] = []


@contextlib.contextmanager
def launched(train: Train, device: torch.device) -> Iterator[Processes]:
    """Use one process, or all that torchrun started, within the context."""
    is_distributed = torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()
    world = int(os.environ["WORLD_SIZE"]) if is_distributed else 1
    if train.strategy == "auto" and world == 1:
        with one_process(train, device) as process:
            yield process
        return
    was_initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
    fabric = _launch(train, device, world)
    try:
        with _numerics(train, fabric.device):
            try:
                yield fabric
            except Interrupted:
                fabric.barrier()  # all leave together: a process that is still busy would lose the others
                raise
    finally:
        if not was_initialized and torch.distributed.is_available() and torch.distributed.is_initialized():
            _last_group[:] = [torch.distributed.group.WORLD]
            torch.distributed.destroy_process_group()


@contextlib.contextmanager
def one_process(train: Train, device: torch.device) -> Iterator[OneProcess]:
    """Use this process alone within the context, whatever else torchrun started."""
    process = OneProcess(device, train.precision)
    current = contextlib.nullcontext() if process.device.type != "cuda" else torch.cuda.device(process.device)
    with current, _numerics(train, process.device):
        yield process


def _launch(train: Train, device: torch.device, world: int) -> Fabric:
    with quiet():
        from lightning.fabric import Fabric
    with quiet():  # again, as the import sets the levels of its loggers
        local = int(os.environ["LOCAL_WORLD_SIZE"]) if world > 1 else 1
        if train.strategy == "fsdp" and device.type != "cuda":
            raise ConfigError(f"train.strategy is fsdp, which needs CUDA, and the device is {device.type}")
        devices = [device.index] if device.type == "cuda" and device.index is not None and world == 1 else local
        fabric = Fabric(
            accelerator=device.type,
            devices=devices,
            num_nodes=world // local,
            strategy="ddp" if train.strategy == "auto" else train.strategy,
            precision="bf16-mixed" if train.precision == "bf16" else "32-true",
        )
        fabric.launch()
    return fabric


@contextlib.contextmanager
def _numerics(train: Train, device: torch.device) -> Iterator[None]:
    """Apply a recipe's global torch settings within the context; they and the random states are restored afterwards."""
    uses_cuda = device.type == "cuda" or (torch.cuda.is_available() and torch.cuda.is_initialized())
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[torch.cuda.current_device()] if uses_cuda else []))
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        if train.precision == "tf32":
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high")
        if train.deterministic:
            warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
            before = torch.are_deterministic_algorithms_enabled()
            stack.callback(torch.use_deterministic_algorithms, before, warn_only=warn_only)
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        if train.threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(train.threads)
        yield
