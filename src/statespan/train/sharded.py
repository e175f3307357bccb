"""The state of a run whose weights are spread over processes (FSDP), gathered to the names that :mod:`~.state` uses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from statespan.train.state import part, random_state, set_random_state

INNER = "model."  # where the model is in the objective, which is what is sharded


def _options() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=torch.cuda.is_available())


def collect(model: nn.Module, optimizer: Optimizer, average: None, meter: dict[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of a run, whole, in the first process; the others take part and get nothing."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, optimizer_state = get_state_dict(model, optimizer, options=_options())
    found: dict[str, Any] = {f"model/{name.removeprefix(INNER)}": value for name, value in weights.items()}
    states: dict[str, Any] = optimizer_state.get("state", {})  # type: ignore[assignment]
    for name, values in states.items():
        found |= {f"optimizer/{name.removeprefix(INNER)}/{key}": value for key, value in values.items()}
    found |= {f"loss/{name}": value for name, value in meter.items()}
    found |= {f"random/{name}": value for name, value in random_state().items()}
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in found.items()}


@torch.no_grad()
def restore(
    tensors: dict[str, Tensor], model: nn.Module, optimizer: Optimizer, average: None, meter: dict[str, Tensor]
) -> None:
    """Put everything back; every process reads the checkpoint and keeps its part."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    load_weights(model, tensors)
    fresh = get_optimizer_state_dict(model, optimizer, options=_options())
    states: dict[str, Any] = {}
    for path, value in part(tensors, "optimizer").items():
        name, _, key = path.rpartition("/")
        states.setdefault(INNER + name, {})[key] = value
    set_optimizer_state_dict(model, optimizer, {**fresh, "state": states}, options=_options())
    for name, value in part(tensors, "loss").items():
        meter[name].copy_(value)
    set_random_state(part(tensors, "random"))


def load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Weights and buffers."""
    from torch.distributed.checkpoint.state_dict import set_model_state_dict

    weights: dict[str, Any] = {INNER + name: value for name, value in part(tensors, "model").items()}
    set_model_state_dict(model, weights, options=_options())
