"""The threads of a CPU that training, estimators and generation use: one for small models, else torch's own number.

An operation on few numbers takes less time than dividing it among threads, and far less than waiting for a thread whose
core is busy with another program: on a loaded machine, small models are up to ten times slower on two threads than on
one. The rule looks at sizes only, never at time, so that a run that resumes uses the same number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import nn

from statespan.nn.layer import SSMLayer

SMALL = 2**20  # values of an activation, rows × positions × features; below, one thread
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def activation_size(model: nn.Module, rows: int, length: int) -> int | None:
    """Values in the activation of a model's widest layer for these rows; None for a model without SSM layers.

    Example:
        >>> from statespan.models import build
        >>> activation_size(build("classifier", options={"d_input": 1, "d_output": 2, "d_model": 64}), 32, 100)
        204800
    """
    widths = [module.d_model for module in model.modules() if isinstance(module, SSMLayer)]
    stride = getattr(getattr(model, "config", None), "stride", 1)  # samples a position, in the estimators
    return rows * -(-length // stride) * max(widths) if widths else None


def few_threads(
    model: nn.Module, rows: int, length: int, *, given: int | None = None
) -> contextlib.AbstractContextManager[None]:
    """Use the given number of threads within the context, or one if the model is small and the user chose no number.

    The user chooses one with an environment variable of :data:`VARIABLES` or ``torch.set_num_threads``. A model that is
    not on a CPU changes nothing. The number from before the context returns at its end.
    """
    return threads_for(model, activation_size(model, rows, length), given=given)


@contextlib.contextmanager
def threads_for(model: nn.Module, size: int | None, *, given: int | None = None) -> Iterator[None]:
    """The same for operations on ``size`` values, as on the states of a step; None for an unknown size."""
    is_on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    wanted = given
    if given is None and is_on_cpu and size is not None and size < SMALL and is_default():
        wanted = 1
    before = torch.get_num_threads()
    if wanted is None or wanted == before:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_default() -> bool:
    """Whether torch has its own number of threads: that of the cores, of which two may be one with hyper-threading."""
    if any(os.environ.get(name) for name in VARIABLES):
        return False
    cores = {os.cpu_count() or 1}
    if hasattr(os, "sched_getaffinity"):
        cores.add(len(os.sched_getaffinity(0)))
    return torch.get_num_threads() in cores | {count // 2 for count in cores}
