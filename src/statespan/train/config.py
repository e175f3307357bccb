"""Recipes: the data, the model and the training settings, as typed data read from strict YAML.

A recipe has the sections ``data``, ``model``, ``train`` and ``about``. The first two are a registered ``name`` and
plain options, which the registries of datasets and models check. The section ``train`` names an optimizer, a schedule
and metrics. All these names are built in, or registered by an installed package or by the program that reads the
recipe; a recipe cannot name anything else to import or run, and reading one imports nothing. A section ``sweep`` has
values for ``statespan ablate --sweep``; training does not use it.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from statespan._registry import Registry
from statespan._suggest import suggest
from statespan.train._sweep import flatten, read_sweep
from statespan.train.parts import METRICS, OPTIMIZERS, SCHEDULES
from statespan.train.strict import KEY, ConfigError, dump, parse, set_value, show

__all__ = ["About", "ConfigError", "Recipe", "Train", "read_recipe", "write_recipe"]


def _at(low: float, high: float = math.inf, *, open_low: bool = False) -> dict[str, Any]:
    """The range of a number: low ≤ value < high, or low < value < high."""
    return {"low": low, "high": high, "open_low": open_low}


@dataclass(frozen=True, kw_only=True)
class Train:
    """The training settings: the section ``train`` of a recipe.

    A *step* is one update of the weights from ``batch`` sequences, however many processes and pieces they are spread
    over, so the same recipe trains the same on one device and on eight.

    Args:
        start: Weights to start from instead of random ones: the folder of a finished run or of a saved model, or the
            name of a published one. The layers must be the same; the encoder and head may differ.
        epochs: Passes over the training data; an incomplete last batch is left out.
        steps: Updates; instead of ``epochs``.
        batch: Sequences an update, over all processes.
        accumulate: Gradient accumulation: pieces that a process's share of the batch is cut into.
        optimizer: "adamw" or "lamb", or one that was registered.
        optimizer_options: Options of a registered optimizer, such as ``{"momentum": 0.9}``.
        lr: Learning rate.
        weight_decay: Weight decay of the group "decay" of :func:`statespan.train.param_groups`.
        ssm_lr: Learning rate of the SSM parameters; never more than ``lr`` is used.
        slow_C: Count C among the SSM parameters.
        fast_dt: Do not count Δ among them.
        betas: Decay rates of the optimizer's averages.
        eps: Added to the optimizer's denominator.
        schedule: "cosine", "multistep", "plateau" or "constant", or one that was registered.
        schedule_options: Options of a registered schedule.
        warmup: Steps over which the rate rises linearly from 0.
        decay_steps: Step at which the cosine reaches its end; the last one if not given.
        min_lr: Fraction of the rate at which the cosine ends.
        milestones: Epochs at which "multistep" multiplies the rate by ``factor``.
        factor: Factor of "multistep" and "plateau".
        plateau_patience: Validations without improvement after which "plateau" multiplies the rate by ``factor``.
        clip: Largest norm of the gradient.
        ema: Decay of a moving average of the weights, which is then evaluated instead of them.
        precision: "fp32", "tf32" or "bf16" (weights and updates stay fp32).
        metrics: Registered metrics to report besides those of the task.
        patience: Validations without improvement after which training ends.
        validate_every: Steps between validations; an epoch's if not given.
        group_lengths: Make batches of sequences of similar length, each cut to its longest; saves padding.
        valid_batch: Sequences a process evaluates at once; ``batch`` if not given.
        test_weights: Test with the "best" weights by validation, or the "last".
        select: Split whose score selects the best weights, lowers the rate on a plateau and counts for ``patience``:
            "valid", or "test" to repeat a paper that did so. Such a test score is too good; all tables mark it.
        compile: How a step runs on CUDA: "none" (as written), "graph" (as a CUDA graph), "compile" (torch.compile),
            "both" (fastest, once compiled: up to a minute), or "auto" (a graph, with one process and a model for which
            that is possible).
        resident: Keep the data on the device: "auto" (if it is small), "always" or "never".
        strategy: "auto" (DDP if there are several processes), "ddp" or "fsdp".
        deterministic: Use only deterministic operations of torch.
        threads: Threads of a process on the CPU. If not given, one for a small model (batch × length × features below
            2²⁰), otherwise torch's own choice; a number set by OMP_NUM_THREADS or torch.set_num_threads is kept.
        seed: Seed of everything random.
        log_every: Steps between two lines of the log.
        save_every: Steps between checkpoints, besides those at validations.
        keep: Newest checkpoints to keep, besides the best.
        tensorboard: Write a TensorBoard log as well, where TensorBoard is installed.

    Example:
        >>> Train(lr=0.004, batch=32).schedule
        'cosine'
        >>> Train(lr=-1.0)
        Traceback (most recent call last):
        ...
        statespan.train.strict.ConfigError: train.lr is -1.0; allowed: a number > 0
    """

    start: str | None = None
    epochs: int = field(default=10, metadata=_at(1, 10**7))
    steps: int | None = field(default=None, metadata=_at(1, 10**12))
    batch: int = field(default=50, metadata=_at(1, 10**7))
    accumulate: int = field(default=1, metadata=_at(1, 10**5))
    optimizer: str = field(default="adamw", metadata={"names": OPTIMIZERS})
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    lr: float = field(default=0.01, metadata=_at(0, open_low=True))
    weight_decay: float = field(default=0.05, metadata=_at(0))
    ssm_lr: float = field(default=0.001, metadata=_at(0, open_low=True))
    slow_C: bool = False
    fast_dt: bool = False
    betas: tuple[float, float] = field(default=(0.9, 0.999), metadata=_at(0, 1))
    eps: float = field(default=1e-8, metadata=_at(0, open_low=True))
    schedule: str = field(default="cosine", metadata={"names": SCHEDULES})
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    warmup: int = field(default=0, metadata=_at(0, 10**12))
    decay_steps: int | None = field(default=None, metadata=_at(1, 10**12))
    min_lr: float = field(default=0.0, metadata=_at(0, 1))
    milestones: tuple[int, ...] = field(default=(), metadata=_at(1, 10**7))
    factor: float = field(default=0.2, metadata=_at(0, 1, open_low=True))
    plateau_patience: int = field(default=20, metadata=_at(0, 10**7))
    clip: float | None = field(default=None, metadata=_at(0, open_low=True))
    ema: float | None = field(default=None, metadata=_at(0, 1, open_low=True))
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    metrics: tuple[str, ...] = field(default=(), metadata={"names": METRICS})
    patience: int | None = field(default=None, metadata=_at(1, 10**7))
    validate_every: int | None = field(default=None, metadata=_at(1, 10**12))
    group_lengths: bool = False
    valid_batch: int | None = field(default=None, metadata=_at(1, 10**7))
    test_weights: Literal["best", "last"] = "best"
    select: Literal["valid", "test"] = "valid"
    compile: Literal["auto", "none", "graph", "compile", "both"] = "auto"
    resident: Literal["auto", "always", "never"] = "auto"
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    deterministic: bool = False
    threads: int | None = field(default=None, metadata=_at(1, 4096))
    seed: int = field(default=0, metadata=_at(0, 2**63))
    log_every: int = field(default=50, metadata=_at(1, 10**9))
    save_every: int = field(default=1000, metadata=_at(1, 10**12))
    keep: int = field(default=2, metadata=_at(1, 1000))
    tensorboard: bool = True

    def __post_init__(self) -> None:
        _check_fields(self, "train")
        for key, names in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            options, name = getattr(self, f"{key}_options"), getattr(self, key)
            if options and name in names.built_in:
                raise ConfigError(f"train.{key}_options is {show(options)}; allowed: {{}} for the built-in {name}")
        selects = self.test_weights == "best" or self.schedule == "plateau" or self.patience is not None
        if self.select == "test" and not selects:
            raise ConfigError("train.select is test; allowed: valid, as no score decides (train.test_weights is last)")


@dataclass(frozen=True, kw_only=True)
class About:
    """The origin of a recipe: the paper's table and number, the training time, and a remark.

    Example:
        >>> About(table="S4 Table 6", number=98.4).table
        'S4 Table 6'
    """

    table: str = ""
    number: str | float | int | None = None
    time: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        _check_fields(self, "about")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete experiment as data.

    Args:
        name: Its name.
        data: Name and options of a dataset.
        model: Name and options of a model.
        train: How to train.
        about: Where the experiment comes from.
        overrides: What the user changed, as ``key=value``.
        sweep: Values by dotted key that ``statespan ablate --sweep`` combines.

    Example:
        >>> Recipe(name="mine", data={"name": "smnist"}, model={"name": "classifier"}).to_dict()["train"]["lr"]
        0.01
    """

    name: str
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    train: Train = field(default_factory=Train)
    about: About = field(default_factory=About)
    overrides: tuple[str, ...] = ()
    sweep: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain data, with all defaults and overrides written out, without its sweep."""
        sections = {"name": self.name, "data": dict(self.data), "model": dict(self.model)}
        for section in ("train", "about"):
            values = dataclasses.asdict(getattr(self, section))
            sections[section] = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}
        return copy.deepcopy(sections)


def read_recipe(source: Path | str | Mapping[str, Any] | Recipe, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, apply dotted overrides and check the result; a mistake is a :class:`ConfigError` of one line.

    Args:
        source: A path (or a string that ends in .yaml or .yml), the text itself, the data as a dict, or another recipe.
        overrides: Such as ``"train.lr=0.001"`` or ``"model.ssm.init=inv"``.

    Example:
        >>> text = "{name: try, data: {name: smnist}, model: {name: classifier}, train: {epochs: 3}}"
        >>> recipe = read_recipe(text, ["train.lr=1e-3", "model.ssm.init=inv"])
        >>> recipe.train.epochs, recipe.train.lr, recipe.model
        (3, 0.001, {'name': 'classifier', 'ssm': {'init': 'inv'}})
        >>> read_recipe(text, ["train.lrr=1"])
        Traceback (most recent call last):
        ...
        statespan.train.strict.ConfigError: train.lrr is not a key of train (value 1); did you mean train.lr?
    """
    earlier: tuple[str, ...] = ()
    if isinstance(source, Recipe):
        earlier, source = source.overrides, _with_sweep(source)
    if isinstance(source, Mapping):
        data: Any = parse(dump(dict(source)))
    elif isinstance(source, Path) or ("\n" not in source and source.endswith((".yaml", ".yml"))):
        data = parse(_read(Path(source)), str(source))
    else:
        data = parse(source)
    data = _mapping(data, "the recipe")
    if isinstance(data.get("sweep"), dict):
        data["sweep"] = flatten(data["sweep"])
    for override in overrides:
        apply_override(data, override)
    _known("", data, ("name", "data", "model", "train", "about", "sweep"))
    name = data.get("name")
    if not isinstance(name, str) or not KEY.match(name):
        raise ConfigError(f"name is {show(name)}; allowed: a name of letters, digits, _ and -")
    sections = {key: _mapping(data.get(key, {}), key) for key in ("data", "model", "train", "about")}
    for key, what in (("data", "dataset"), ("model", "model")):
        if not isinstance(sections[key].get("name"), str):
            raise ConfigError(f"{key}.name is {show(sections[key].get('name'))}; allowed: the name of a {what}")
    return Recipe(
        name=name,
        data=sections["data"],
        model=sections["model"],
        train=_build(Train, sections["train"], "train"),
        about=_build(About, sections["about"], "about"),
        overrides=(*earlier, *overrides),
        sweep=_sweep(data.get("sweep", {}), sections),
    )


def write_recipe(recipe: Recipe) -> str:
    """The recipe as YAML that :func:`read_recipe` reads back as the same recipe."""
    return dump(_with_sweep(recipe))


def _with_sweep(recipe: Recipe) -> dict[str, Any]:
    sweep = {key: list(values) for key, values in recipe.sweep.items()}
    return recipe.to_dict() | ({"sweep": copy.deepcopy(sweep)} if sweep else {})


def _sweep(data: Any, sections: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The sweep; each of its values must be one that the section ``train`` allows."""
    sweep = read_sweep(_mapping(data, "sweep"))
    for key, values in sweep.items():
        for value in values if key.startswith("train.") else ():
            changed = {"train": copy.deepcopy(sections["train"])}
            set_value(changed, key.split("."), value, f"sweep.{key}")
            _build(Train, changed["train"], "train")
    return sweep


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(1 << 20).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {show(str(path), 200)}: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError):
        raise ConfigError(f"cannot read the recipe {show(str(path), 200)}: it is not UTF-8 text") from None


def apply_override(data: dict[str, Any], override: str, kind: str = "override") -> None:
    """Set a value in nested plain data, given as dotted ``key=value``; messages call it a ``kind``."""
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(KEY.match(part) for part in path):
        raise ConfigError(f"{kind} {show(override)} is not of the form section.key=value, such as train.lr=0.001")
    if path[0] == "sweep":
        path = ["sweep", ".".join(path[1:])]
    set_value(data, path, parse(text, f"{kind} {show(override)}"), f"{kind} {show(override)}")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {show(value)}; allowed: a section of keys and values")
    return value


def _known(section: str, data: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for key, value in data.items():
        if key not in allowed:
            dot = f"{section}." if section else ""
            guess = suggest(str(key), allowed).replace("mean ", f"mean {dot}")
            hint = guess or f"; allowed: {', '.join(allowed)}"
            raise ConfigError(
                f"{dot}{show(str(key))} is not a key of {section or 'a recipe'} (value {show(value)}){hint}"
            )


def _build(cls: type[Any], data: dict[str, Any], section: str) -> Any:
    _known(section, data, [f.name for f in dataclasses.fields(cls)])
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})


_hints = cache(typing.get_type_hints)


def _check_fields(section: Any, name: str) -> None:
    hints = _hints(section.__class__)
    for item in dataclasses.fields(section):
        value, hint = getattr(section, item.name), hints[item.name]
        fitted = _fit(value, hint, item.metadata)
        if fitted is not _WRONG and "names" in item.metadata:
            words, known = ([fitted] if hint is str else fitted), item.metadata["names"]
            unknown = [word for word in words if not _is_known(word, known, hint)]
            value, fitted = (unknown[0], _WRONG) if unknown else (value, fitted)
        if fitted is _WRONG:
            choices = [choice for choice in typing.get_args(hint) if isinstance(choice, str)]
            allowed = _describe(hint, item.metadata)
            if "names" in item.metadata:
                choices = list(_names(item.metadata["names"], hint))
                allowed = f"one of {', '.join(choices)}" if choices else "a name that a package registers; none does"
            guess = suggest(value, choices) if isinstance(value, str) else ""
            raise ConfigError(f"{name}.{item.name} is {show(value)}; allowed: {allowed}{guess}")
        object.__setattr__(section, item.name, fitted)


def _names(registry: Registry[Any], hint: Any) -> tuple[str, ...]:
    """The names that a field allows; a list has only registered ones, as the built-in metrics are always there."""
    return registry.names() if hint is str else registry.added()


def _is_known(word: str, registry: Registry[Any], hint: Any) -> bool:
    """Whether a field allows a name; packages are asked only if it is not built in."""
    return (hint is str and word in registry.built_in) or word in registry.added()


_WRONG = object()


def _fit(value: Any, hint: Any, limits: Mapping[str, Any]) -> Any:
    """Convert a value to the hinted type, or return _WRONG; an integer is also a float, a bool is neither."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        fits = (_fit(value, option, limits) for option in arguments)
        return next((fitted for fitted in fits if fitted is not _WRONG), _WRONG)
    if origin is Literal:
        return value if isinstance(value, str) and value in arguments else _WRONG
    if origin is Mapping:
        return dict(value) if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) else _WRONG
    if origin is tuple:
        kinds = arguments[:1] * len(value) if isinstance(value, tuple) and arguments[-1] is ... else arguments
        if not isinstance(value, tuple) or len(kinds) != len(value):
            return _WRONG
        items = tuple(_fit(v, kind, limits) for v, kind in zip(value, kinds))
        return _WRONG if any(v is _WRONG for v in items) else items
    if hint is float and type(value) is int and abs(value) < 2**63:
        value = float(value)
    if type(value) is not hint:
        return _WRONG
    if limits and hint in (int, float):
        low = limits["low"]
        return value if low <= value < limits["high"] and not (limits["open_low"] and value == low) else _WRONG
    return value


def _describe(hint: Any, limits: Mapping[str, Any]) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(option, limits) for option in arguments)
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin is Mapping:
        return "a section of keys and values"
    if origin is tuple:
        inner = _describe(arguments[0], limits)
        return f"a list, each {inner}" if arguments[-1] is ... else f"a list of {len(arguments)}, each {inner}"
    word = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, "null")
    if not limits or hint not in (int, float):
        return word
    top = f" and < {limits['high']:g}" if limits["high"] < math.inf else ""
    return f"{word} {'>' if limits['open_low'] else '>='} {limits['low']:g}{top}"
