"""Lightning Fabric, set up without its messages: one process, or those that torchrun started."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from statespan._quiet import quiet as silenced
from statespan.train.config import ConfigError, Train
from statespan.train.signals import Interrupted

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def pick_device(device: torch.device | str | None) -> torch.device:
    """The device to use: the one given, or CUDA where there is some, or the CPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"device is {device}; allowed are cpu, cuda, cuda:0 … and mps")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {device}, and there is no CUDA device here; allowed are cpu and mps")
    return found


def quiet() -> contextlib.AbstractContextManager[None]:
    """Without the warnings and messages of torch and Lightning."""
    return silenced("lightning", "lightning.fabric", "lightning.pytorch")


# The process group of the last run. A model under DDP lives on in the traceback of an exception; were it the last to
# hold the group, it would free it with Python's lock held, which gloo's thread may need to finish: neither ever would.
_kept: list[object] = []


@contextlib.contextmanager
def launched(train: Train, device: torch.device) -> Iterator[Fabric]:
    """Fabric for one process, or for all that torchrun started, for as long as the context lasts."""
    joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    fabric = _launch(train, device)
    try:
        with _numerics(train):
            try:
                yield fabric
            except Interrupted:
                fabric.barrier()  # all leave together: who is still busy would lose the others
                raise
    finally:
        if not joined and torch.distributed.is_available() and torch.distributed.is_initialized():
            _kept[:] = [torch.distributed.group.WORLD]
            torch.distributed.destroy_process_group()


def _launch(train: Train, device: torch.device) -> Fabric:
    with quiet():
        from lightning.fabric import Fabric
    with quiet():  # again, as the import sets the levels of its loggers
        several = torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()
        world = int(os.environ["WORLD_SIZE"]) if several else 1
        local = int(os.environ["LOCAL_WORLD_SIZE"]) if several else 1
        if train.strategy == "fsdp" and device.type != "cuda":
            raise ConfigError(f"train.strategy is fsdp, which needs CUDA, and the device is {device.type}")
        strategy = "ddp" if train.strategy == "auto" and world > 1 else train.strategy
        one = [device.index] if device.type == "cuda" and device.index is not None and world == 1 else local
        fabric = Fabric(
            accelerator=device.type,
            devices=one,
            num_nodes=world // local,
            strategy=strategy,
            precision="bf16-mixed" if train.precision == "bf16" else "32-true",
        )
        fabric.launch()
    return fabric


@contextlib.contextmanager
def _numerics(train: Train) -> Iterator[None]:
    """The global settings of torch that a recipe asks for, put back afterwards, and so are the random states."""
    precision = torch.get_float32_matmul_precision()
    strict = torch.are_deterministic_algorithms_enabled()
    cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    python, legacy, threads = random.getstate(), np.random.get_state(), torch.get_num_threads()
    with torch.random.fork_rng(devices=cuda):
        try:
            if train.precision == "tf32":
                torch.set_float32_matmul_precision("high")
            if train.deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
                torch.use_deterministic_algorithms(True)
            if train.threads is not None:
                torch.set_num_threads(train.threads)
            yield
        finally:
            torch.set_num_threads(threads)
            random.setstate(python)
            np.random.set_state(legacy)
            torch.set_float32_matmul_precision(precision)
            torch.use_deterministic_algorithms(strict)
