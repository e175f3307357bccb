"""Settings that the weights do not contain: options, and their defaults.

An option that is not given is taken from the config that Lightning stored in the file. Otherwise it is the default of
the reference's classes, or, for ``dt_transform`` of a whole Lightning module, that of the reference's configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan.models.reference.source import NotExpressibleError

Transform: TypeAlias = Literal["exp", "softplus", "relu", "sigmoid", "none"]
TRANSFORMS: tuple[str, ...] = get_args(Transform)
DISCRETIZATIONS = ("zoh", "bilinear")
ACTIVATIONS = ("gelu", "none")
POOLS = ("mean", "last", "first", "none")
TASKS = ("classification", "regression")
_DECODER_POOLS = {"pool": "mean", "last": "last", "first": "first"}
_ABSENT: dict[str, tuple[Any, ...]] = {
    "bandlimit": (None,), "dt_fast": (None, False), "gate": (None,), "bottleneck": (None,), "hyper_act": (None,),
    "mult_act": (None, "id"), "swap_channels": (None, False), "is_real": (None, False),
    "final_act": (None, "glu", "id"), "postact": (None, "glu", "id"),
}  # fmt: skip
"""Settings of a layer that have no counterpart in statespan, with the values that leave them unused."""


@dataclass(frozen=True)
class ReferenceOptions:
    """Options of a conversion, named as in the reference; see :func:`statespan.from_reference`.

    Example:
        >>> options = ReferenceOptions(disc="bilinear").filled(disc="zoh", pool="mean")
        >>> options.disc, options.pool
        ('bilinear', 'mean')
    """

    _: KW_ONLY
    dt_transform: str | None = None
    real_transform: str | None = None
    imag_transform: str | None = None
    disc: str | None = None
    activation: str | None = None
    l_kernel: int | None = None
    prenorm: bool | None = None
    pool: str | None = None
    task: str | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Reject values that are not allowed."""
        choices = {
            "dt_transform": TRANSFORMS, "real_transform": TRANSFORMS, "imag_transform": TRANSFORMS,
            "disc": DISCRETIZATIONS, "activation": ACTIVATIONS, "pool": POOLS, "task": TASKS,
        }  # fmt: skip
        for name, allowed in choices.items():
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), allowed)
        if self.l_kernel is not None:
            check_int("l_kernel", self.l_kernel, minimum=1)
        if self.prenorm is not None:
            check_bool("prenorm", self.prenorm)
        check_number("dropout", self.dropout, above=0.0, below=1.0, closed=True)

    def filled(self, **defaults: Any) -> ReferenceOptions:
        """A copy with values for the options that are None."""
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})

    def with_config(self, config: Mapping[str, Any]) -> ReferenceOptions:
        """A copy with the values of a stored config for the options that are None.

        Raises:
            NotExpressibleError: The config uses something that has no counterpart.
        """
        model = config.get("model")
        if not isinstance(model, Mapping):
            return self
        _check_model(model)
        found: dict[str, Any] = {"prenorm": model.get("prenorm")}
        stored = model.get("layer")
        for layer in stored if isinstance(stored, list) else [stored]:
            if isinstance(layer, Mapping):
                _check_layer(layer)
                for name in ("dt_transform", "real_transform", "imag_transform", "disc", "activation"):
                    found.setdefault(name, "none" if layer.get(name, 0) is None else layer.get(name))
        decoder = config.get("decoder")
        for part in decoder if isinstance(decoder, list) else [decoder]:
            if isinstance(part, Mapping) and part.get("mode") in _DECODER_POOLS:
                found["pool"] = _DECODER_POOLS[part["mode"]]
        if found.get("disc") == "dss":
            raise NotExpressibleError("disc='dss' damps the softmax by 1e-7, which no layer of statespan does")
        return self.filled(**{name: value for name, value in found.items() if _is_resolved(value)})


def _check_model(model: Mapping[str, Any]) -> None:
    name, norm, residual = model.get("_name_", "model"), model.get("norm", "layer"), model.get("residual", "R")
    if name != "model":
        raise NotExpressibleError(f"the backbone {name!r} cannot be expressed; only the sequence model ('model') can")
    norm = norm.get("_name_") if isinstance(norm, Mapping) else norm
    if norm not in (None, "none", "layer", "batch"):
        raise NotExpressibleError(f"the norm {norm!r} cannot be expressed; 'layer', 'batch' and 'none' can")
    residual = residual.get("_name_") if isinstance(residual, Mapping) else residual
    if residual not in ("R", "residual"):
        raise NotExpressibleError(f"the residual function {residual!r} cannot be expressed; 'R' can")
    if model.get("bidirectional"):
        raise NotExpressibleError(
            "bidirectional=True of the backbone, a second layer that reads backwards, has no counterpart"
        )


def _check_layer(layer: Mapping[str, Any]) -> None:
    for name, unused in _ABSENT.items():
        value = layer.get(name)
        if _is_resolved(value) and value not in unused:
            raise NotExpressibleError(f"{name}={value!r} of the layer cannot be expressed")


def _is_resolved(value: Any) -> bool:
    """Whether a config value is present and is not a reference to another value."""
    return value is not None and not (isinstance(value, str) and value.startswith("${"))
