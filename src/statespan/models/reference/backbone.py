"""The reference's sequence models as plans: a stack of layers with norms, and the weights around it.

Shapes: D = d_model features.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from statespan.models.pretrained import LoadError
from statespan.models.reference.layer import FeedForwardPlan, SSMPlan, plan_layer
from statespan.models.reference.names import ANCHOR
from statespan.models.reference.options import ReferenceOptions
from statespan.models.reference.source import NotExpressibleError

_ITEM = re.compile(r"^(?P<root>(?:\w+\.)*?)(?P<list>layers|s4_layers)\.(?P<index>\d+)\.(?P<rest>.+)$")
_UNET = re.compile(r"(?:^|\.)(d_layers|c_layers|u_layers|interp_layers)\.\d+\.")
_PARTS = {
    "reverse_layer": "a second layer that reads backwards (bidirectional of the block)",
    "bidirectional_linear": "a second layer that reads backwards (bidirectional of the block)",
    "residual": "a residual function with weights",
    "pool": "a pool between layers, with weights",
}
_NORM = {"weight", "bias"}
_STATISTICS = {"running_mean", "running_var"}


@dataclass(frozen=True)
class BackbonePlan:
    """A stack of layers.

    Args:
        layers: In order.
        norm: "layer", "batch" or "none".
        prenorm: Whether each norm precedes its layer, with one more norm after all of them.
        norms: The weights of each layer's norm by name, then those of the last norm if ``prenorm``.
        root: The prefix of the backbone's names.

    Example:
        >>> layer = SSMPlan("s4d", 4, 8, mix="glu", bidirectional=False, ssm={}, tensors={})
        >>> plan = BackbonePlan([layer], norm="layer", prenorm=True, norms=[{}, {}], root="")
        >>> plan.d_model, len(plan.ssms)
        (4, 1)
    """

    layers: list[SSMPlan | FeedForwardPlan]
    norm: str
    prenorm: bool
    norms: list[dict[str, Tensor]]
    root: str

    @property
    def d_model(self) -> int:
        """Features D."""
        return self.layers[0].d_model

    @property
    def ssms(self) -> list[SSMPlan]:
        """The SSM layers."""
        return [layer for layer in self.layers if isinstance(layer, SSMPlan)]

    def tensors(self) -> dict[str, Tensor]:
        """All weights, by the names of :class:`statespan.nn.Backbone`."""
        found: dict[str, Tensor] = {}
        for i, layer in enumerate(self.layers):
            found |= {f"blocks.{i}.layer.{name}": value for name, value in layer.tensors.items()}
            found |= {f"blocks.{i}.norm.{name}": value for name, value in self.norms[i].items()}
        if self.prenorm:
            found |= {f"norm.{name}": value for name, value in self.norms[-1].items()}
        return found


def is_stack(tensors: Mapping[str, Tensor]) -> bool:
    """Whether these are the weights of a stack of layers, rather than of one.

    Raises:
        NotExpressibleError: They belong to a backbone with several resolutions.
        LoadError: They contain no S4 layer.
    """
    if any(_UNET.search(name) for name in tensors):
        raise NotExpressibleError(
            "the reference's U-Net and SaShiMi add the input of every resolution to its output, which "
            "statespan.nn.UNet does not (and SaShiMi has no layers on the way down)"
        )
    if not any(ANCHOR.match(name) for name in tensors):
        raise LoadError("source has no S4 layer: no name ends in kernel.C")
    return any(_ITEM.match(name) for name in tensors)


def is_lightning(tensors: Mapping[str, Tensor]) -> bool:
    """Whether these names are those of the reference's Lightning module: a model beside an encoder or decoder."""
    tops = {name.partition(".")[0] for name in tensors}
    return any(name.startswith("model.layers.") for name in tensors) and bool(tops & {"encoder", "decoder"})


def plan_backbone(tensors: Mapping[str, Tensor], options: ReferenceOptions) -> tuple[BackbonePlan, dict[str, Tensor]]:
    """The plan of a stack, and the weights that are not part of it."""
    matches = {name: match for name in tensors if (match := _ITEM.match(name))}
    places = {(match["root"], match["list"]) for match in matches.values()}
    if len(places) > 1:
        raise LoadError(f"source must have one stack of layers, got {', '.join(sorted(a + b for a, b in places))}")
    ((root, kind),) = places
    items: dict[int, dict[str, Tensor]] = {}
    for name, match in matches.items():
        items.setdefault(int(match["index"]), {})[match["rest"]] = tensors[name]
    if sorted(items) != list(range(len(items))):
        missing = min(set(range(max(items))) - items.keys())
        raise LoadError(f"{root}{kind}.{missing} is missing; the layers are numbered 0 … {max(items)}")
    rest = {name: value for name, value in tensors.items() if name not in matches}
    layers, norms = [], []
    for i in range(len(items)):
        where = f"{root}{kind}.{i}."
        parts = _split(items[i], where) if kind == "layers" else {"layer": items[i]}
        norm = parts.get("norm", {}) if kind == "layers" else _take(rest, f"{root}norms.{i}.")
        layer = plan_layer(parts.get("layer", {}), options, where + ("layer." if kind == "layers" else ""))
        layers.append(layer)
        norms.append(_plan_norm(norm, layer.d_model, where))
    last = _plan_norm(_take(rest, f"{root}norm."), layers[-1].d_model, f"{root}norm.")
    return _checked(layers, norms, last, options=options, root=root), rest


def _checked(
    layers: list[SSMPlan | FeedForwardPlan], norms: list[dict[str, Tensor]], last: dict[str, Tensor],
    *, options: ReferenceOptions, root: str,
) -> BackbonePlan:  # fmt: skip
    kinds = {_kind(norm) for norm in norms}
    if len(kinds) > 1:
        raise NotExpressibleError(f"{root}layers have norms of several kinds: {', '.join(sorted(kinds))}")
    (norm,) = kinds
    prenorm = bool(last)
    if prenorm and _kind(last) != norm:
        raise NotExpressibleError(f"{root}norm is a {_kind(last)!r} norm, but the norms of the layers are {norm!r}")
    if options.prenorm is True and norm != "none" and not prenorm:
        raise NotExpressibleError(f"prenorm=True needs a last norm in statespan, but source has no {root}norm")
    if options.prenorm is False and prenorm:
        raise LoadError(f"prenorm must be True for weights with a last norm ({root}norm), got False")
    for layer in layers:
        if layer.d_model != layers[0].d_model or (isinstance(layer, SSMPlan) and layer.mix is None):
            raise NotExpressibleError(f"{root}layers must all map {layers[0].d_model} features to the same number")
    if norm == "none":
        return BackbonePlan(layers, norm, False, norms, root)
    return BackbonePlan(layers, norm, prenorm, [*norms, *([last] if prenorm else [])], root)


def _split(tensors: Mapping[str, Tensor], where: str) -> dict[str, dict[str, Tensor]]:
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        part, _, inner = name.partition(".")
        if part in _PARTS:
            raise NotExpressibleError(f"{where}{name} belongs to {_PARTS[part]}, which no block of statespan has")
        if part not in ("layer", "norm"):
            raise LoadError(f"{where}{name} is none of the names of a residual block (layer, norm)")
        parts.setdefault(part, {})[inner] = value
    return parts


def _take(rest: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Remove the weights with a prefix from ``rest``, and return them without it."""
    return {name[len(prefix) :]: rest.pop(name) for name in list(rest) if name.startswith(prefix)}


def _plan_norm(tensors: Mapping[str, Tensor], d_model: int, where: str) -> dict[str, Tensor]:
    """The weights of a norm by statespan's names; empty without a norm."""
    found = {name.removeprefix("norm.").removeprefix("ln."): value for name, value in tensors.items()}
    found.pop("num_batches_tracked", None)
    if found.keys() == {"m", "s"}:
        raise NotExpressibleError(
            f"{where} is a layer norm with one scale and one shift for all features and no epsilon (transposed); "
            "statespan's has one of each per feature"
        )
    if found and found.keys() not in (_NORM, _NORM | _STATISTICS):
        raise LoadError(
            f"{where} has a norm with {', '.join(sorted(found))}; known: {', '.join(sorted(_NORM))}, and "
            f"for batch normalization {', '.join(sorted(_STATISTICS))}"
        )
    for name, value in found.items():
        if value.shape != (d_model,):
            raise LoadError(f"{where} {name} must have shape ({d_model},), got {tuple(value.shape)}")
    return {name: value.double() for name, value in found.items()}


def _kind(norm: Mapping[str, Tensor]) -> str:
    if not norm:
        return "none"
    return "batch" if norm.keys() >= _STATISTICS else "layer"
