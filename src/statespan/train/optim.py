"""Optimizers and learning rates; SSM parameters get a small learning rate and no weight decay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim import AdamW, Optimizer

from statespan._check import check_bool, check_choice, check_number
from statespan._registry import check_keys, keywords
from statespan.train.parts import METRICS, OPTIMIZERS, SCHEDULES

if TYPE_CHECKING:
    from statespan.train.config import Train

_UNDECAYED = (nn.Embedding, nn.EmbeddingBag, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


def param_groups(
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.0,
    ssm_lr: float = 1e-3,
    *,
    slow_C: bool = False,
    fast_dt: bool = False,
) -> list[dict[str, Any]]:
    """The parameters of a model as parameter groups for a torch optimizer.

    * ``ssm``: A, P, B and Δ of every SSM (and C with ``slow_C``), at ``ssm_lr``, without weight decay;
    * ``no_decay``: biases, norms and embeddings (and Δ with ``fast_dt``), at ``lr``, without weight decay;
    * ``decay``: everything else, at ``lr`` with ``weight_decay``.

    A module says which of its parameters are special in a class attribute ``parameter_groups`` that maps the name of a
    parameter to "ssm", "C", "dt", "no_decay" or "decay"; statespan's own do.

    Args:
        model: Any module.
        lr: Learning rate, positive.
        weight_decay: Weight decay, at least 0.
        ssm_lr: Learning rate of the SSM parameters; never more than ``lr`` is used.
        slow_C: Count C among the SSM parameters.
        fast_dt: Do not count Δ among them.

    Returns:
        Groups with keys "name", "params", "lr" and "weight_decay", empty ones left out. Frozen parameters are left
        out; a shared parameter is listed once.

    Example:
        >>> import torch, statespan
        >>> groups = param_groups(statespan.S4D(8), lr=0.01, weight_decay=0.05)
        >>> [(g["name"], g["lr"], g["weight_decay"]) for g in groups]
        [('ssm', 0.001, 0.0), ('no_decay', 0.01, 0.0), ('decay', 0.01, 0.05)]
        >>> optimizer = torch.optim.AdamW(groups)
    """
    check_number("lr", lr, above=0.0)
    check_number("weight_decay", weight_decay, above=0.0, closed=True)
    check_number("ssm_lr", ssm_lr, above=0.0)
    special = {"C": "ssm" if check_bool("slow_C", slow_C) else "decay"}
    special["dt"] = "no_decay" if check_bool("fast_dt", fast_dt) else "ssm"
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    groups: dict[nn.Parameter, str] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and groups.get(parameter, "decay") == "decay":
                # of a shared parameter's places, one that asks for no decay wins
                groups[parameter] = _group(*_owner(model, path, module, name), special)
    settings = {"ssm": (min(ssm_lr, lr), 0.0), "no_decay": (lr, 0.0), "decay": (lr, weight_decay)}
    members = {name: [p for p, group in groups.items() if group == name] for name in settings}
    return [
        {"name": name, "params": parameters, "lr": settings[name][0], "weight_decay": settings[name][1]}
        for name, parameters in members.items()
        if parameters
    ]


def build_optimizer(model: nn.Module, train: Train, *, captured: bool = False) -> Optimizer:
    """The optimizer of a recipe; its groups remember their learning rate as ``base_lr``.

    The learning rates are tensors if a CUDA graph will capture its step.
    """
    special = {"slow_C": train.slow_C, "fast_dt": train.fast_dt}
    groups = param_groups(model, train.lr, train.weight_decay, train.ssm_lr, **special)
    if not groups:
        raise ValueError("the model has no parameter to train")
    for group in groups:
        group["base_lr"] = group["lr"]
        if captured:
            group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
    if train.optimizer == "lamb":
        return Lamb(groups, betas=train.betas, eps=train.eps)
    if train.optimizer == "adamw":
        return AdamW(groups, betas=train.betas, eps=train.eps, fused=True, capturable=captured)
    make = OPTIMIZERS.find(train.optimizer, "train.optimizer")
    common = {key: value for key, value in (("betas", train.betas), ("eps", train.eps)) if key in keywords(make)}
    optimizer = make(groups, **{**common, **train.optimizer_options})
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"the optimizer {train.optimizer!r} must make a torch.optim.Optimizer, got {type(optimizer).__name__}"
        )
    if any("base_lr" not in group for group in optimizer.param_groups):
        raise ValueError(f"the optimizer {train.optimizer!r} must keep the groups it is given")
    return optimizer


class Lamb(Optimizer):
    """LAMB (You et al., 2020, Algorithm 2), with decoupled weight decay inside the scaled step.

    Nothing in a step waits for the device. Like torch's fused optimizers it leaves everything as it is where the
    attribute ``found_inf`` is a tensor that is not 0. The arguments are those of :class:`torch.optim.AdamW`.

    Example:
        >>> weight = torch.nn.Parameter(torch.full((4,), 2.0))
        >>> weight.grad = torch.ones(4)
        >>> Lamb([weight], lr=0.1, weight_decay=0.0).step()
        >>> weight[0].item()  # the step has the length of the parameter, times lr
        1.7999999523162842
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        beta1, beta2 = group["betas"]
        step = state["step"] + 1
        mean = state["exp_avg"].lerp(gradient, 1 - beta1)
        square = state["exp_avg_sq"].lerp(gradient.square(), 1 - beta2)
        update = (mean / (1 - beta1**step)) / ((square / (1 - beta2**step)).sqrt() + group["eps"])
        update = update + group["weight_decay"] * parameter
        size, length = parameter.norm(), update.norm()
        trust = torch.where((size > 0) & (length > 0), size / length, 1.0)
        changed = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
        bad = self.found_inf
        for name, value in changed.items():
            state[name].copy_(value if bad is None else torch.where(bad == 0, value, state[name]))
        moved = parameter - group["lr"] * trust * update
        parameter.copy_(moved if bad is None else torch.where(bad == 0, moved, parameter))


def rate(train: Train, step: int, total: int, steps_per_epoch: int) -> float:
    """The factor of the learning rates after ``step`` updates: a linear warm-up, then the schedule.

    It is in [0, 1] for the built-in schedules.

    Example:
        >>> from statespan.train import Train
        >>> train = Train(warmup=2, schedule="cosine")
        >>> [round(rate(train, step, 6, 3), 3) for step in range(6)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < train.warmup:
        return (step + 1) / train.warmup
    if train.schedule in _SCHEDULES:
        return _SCHEDULES[train.schedule](train, step, total, steps_per_epoch)
    schedule = SCHEDULES.find(train.schedule, "train.schedule")
    factor = schedule(train, step, total, steps_per_epoch, **train.schedule_options)
    if not (isinstance(factor, (int, float)) and 0 <= factor < math.inf):
        from statespan.train.strict import ConfigError

        raise ConfigError(f"train.schedule is {train.schedule}; allowed: factors >= 0, got {factor!r} in step {step}")
    return float(factor)


def check_parts(train: Train) -> None:
    """Import what the settings name, and reject options that it does not have or allow: it is tried on a tiny model."""
    if train.optimizer not in OPTIMIZERS.built_in:
        make = OPTIMIZERS.find(train.optimizer, "optimizer")
        check_keys("optimizer_options", train.optimizer_options, keywords(make, ("lr", "weight_decay")))
        build_optimizer(nn.Linear(1, 1), train)
    if train.schedule not in SCHEDULES.built_in:
        schedule = SCHEDULES.find(train.schedule, "schedule")
        own = [p.name for p in keywords(schedule).values() if p.kind is p.KEYWORD_ONLY]
        check_keys("schedule_options", train.schedule_options, own)
        rate(train, train.warmup, train.warmup + 10, 5)
    for name in train.metrics:
        METRICS.find(name, "metrics")


def _cosine(train: Train, step: int, total: int, steps_per_epoch: int) -> float:
    end = train.decay_steps or total
    done = min(1.0, (step - train.warmup) / max(1, end - train.warmup))
    return train.min_lr + (1 - train.min_lr) * 0.5 * (1 + math.cos(math.pi * done))


def _multistep(train: Train, step: int, total: int, steps_per_epoch: int) -> float:
    return float(train.factor ** sum(step // steps_per_epoch >= epoch for epoch in train.milestones))


def _constant(train: Train, step: int, total: int, steps_per_epoch: int) -> float:
    return 1.0


# the loop itself lowers the rate of "plateau"
_SCHEDULES = {"cosine": _cosine, "multistep": _multistep, "plateau": _constant, "constant": _constant}


def _owner(model: nn.Module, path: str, module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that owns a parameter and its name there, even if it was parametrized since."""
    if not isinstance(module, ParametrizationList):
        return module, name
    parent, _, name = path.rpartition(".")
    return model.get_submodule(parent.removesuffix("parametrizations").removesuffix(".")), name


def _group(module: nn.Module, name: str, special: dict[str, str]) -> str:
    declarations = getattr(module, "parameter_groups", None)
    declared = declarations.get(name) if isinstance(declarations, dict) else None
    if declared is None:
        plain = "bias" in name or isinstance(module, _UNDECAYED)
        return "no_decay" if plain else "decay"
    known = ("ssm", *special, "no_decay", "decay")
    check_choice(f"parameter_groups[{name!r}] of {type(module).__name__}", declared, known)
    return special.get(declared, str(declared))
