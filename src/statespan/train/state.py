"""The state of a run as named tensors and a few numbers: the contents of a checkpoint.

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
    """The progress of a run.

    Example:
        >>> progress = Progress(step=100, best_step=50, best=0.9)
        >>> progress.step - progress.best_step  # updates since the best validation
        50
    """

    step: int = 0  # updates made
    validated: int = -1  # step of the last validation, or -1
    best_step: int = -1  # step of the best validation, or -1
    best: float | None = None  # its metric
    best_loss: float | None = None  # its loss, which breaks ties of the metric
    waited: int = 0  # validations since the best
    plateau: int = 0  # validations since the best, or since the rate was lowered
    lowered: int = 0  # how often "plateau" lowered the rate
    log_bytes: int = 0  # size of the log
    seconds: float = 0.0  # duration, summed over all calls that resumed the run

    @classmethod
    def of(cls, data: dict[str, Any]) -> Progress:
        """The progress stored in a checkpoint."""
        maybe = (float, type(None))
        kinds: dict[str, Any] = {f.name: type(f.default) for f in dataclasses.fields(cls)}
        kinds |= {"best": maybe, "best_loss": maybe}
        wrong = set(data) ^ set(kinds)
        wrong |= {key for key in set(data) & set(kinds) if not isinstance(data[key], kinds[key])}
        if wrong:
            raise CheckpointError(f"the progress in the checkpoint has wrong entries: {', '.join(sorted(wrong))}")
        return cls(**data)


class RunState:
    """All mutable state of a run: collected as named tensors, and restored from them.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> state = RunState(model, torch.optim.SGD(model.parameters(), lr=0.1), None, {})
        >>> saved = state.collect()
        >>> before = nn.init.zeros_(model.weight)
        >>> state.restore(saved)
        >>> torch.equal(model.weight, saved["model/weight"])
        True
    """

    is_collective = False  # whether every process must take part in collecting

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, average: Average | None, meter: dict[str, Tensor]
    ) -> None:
        self.model, self.optimizer, self.average, self.meter = model, optimizer, average, meter

    def collect(self) -> dict[str, Tensor]:
        """Copies of all tensors of a run on the CPU; shared ones become separate."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            values = self.optimizer.state.get(parameter, {})
            if odd := [key for key, value in values.items() if not isinstance(value, Tensor)]:
                kind = type(self.optimizer).__name__
                raise CheckpointError(f"the state of {kind} must consist of tensors to be saved, and {odd[0]} is none")
            tensors |= {f"optimizer/{name}/{key}": value for key, value in values.items()}
        tensors |= {f"ema/{name}": value for name, value in (self.average.values if self.average else {}).items()}
        return self._copies(tensors)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore everything in place, so that a captured step continues with it."""
        load_model(self.model, part(tensors, "model"))
        parameters = dict(self.model.named_parameters())
        for path, value in part(tensors, "optimizer").items():
            name, _, key = path.rpartition("/")
            if name not in parameters:
                raise CheckpointError(f"the checkpoint is of another model: there is no parameter {name}")
            state = self.optimizer.state[parameters[name]]
            if key in state:
                state[key].copy_(value)
            else:
                state[key] = value.to(parameters[name].device)
        _copy("ema", self.average.values if self.average else {}, part(tensors, "ema"))
        self._restore_rest(tensors)

    def load_weights(self, tensors: dict[str, Tensor]) -> None:
        """Load the weights for evaluation: the averages if there are any."""
        load_weights(self.model, tensors)

    def _copies(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        tensors |= {f"loss/{name}": value for name, value in self.meter.items()}
        tensors |= {f"random/{name}": value for name, value in random_state().items()}
        return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}

    def _restore_rest(self, tensors: dict[str, Tensor]) -> None:
        _copy("loss", self.meter, part(tensors, "loss"))
        set_random_state(part(tensors, "random"))


class ShardedState(RunState):
    """The same for weights sharded over processes (FSDP); ``model`` is the module that FSDP wrapped.

    Every process takes part. :meth:`collect` gathers whole tensors in the first process and gives the others nothing.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> state = ShardedState(model, torch.optim.SGD(model.parameters(), lr=0.1), None, {})
        >>> isinstance(state, RunState), state.is_collective
        (True, True)
    """

    is_collective = True
    INNER = "model."  # where the model is in the objective, which is what is sharded

    def collect(self) -> dict[str, Tensor]:
        """See :meth:`RunState.collect`."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        weights, optimizer_state = get_state_dict(self.model, self.optimizer, options=_full())
        tensors: dict[str, Any] = {f"model/{name.removeprefix(self.INNER)}": value for name, value in weights.items()}
        states: dict[str, Any] = optimizer_state.get("state", {})  # type: ignore[assignment]
        for name, values in states.items():
            tensors |= {f"optimizer/{name.removeprefix(self.INNER)}/{key}": value for key, value in values.items()}
        return self._copies(tensors)

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore everything; every process reads the checkpoint and keeps its part."""
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

        self.load_weights(tensors)
        fresh = get_optimizer_state_dict(self.model, self.optimizer, options=_full())
        states: dict[str, Any] = {}
        for path, value in part(tensors, "optimizer").items():
            name, _, key = path.rpartition("/")
            states.setdefault(self.INNER + name, {})[key] = value
        set_optimizer_state_dict(self.model, self.optimizer, {**fresh, "state": states}, options=_full())
        self._restore_rest(tensors)

    def load_weights(self, tensors: dict[str, Tensor]) -> None:
        """Load weights and buffers."""
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

        weights: dict[str, Any] = {self.INNER + name: value for name, value in part(tensors, "model").items()}
        set_model_state_dict(self.model, weights, options=_full())


def _full() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=torch.cuda.is_available())


def load_model(model: nn.Module, values: dict[str, Tensor]) -> None:
    """Load weights and buffers."""
    try:
        model.load_state_dict(values)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise CheckpointError(f"the checkpoint is of another model: {' '.join(lines[-1].split())}") from None


def load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load the weights for evaluation: the averages if there are any."""
    load_model(model, part(tensors, "model") | part(tensors, "ema"))


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with this prefix, by the rest of their names."""
    return {name.partition("/")[2]: value for name, value in tensors.items() if name.partition("/")[0] == prefix}


@torch.no_grad()
def _copy(kind: str, targets: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    if {n: t.shape for n, t in targets.items()} != {n: t.shape for n, t in values.items()}:
        raise CheckpointError(f"the checkpoint is of another model or recipe: its {kind} has different entries")
    for name, value in values.items():
        targets[name].copy_(value)


def random_state() -> dict[str, Tensor]:
    """The states of the global generators of Python, numpy and torch, as tensors."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.tensor([*legacy["state"]["key"].tolist(), legacy["state"]["pos"]], dtype=torch.int64),
        "numpy_gauss": torch.tensor([legacy["has_gauss"], legacy["gauss"]], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_state(state: dict[str, Tensor]) -> None:
    """Restore the global generators, that of CUDA only if available."""
    torch.set_rng_state(state["torch"])
    version, *words = state["python"].tolist()
    random.setstate((version, tuple(words), next(iter(state["python_gauss"].tolist()), None)))
    *key, position = state["numpy"].tolist()
    has_gauss, gauss = state["numpy_gauss"].tolist()
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), position, int(has_gauss), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
