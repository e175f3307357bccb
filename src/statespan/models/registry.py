"""Models by name, as used in recipes and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from statespan._registry import Registry, check_keys
from statespan.models import hub
from statespan.models.base import Model
from statespan.models.classifier import Classifier, Regressor, Retrieval
from statespan.models.config import BackboneConfig, ModelConfig, parse, ssm_options
from statespan.models.forecaster import Forecaster
from statespan.models.language import LanguageModel, MaskedModel
from statespan.models.pixels import PixelModel
from statespan.models.pretrained import LoadError
from statespan.models.pretrained import read as read_folder
from statespan.models.transducer import Transducer

_MODELS: dict[str, type[Any]] = {
    model.name: model
    for model in (Classifier, Regressor, Retrieval, LanguageModel, MaskedModel, PixelModel, Forecaster, Transducer)
}


def _check_model(name: str, model: Any) -> None:
    if not (isinstance(model, type) and issubclass(model, Model)):
        raise TypeError(f"a model must be a subclass of statespan.models.Model, got {model!r}")
    if getattr(model, "name", None) != name:
        raise ValueError(f"{model.__name__}.name must be {name!r}, got {getattr(model, 'name', None)!r}")
    config = getattr(model, "config_class", None)
    if not (isinstance(config, type) and issubclass(config, ModelConfig)):
        raise TypeError(f"{model.__name__}.config_class must be a subclass of ModelConfig, got {config!r}")
    if not isinstance(getattr(model, "tasks", None), tuple):
        raise TypeError(f"{model.__name__}.tasks must be a tuple, got {getattr(model, 'tasks', None)!r}")


ADDED_MODELS: Registry[type[Model]] = Registry("model", "statespan.models", built_in=_MODELS, check=_check_model)
# more tokens than cutoffs
_ANY_DATA = {
    "d_input": 1, "vocabulary": 2**20, "d_output": 2, "horizon": 1, "d_marks": 0, "sampling_rate": None, "unit": "",
    "tokens": (),
}  # fmt: skip
_TRIED_STATE, _TRIED_WEIGHTS = 1024, 2**24  # a larger layer is not built only to see whether it can be


def names() -> tuple[str, ...]:
    """The names of all models, the built-in ones first."""
    return ADDED_MODELS.names()


def register_model(name: str, model: type[Model]) -> None:
    """Give a model a name that recipes and files can use: ``model.name=NAME``.

    Installed packages need not call it: they name the class in the entry-point group ``statespan.models``. A folder
    that such a model was saved in needs the package to be loaded.

    Args:
        name: The class attribute ``name`` of the model.
        model: A subclass of :class:`~statespan.models.Model` with ``config_class`` and ``tasks``.

    Example:
        >>> class Thermometer(Regressor):
        ...     name = "thermometer"
        >>> register_model("thermometer", Thermometer)
        >>> build("thermometer", options={"d_input": 1, "d_output": 1, "d_model": 8}).name
        'thermometer'
    """
    ADDED_MODELS.register(name, model)


def check(name: str, options: Mapping[str, Any] | None = None, *, values: bool = False) -> None:
    """Reject an unknown model or option before any data is available.

    Args:
        name: One of :func:`names`.
        options: Fields of the model's config by name.
        values: Also reject values that are not allowed: a layer is built on the meta device. Values that depend on
            the data, such as the size of a vocabulary, are not checked.

    Example:
        >>> check("clasifier")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: name must be one of ... got 'clasifier'; did you mean classifier?
        >>> check("classifier", {"d_state": 5}, values=True)
        Traceback (most recent call last):
        ...
        ValueError: d_state must be an even integer >= 2, got 5
    """
    cls = _find(name)
    if not isinstance(options, (Mapping, type(None))):
        raise TypeError(f"options must be a mapping, got {type(options).__name__}")
    options = options or {}
    check_keys("options", options, [field.name for field in fields(cls.config_class)])
    layer, ssm = options.get("layer", "s4"), options.get("ssm", {})
    if issubclass(cls.config_class, BackboneConfig) and isinstance(layer, str) and isinstance(ssm, Mapping):
        check_keys("ssm", ssm, ssm_options(layer))
    if values:
        _check_values(cls, options)


def _check_values(cls: type[Any], options: Mapping[str, Any]) -> None:
    """Check values by building the config and a model, of one layer if it is a stack, for data of any width."""
    known = {field.name for field in fields(cls.config_class)}
    absent = {key: value for key, value in _ANY_DATA.items() if key in known and options.get(key) is None}
    if {"d_input", "vocabulary"} <= known:  # samples or tokens
        absent.pop("vocabulary", None)
        if options.get("vocabulary") is not None:
            absent.pop("d_input", None)
    config = parse(cls.config_class, {**options, **absent})
    if not isinstance(config, BackboneConfig):
        cls(config, device="meta")
    elif config.d_state <= _TRIED_STATE and config.d_model * config.d_state <= _TRIED_WEIGHTS:
        with torch.random.fork_rng(devices=[]):
            cls(replace(config, n_layers=1), device="meta")


def build(
    name: str,
    info: Any = None,
    options: Mapping[str, Any] | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """Build a new model for a dataset.

    Args:
        name: One of :func:`names`.
        info: What the data is: anything with the attributes ``d_input``, ``vocabulary``, ``d_output``, ``horizon``,
            ``d_marks``, ``sampling_rate``, ``unit`` and ``tokens`` that the model needs, and ``task`` to check that
            the two fit; None if the options suffice.
        options: Fields of the model's config by name.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> model = build("classifier", options={"d_input": 1, "d_output": 10, "layer": "s4d", "ssm": {"init": "lin"}})
        >>> model.config.d_model
        128
    """
    check(name, options)
    cls, options = _find(name), dict(options or {})
    if info is not None:
        task = getattr(info, "task", None)
        if task is not None and task not in cls.tasks:
            raise ValueError(f"model {name!r} is for {' or '.join(cls.tasks)}, got data for {task}")
        known = {field.name for field in fields(cls.config_class)}
        given = {key: getattr(info, key) for key in _ANY_DATA if key in known and hasattr(info, key)}
        for key, value in given.items():
            if options.setdefault(key, value) != value:
                raise ValueError(f"{key} must be that of the data, {value!r}, got {options[key]!r}")
        read, predicted = options.get("vocabulary"), getattr(info, "d_output", None)
        if "d_output" not in known and predicted not in (None, read):
            raise ValueError(f"model {name!r} predicts the {read} tokens it reads, got data with d_output={predicted}")
    return cls(parse(cls.config_class, options), device=device, dtype=dtype)


def from_pretrained(folder: str | Path, *, device: torch.device | str | None = None) -> Any:
    """Load a model of any kind that ``save_pretrained`` or ``push_to_hub`` saved, in evaluation mode.

    Args:
        folder: Where it was saved; or ``hf://user/name`` for a model on the Hub, with ``@revision`` if wanted.
            Without ``hf://``, a folder of this name comes first.
        device: Where to load it.

    Raises:
        LoadError: If anything is missing or damaged.
    """
    stored = read_folder(hub.locate(folder))
    try:
        cls: type[Model] = _find(stored.name)
    except ValueError as error:
        raise LoadError(f"{folder} holds the model {stored.name!r}: {error}") from error
    return cls._from_stored(stored, folder, device)


def _find(name: Any) -> type[Any]:
    return _MODELS[name] if isinstance(name, str) and name in _MODELS else ADDED_MODELS.find(name)
