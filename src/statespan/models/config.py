"""What a model is made of: frozen, checked when made, and the same as a dictionary of plain values."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, TypeVar

import torch
from torch import nn

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan._suggest import suggest
from statespan.nn import DSS, LSSL, S4, S4D, FeedForward
from statespan.nn.layer import MIXES
from statespan.nn.norm import NORMS

LAYERS: dict[str, type[nn.Module]] = {"s4": S4, "s4d": S4D, "dss": DSS, "lssl": LSSL}
_OWN = ("d_model", "d_state", "bidirectional", "mix", "dropout", "tie_dropout", "device", "dtype", "options")
"""Arguments of a layer that are not options of its SSM."""

Config = TypeVar("Config", bound="BackboneConfig")


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """What all models share.

    Args:
        d_model: Number of features.
        d_state: State size of each SSM, even.
        n_layers: Number of SSM layers; of blocks where a model is made of blocks.
        layer: "s4", "s4d", "dss" or "lssl".
        ssm: Options of the layer by name, such as ``{"init": "lin", "n_ssm": 2, "dt_min": 0.001}``.
        mix: "glu" or "linear", how a layer mixes its features.
        feed_forward: Hidden features for each feature of a feed-forward layer behind each SSM layer; 0 for none.
        norm: "layer", "batch" or "none".
        prenorm: Normalize what enters each layer; False for the sum behind it.
        dropout: Probability of dropping a feature, in the layers and of what is added to the residual.
        tie_dropout: Drop the same features at every position of a sequence.
        sampling_rate: Samples a second of the training data; None if unknown.
    """

    d_model: int = 128
    d_state: int = 64
    n_layers: int = 4
    layer: str = "s4"
    ssm: Mapping[str, Any] = field(default_factory=dict)
    mix: str = "glu"
    feed_forward: int = 0
    norm: str = "layer"
    prenorm: bool = True
    dropout: float = 0.0
    tie_dropout: bool = True
    sampling_rate: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        check_int("d_model", self.d_model, minimum=1)
        check_int("d_state", self.d_state, minimum=2, even=True)
        check_int("n_layers", self.n_layers, minimum=1)
        check_choice("layer", self.layer, LAYERS)
        check_choice("mix", self.mix, MIXES)
        check_int("feed_forward", self.feed_forward, minimum=0)
        check_choice("norm", self.norm, NORMS)
        check_bool("prenorm", self.prenorm)
        check_number("dropout", self.dropout, above=0.0, below=1.0, closed=True)
        check_bool("tie_dropout", self.tie_dropout)
        if self.sampling_rate is not None:
            check_number("sampling_rate", self.sampling_rate, above=0.0)
        if not isinstance(self.ssm, Mapping):
            raise TypeError(f"ssm must be a mapping of options of the layer, got {type(self.ssm).__name__}")
        check_keys("ssm", self.ssm, ssm_options(self.layer))
        object.__setattr__(self, "ssm", dict(self.ssm))  # later changes to what the caller gave do not reach us

    def least_weights(self) -> int:
        """Numbers that a model has at least: C of each layer."""
        return self.n_layers * self.d_model * self.d_state

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, as JSON has them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def parse(cls: type[Config], options: Mapping[str, Any]) -> Config:
    """A config from a mapping, whose keys are checked; lists stand for tuples.

    Args:
        cls: A config class.
        options: Values by the names of its fields.
    """
    if not isinstance(options, Mapping):
        raise TypeError(f"options must be a mapping, got {type(options).__name__}")
    known = {f.name: f for f in fields(cls)}
    check_keys("options", options, known)
    missing = [
        name
        for name, f in known.items()
        if name not in options and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise ValueError(f"options must have {', '.join(missing)}, got {', '.join(options) or 'none'}")
    values: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return cls(**values)


def check_keys(name: str, options: Mapping[Any, Any], known: Iterable[str]) -> None:
    """Refuse keys that nobody reads, with the nearest one that somebody does."""
    allowed = list(known)
    for key in options:
        if key not in allowed:
            raise ValueError(f"{name} has no {key!r}{suggest(str(key), allowed)} (allowed: {', '.join(allowed)})")


def check_whole(name: str, values: Any, *, minimum: int, most: int) -> tuple[int, ...]:
    """Return ``values`` if it is a tuple of integers."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be a sequence of integers, got {type(values).__name__} {values!r}")
    if len(values) > most:
        raise ValueError(f"{name} must be at most {most} integers, got {len(values)}")
    return tuple(check_int(name, value, minimum=minimum) for value in values)


def ssm_options(layer: str) -> list[str]:
    """The names that ``ssm`` may have for this layer."""
    cls = LAYERS[layer]
    names: dict[str, None] = {}
    for base in (cls, *(base for base in cls.__bases__ if cls is DSS)):  # DSS takes those of S4D too
        names |= dict.fromkeys(inspect.signature(base).parameters)
    return [name for name in names if name not in _OWN]


def make_layers(
    config: BackboneConfig,
    width: int,
    *,
    bidirectional: bool = False,
    repeats: int = 1,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> list[nn.Module]:
    """The layers of a stack: n_layers times ``repeats`` SSM layers, and a feed-forward layer where there is one."""
    common: Any = {"dropout": config.dropout, "tie_dropout": config.tie_dropout, "device": device, "dtype": dtype}
    layers: list[nn.Module] = []
    for _ in range(config.n_layers):
        for _ in range(repeats):
            layers.append(
                LAYERS[config.layer](
                    width, config.d_state, bidirectional=bidirectional, mix=config.mix, **common, **config.ssm
                )
            )
        if config.feed_forward:
            layers.append(FeedForward(width, config.feed_forward, **common))
    return layers


def residual_options(
    config: BackboneConfig, device: torch.device | str | None, dtype: torch.dtype | None
) -> dict[str, Any]:
    """What a backbone and a U-Net take from a config."""
    return {
        "norm": config.norm,
        "prenorm": config.prenorm,
        "dropout": config.dropout,
        "tie_dropout": config.tie_dropout,
        "device": device,
        "dtype": dtype,
    }
