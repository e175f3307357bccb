"""The state of a run as named tensors and a few numbers: what a checkpoint holds, taken apart and put back.

Tensors are named ``model/…``, ``ema/…``, ``optimizer/<parameter>/<key>``, ``loss/…`` and ``random/…``.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from statespan._io import CheckpointError
from statespan.train.ema import Average


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        step: Updates made.
        validated: Step of the last validation, or -1.
        best_step: Step of the best one, or -1.
        best: Its metric.
        best_loss: Its loss, which decides where the metric is the same.
        waited: Validations since then.
        plateau: Validations since then, or since the rate was lowered.
        lowered: How often "plateau" lowered the rate.
        log_bytes: Size of the log.
        seconds: Time it took, over all its processes in turn.
    """

    step: int = 0
    validated: int = -1
    best_step: int = -1
    best: float | None = None
    best_loss: float | None = None
    waited: int = 0
    plateau: int = 0
    lowered: int = 0
    log_bytes: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, data: dict[str, Any]) -> Progress:
        """From what a checkpoint says."""
        maybe = (float, type(None))
        kinds: dict[str, Any] = {f.name: type(f.default) for f in dataclasses.fields(cls)}
        kinds |= {"best": maybe, "best_loss": maybe}
        wrong = set(data) ^ set(kinds)
        wrong |= {key for key in set(data) & set(kinds) if not isinstance(data[key], kinds[key])}
        if wrong:
            raise CheckpointError(f"the progress in the checkpoint has wrong entries: {', '.join(sorted(wrong))}")
        return cls(**data)


def collect(
    model: nn.Module, optimizer: Optimizer, average: Average | None, meter: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Copies of all tensors of a run on the CPU; shared ones become separate."""
    found = {f"model/{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        found |= {f"optimizer/{name}/{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    found |= {f"ema/{name}": value for name, value in (average.values if average else {}).items()}
    found |= {f"loss/{name}": value for name, value in meter.items()}
    found |= {f"random/{name}": value for name, value in random_state().items()}
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in found.items()}


def restore(
    tensors: dict[str, Tensor],
    model: nn.Module,
    optimizer: Optimizer,
    average: Average | None,
    meter: dict[str, Tensor],
) -> None:
    """Put everything back, in place, so that a captured step goes on with it."""
    load_model(model, part(tensors, "model"))
    parameters = dict(model.named_parameters())
    for path, value in part(tensors, "optimizer").items():
        name, _, key = path.rpartition("/")
        if name not in parameters:
            raise CheckpointError(f"the checkpoint is of another model: there is no parameter {name}")
        state = optimizer.state[parameters[name]]
        if key in state:
            state[key].copy_(value)
        else:
            state[key] = value.to(parameters[name].device)
    _copy("ema", average.values if average else {}, part(tensors, "ema"))
    _copy("loss", meter, part(tensors, "loss"))
    set_random_state(part(tensors, "random"))


def load_model(model: nn.Module, values: dict[str, Tensor]) -> None:
    """Weights and buffers."""
    try:
        model.load_state_dict(values)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise CheckpointError(f"the checkpoint is of another model: {' '.join(lines[-1].split())}") from None


def load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """The weights to use a trained model with: the averages where there are some."""
    load_model(model, part(tensors, "model") | part(tensors, "ema"))


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of one kind, by the rest of their names."""
    return {name.partition("/")[2]: value for name, value in tensors.items() if name.partition("/")[0] == prefix}


@torch.no_grad()
def _copy(what: str, into: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    if {n: t.shape for n, t in into.items()} != {n: t.shape for n, t in values.items()}:
        raise CheckpointError(f"the checkpoint is of another model or recipe: its {what} has other entries")
    for name, value in values.items():
        into[name].copy_(value)


def random_state() -> dict[str, Tensor]:
    """The states of the global generators of Python, numpy and torch, as tensors."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    found = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.tensor([*legacy["state"]["key"].tolist(), legacy["state"]["pos"]], dtype=torch.int64),
        "numpy_gauss": torch.tensor([legacy["has_gauss"], legacy["gauss"]], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def set_random_state(state: dict[str, Tensor]) -> None:
    """Put the global generators back; the CUDA one only where there is CUDA."""
    torch.set_rng_state(state["torch"])
    version, *words = state["python"].tolist()
    random.setstate((version, tuple(words), next(iter(state["python_gauss"].tolist()), None)))
    *key, position = state["numpy"].tolist()
    has_gauss, gauss = state["numpy_gauss"].tolist()
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), position, int(has_gauss), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
