"""The configs of models: frozen, checked on construction, and convertible to a dictionary of plain values."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan._registry import Registry, check_keys, keywords
from statespan.nn import DSS, LRU, LSSL, S4, S4D, S5, Backbone, FeedForward, SequenceLayer, SSMLayer
from statespan.nn.backbone import Chain, Composite
from statespan.nn.layer import Mix
from statespan.nn.norm import NormName
from statespan.nn.positions import PositionName
from statespan.ssm import inits

LayerName: TypeAlias = Literal["s4", "s4d", "dss", "lssl", "s5", "lru"]
LAYERS: dict[str, type[SSMLayer]] = {"s4": S4, "s4d": S4D, "dss": DSS, "lssl": LSSL, "s5": S5, "lru": LRU}
_NOT_OF_THE_SSM = ("d_model", "d_state", "bidirectional", "mix", "dropout", "tie_dropout", "device", "dtype")


def _check_layer(name: str, layer: Any) -> None:
    if not (isinstance(layer, type) and issubclass(layer, SequenceLayer)):
        raise TypeError(f"a layer must be a subclass of statespan.nn.SequenceLayer, got {layer!r}")
    if next(iter(inspect.signature(layer).parameters), None) != "d_model":
        raise TypeError(f"a layer's first argument must be d_model, got {layer.__name__}{inspect.signature(layer)}")


ADDED_LAYERS: Registry[type[SequenceLayer]] = Registry("layer", "statespan.layers", built_in=LAYERS, check=_check_layer)

COUNT = {"minimum": 0}
"""Metadata of a field that may be 0."""

Config = TypeVar("Config", bound="ModelConfig")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A config of a model of any kind. Its fields are checked by their annotations.

    Integers are at least 1 unless the metadata of the field says otherwise.

    Args:
        sampling_rate: Samples a second of the training data; None if unknown.

    Example:
        >>> ModelConfig(sampling_rate=16000.0).to_dict()
        {'sampling_rate': 16000.0}
        >>> ModelConfig(sampling_rate=-1.0)
        Traceback (most recent call last):
            ...
        ValueError: sampling_rate must be a number > 0, got -1.0
    """

    sampling_rate: float | None = None

    def __post_init__(self) -> None:
        """Check integers, bools, choices and the sampling rate."""
        hints = get_type_hints(type(self))
        for name, value, options in ((f.name, getattr(self, f.name), f.metadata) for f in fields(self)):
            if hints[name] is int:
                check_int(name, value, **{"minimum": 1, **options})
            elif hints[name] is bool:
                check_bool(name, value)
            elif get_origin(hints[name]) is Literal:
                check_choice(name, value, get_args(hints[name]))
        if self.sampling_rate is not None:
            check_number("sampling_rate", self.sampling_rate, above=0.0)

    def least_weights(self) -> int:
        """A lower bound on the number of weights, by which a damaged config is rejected before anything is built."""
        return 1

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, as JSON has them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(ModelConfig):
    """The fields that all models of residual SSM layers share, besides those of :class:`ModelConfig`.

    Args:
        d_model: Number of features.
        d_state: State size of each SSM, even.
        n_layers: Number of SSM layers; of blocks where a model is made of blocks.
        layer: "s4", "s4d", "dss", "lssl", "s5" or "lru", or a layer that was registered. Such a layer gets the fields
            d_state, mix, dropout and tie_dropout if its constructor has arguments of these names.
        ssm: Options of the layer by name, such as ``{"init": "lin", "n_ssm": 2, "dt_min": 0.001}``.
        mix: How a layer mixes its features, "glu" or "linear".
        feed_forward: Hidden features for each feature of a feed-forward layer after each SSM layer; 0 for none.
        norm: "layer", "batch" or "none".
        prenorm: Normalize the input of each layer; False for the sum after it.
        dropout: Probability of dropping a feature, in the layers and of their outputs.
        tie_dropout: Drop the same features at every position of a sequence.
        residual: False for the layers alone, one after the other, without residuals and norms.
        positions: "sinusoidal" to add a positional encoding to the encoded input, or "none".

    Example:
        >>> config = BackboneConfig(d_model=8, d_state=4, layer="s4d", ssm={"init": "lin"})
        >>> config.layer, config.n_layers, config.to_dict()["ssm"]
        ('s4d', 4, {'init': 'lin'})
    """

    d_model: int = 128
    d_state: int = field(default=64, metadata={"minimum": 2, "even": True})
    n_layers: int = 4
    layer: str = "s4"
    ssm: Mapping[str, Any] = field(default_factory=dict)
    mix: Mix = "glu"
    feed_forward: int = field(default=0, metadata=COUNT)
    norm: NormName = "layer"
    prenorm: bool = True
    dropout: float = 0.0
    tie_dropout: bool = True
    residual: bool = True
    positions: PositionName = "none"

    def __post_init__(self) -> None:
        """Check the values, and the options of the layer."""
        super().__post_init__()
        check_number("dropout", self.dropout, above=0.0, below=1.0, closed=True)
        if not self.residual and self.norm != "none":
            raise ValueError(f"norm must be 'none' with residual=False, got {self.norm!r}")
        if not isinstance(self.ssm, Mapping):
            raise TypeError(f"ssm must be a mapping of options of the layer, got {type(self.ssm).__name__}")
        ADDED_LAYERS.check_name(self.layer, "layer")
        check_keys("ssm", self.ssm, ssm_options(self.layer))
        object.__setattr__(self, "ssm", dict(self.ssm))  # later changes of the caller's mapping have no effect

    def least_weights(self) -> int:
        """A lower bound on the number of weights: C of each SSM layer, one weight of each other layer."""
        return self.n_layers * (self.d_model * self.d_state if self.layer in LAYERS else 1)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, as JSON has them.

        An initialization that is not a name becomes "saved": its values are in the weights of the saved model.
        """
        values = super().to_dict()
        if self.layer in LAYERS and "init" in self.ssm:
            values["ssm"]["init"] = inits.saved_name(self.ssm["init"], self.d_state)
        return values


def parse(cls: type[Config], options: Mapping[str, Any]) -> Config:
    """Build a config of this class from its fields by name, which are checked; lists become tuples."""
    if not isinstance(options, Mapping):
        raise TypeError(f"options must be a mapping, got {type(options).__name__}")
    known = {f.name: f for f in fields(cls)}
    check_keys("options", options, known)
    required = [name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in required if name not in options]
    if missing:
        raise ValueError(f"options must have {', '.join(missing)}, got {', '.join(options) or 'none'}")
    values: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return cls(**values)


def register_layer(name: str, layer: type[SequenceLayer]) -> None:
    """Give a layer a name that models and recipes can use: ``model.layer=NAME``.

    Installed packages need not call it: they name the class in the entry-point group ``statespan.layers``.

    Args:
        name: At most 64 letters, digits, "_" and "-".
        layer: A :class:`~statespan.nn.SequenceLayer` whose constructor takes ``d_model``, and by name whatever else it
            needs: ``d_state``, ``bidirectional``, ``mix``, ``dropout``, ``tie_dropout``, ``device`` and ``dtype`` are
            those of the model; all others are options for ``model.ssm``.

    Example:
        >>> import torch
        >>> from statespan.models import build
        >>> class Average(SequenceLayer):
        ...     def __init__(self, d_model, *, width=4):
        ...         super().__init__()
        ...         self.d_model = self.d_output = d_model
        ...         self.width = width
        ...     def forward(self, x, *, lengths=None, dt_scale=1.0):
        ...         sums = torch.nn.functional.pad(x, (0, 0, self.width, 0)).cumsum(1)
        ...         return (sums[:, self.width :] - sums[:, : -self.width]) / self.width
        >>> register_layer("average", Average)
        >>> options = {"d_input": 1, "d_output": 2, "d_model": 8, "n_layers": 1, "layer": "average"}
        >>> build("classifier", options={**options, "ssm": {"width": 3}})(torch.randn(5, 20, 1)).shape
        torch.Size([5, 2])
    """
    ADDED_LAYERS.register(name, layer)


def layer_class(name: str) -> type[SequenceLayer]:
    """The layer of this name."""
    return LAYERS[name] if name in LAYERS else ADDED_LAYERS.find(name, "layer")


def ssm_options(layer: str) -> list[str]:
    """The names of the options that ``ssm`` accepts for this layer."""
    return list(keywords(layer_class(layer), _NOT_OF_THE_SSM))


def make_layers(
    config: BackboneConfig, width: int, *, bidirectional: bool = False, repeats: int = 1, **where: Any
) -> list[SequenceLayer]:
    """The layers of a stack: n_layers times ``repeats`` SSM layers and, if configured, a feed-forward layer."""
    common: Any = {"dropout": config.dropout, "tie_dropout": config.tie_dropout, **where}
    options = {"d_state": config.d_state, "bidirectional": bidirectional, "mix": config.mix, **common}
    layers: list[SequenceLayer] = []
    for _ in range(config.n_layers):
        layers += [_make_layer(config, width, options, where) for _ in range(repeats)]
        if config.feed_forward:
            layers.append(FeedForward(width, config.feed_forward, **common))
    return layers


def _make_layer(config: BackboneConfig, width: int, options: dict[str, Any], where: dict[str, Any]) -> SequenceLayer:
    """A layer, with those of the options that its constructor has."""
    make: Any = layer_class(config.layer)
    taken = keywords(make)
    if options["bidirectional"] and "bidirectional" not in taken:
        raise ValueError(f"bidirectional must be False, as the layer {config.layer!r} has no such option, got True")
    layer: SequenceLayer = make(width, **{k: v for k, v in options.items() if k in taken}, **config.ssm)
    if not (getattr(layer, "d_model", None) == getattr(layer, "d_output", None) == width):
        got = f"d_model={getattr(layer, 'd_model', None)}, d_output={getattr(layer, 'd_output', None)}"
        raise ValueError(f"the layer {config.layer!r} must have d_model and d_output of {width}, got {got}")
    moved = {key: value for key, value in where.items() if key not in taken and value is not None}
    return layer.to(**moved) if moved else layer


def residual_options(config: BackboneConfig) -> dict[str, Any]:
    """The fields of a config that describe its residual blocks."""
    return {name: getattr(config, name) for name in ("norm", "prenorm", "dropout", "tie_dropout")}


def make_backbone(config: BackboneConfig, *, bidirectional: bool = False, repeats: int = 1, **where: Any) -> Composite:
    """The stack of :func:`make_layers` in residual blocks; with ``residual=False`` the layers alone."""
    layers = make_layers(config, config.d_model, bidirectional=bidirectional, repeats=repeats, **where)
    if not config.residual:
        return Chain(layers, positions=config.positions, device=where.get("device"))
    return Backbone(layers, positions=config.positions, **residual_options(config), **where)


def relative_step(trained: float | None, *, dt_scale: float | None = None, sampling_rate: float | None = None) -> float:
    """The step relative to training: ``dt_scale``, or the sampling rate of training over that of the data.

    Args:
        trained: Samples a second of the training data; None if unknown.
        dt_scale: Step relative to training, > 0; 1 if neither is given.
        sampling_rate: Samples a second of the data, > 0, in place of ``dt_scale``.

    Example:
        >>> relative_step(16000.0, sampling_rate=8000.0), relative_step(None, dt_scale=0.5), relative_step(None)
        (2.0, 0.5, 1.0)
    """
    if sampling_rate is None:
        return 1.0 if dt_scale is None else check_number("dt_scale", dt_scale, above=0.0)
    if dt_scale is not None:
        raise ValueError(f"give dt_scale or sampling_rate, not both, got {dt_scale:g} and {sampling_rate:g}")
    check_number("sampling_rate", sampling_rate, above=0.0)
    if trained is None:
        raise ValueError("sampling_rate needs a model that knows the rate it was trained at, got none; give dt_scale")
    return trained / sampling_rate
