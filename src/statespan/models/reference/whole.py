"""Whole models of the reference as configs and weights: an encoder, a stack of layers and a decoder.

Shapes: D = d_model features, K outputs, V tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statespan.models.base import Model
from statespan.models.classifier import Classifier, ClassifierConfig, Regressor, Retrieval
from statespan.models.pretrained import LoadError
from statespan.models.reference.backbone import BackbonePlan
from statespan.models.reference.layer import FeedForwardPlan, SSMPlan, load_weights
from statespan.models.reference.options import ReferenceOptions
from statespan.models.reference.source import NotExpressibleError
from statespan.models.transducer import Transducer, TransducerConfig

_CONTAINERS = re.compile(r"^(\d+\.)+")
_PAIRS = "retrieval.classifier."
_LANGUAGE = "a language model's embedding is scaled by a factor that is not among its weights"


@dataclass(frozen=True)
class Ends:
    """The weights around a stack of layers.

    Args:
        encoder: The weights of the encoder by name, without ``encoder.`` and the containers' numbers.
        decoder: Likewise those of the decoder; their names begin with ``output_transform`` or ``retrieval``.

    Example:
        >>> ends = Ends(encoder={"weight": torch.zeros(8, 1)}, decoder={"output_transform.weight": torch.zeros(10, 8)})
        >>> ends.encoder["weight"].shape
        torch.Size([8, 1])
    """

    encoder: dict[str, Tensor]
    decoder: dict[str, Tensor]


def ends_of(rest: Mapping[str, Tensor], root: str) -> Ends:
    """Assign the weights beside a stack to the encoder and the decoder.

    Args:
        rest: The weights that are not the stack's.
        root: The prefix of the stack's names. The encoder and the decoder have the same prefix or one level less.
    """
    above = ".".join(root.split(".")[:-2])
    places = (root, f"{above}." if above else "")
    ends = Ends({}, {})
    for name, value in rest.items():
        for place in places:
            part, _, inner = name.removeprefix(place).partition(".")
            if name.startswith(place) and part in ("encoder", "decoder"):
                key = _CONTAINERS.sub("", inner)
                found = getattr(ends, part)
                if key in found:
                    raise NotExpressibleError(
                        f"{name} is one of several {part}s in sequence; statespan has one linear map"
                    )
                found[key] = value.double()
                break
        else:
            raise LoadError(f"{name} is none of the names of the reference's sequence models")
    return ends


def build_whole(plan: BackbonePlan, ends: Ends, options: ReferenceOptions, dtype: torch.dtype) -> Model:
    """The model of a stack with an encoder or a decoder."""
    encoder, inputs = _encoder(ends.encoder, plan.d_model)
    fields: dict[str, Any] = {**config_fields(plan, options.dropout), **inputs}
    decoder = ends.decoder
    if any(name.startswith(_PAIRS) for name in decoder):
        return _pairs(plan, ends, {**fields, "pool": options.pool or "mean"}, dtype)
    if decoder and decoder.keys() not in ({"weight", "bias"}, {"output_transform.weight", "output_transform.bias"}):
        raise NotExpressibleError(f"decoder has {', '.join(sorted(decoder)[:4])}; only a linear map can be expressed")
    if plan.root == "model." and "vocabulary" in inputs and "weight" in decoder:
        raise NotExpressibleError(_LANGUAGE)
    decoder = {name.removeprefix("output_transform."): value for name, value in decoder.items()}
    if decoder and decoder["weight"].shape[1:] != (plan.d_model,):
        raise LoadError(f"decoder must map {plan.d_model} features, got a weight of {tuple(decoder['weight'].shape)}")
    outputs = len(decoder["weight"]) if decoder else plan.d_model
    pool: Any = "none" if not decoder else options.pool or "mean"
    if pool == "none":
        if "vocabulary" in inputs:
            raise NotExpressibleError(_LANGUAGE)
        config = TransducerConfig(**fields, d_output=outputs)
        return _filled(Transducer(config, dtype=dtype), plan, encoder, _linear(decoder or _identity(outputs), "linear"))
    kind: type[Model] = Regressor if (options.task or _guess(outputs)) == "regression" else Classifier
    model = kind(ClassifierConfig(**fields, d_output=outputs, pool=pool), dtype=dtype)
    return _filled(model, plan, encoder, _linear(decoder, "head.linear"))


def build_bare(plan: BackbonePlan | SSMPlan, dropout: float, dtype: torch.dtype) -> Transducer:
    """A stack or a layer as a model, between two identity maps."""
    if isinstance(plan, SSMPlan):
        if plan.mix is None:
            raise NotExpressibleError(
                "a layer without output_linear returns other features than it reads; no model does"
            )
        fields = {**_layer_fields(plan), "n_layers": 1, "norm": "none", "residual": False, "dropout": dropout}
        tensors = {f"layers.0.{name}": value for name, value in plan.tensors.items()}
    else:
        fields, tensors = config_fields(plan, dropout), plan.tensors()
    D = plan.d_model
    model = Transducer(TransducerConfig(**fields, d_input=D, d_output=D), dtype=dtype)
    weights = {f"backbone.{name}": value for name, value in tensors.items()}
    load_weights(model, weights | _linear(_identity(D), "encoder.map") | _linear(_identity(D), "linear"))
    return model


def config_fields(plan: BackbonePlan, dropout: float) -> dict[str, Any]:
    """The fields of a config that describe a stack of equal layers."""
    first = plan.ssms[0]
    if any(layer.settings != first.settings for layer in plan.ssms):
        raise NotExpressibleError(
            "the layers have different settings, but all layers of a statespan model have the same; "
            "from_reference reads such weights without an encoder and a decoder"
        )
    expand = 0
    if len(plan.layers) > len(plan.ssms):
        in_turn = len(plan.layers) == 2 * len(plan.ssms) and all(
            isinstance(layer, FeedForwardPlan) == bool(i % 2) for i, layer in enumerate(plan.layers)
        )
        sizes = {layer.expand for layer in plan.layers if isinstance(layer, FeedForwardPlan)}
        if not in_turn or len(sizes) > 1:
            raise NotExpressibleError("feed-forward layers must follow every SSM layer, all with the same size")
        (expand,) = sizes
    return {
        **_layer_fields(first), "n_layers": len(plan.ssms), "feed_forward": expand, "norm": plan.norm,
        "prenorm": plan.prenorm, "dropout": dropout,
    }  # fmt: skip


def _layer_fields(plan: SSMPlan) -> dict[str, Any]:
    return {
        "d_model": plan.d_model, "d_state": plan.d_state, "layer": plan.name, "ssm": plan.ssm, "mix": plan.mix,
        "bidirectional": plan.bidirectional,
    }  # fmt: skip


def _pairs(plan: BackbonePlan, ends: Ends, fields: dict[str, Any], dtype: torch.dtype) -> Model:
    """The model of pairs of documents."""
    D = plan.d_model
    found = {name.removeprefix(_PAIRS): value for name, value in ends.decoder.items()}
    if found.keys() != {"0.weight", "0.bias", "2.weight", "2.bias"} or found["0.weight"].shape != (D, 4 * D):
        raise NotExpressibleError(
            f"decoder compares pairs with other maps than 4 · {D} to {D} features and those to classes"
        )
    encoder, _ = _encoder(ends.encoder, D)
    model = Retrieval(ClassifierConfig(**fields, d_output=len(found["2.weight"])), dtype=dtype)
    names = {"0": "head.inner", "2": "head.outer"}
    head = {f"{names[name[0]]}.{name[2:]}": value for name, value in found.items()}
    return _filled(model, plan, encoder, head)


def _filled(model: Model, plan: BackbonePlan, encoder: dict[str, Tensor], head: dict[str, Tensor]) -> Model:
    weights = {f"backbone.{name}": value for name, value in plan.tensors().items()}
    load_weights(model, weights | encoder | head)
    return model


def _encoder(found: Mapping[str, Tensor], d_model: int) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The encoder's weights by statespan's names, and the config field of its inputs."""
    if not found:
        return _linear(_identity(d_model), "encoder.map"), {"d_input": d_model}
    weight = found.get("weight")
    if weight is None or weight.ndim != 2 or not found.keys() <= {"weight", "bias"}:
        raise NotExpressibleError(
            f"encoder has {', '.join(sorted(found)[:4])}; only a linear map or an embedding can be expressed"
        )
    if "bias" in found:
        if len(weight) != d_model:
            raise LoadError(f"encoder must map to {d_model} features, got a weight of shape {tuple(weight.shape)}")
        return _linear(found, "encoder.map"), {"d_input": weight.shape[1]}
    if weight.shape[1] != d_model:
        raise LoadError(f"encoder must embed in {d_model} features, got a table of shape {tuple(weight.shape)}")
    return {"encoder.map.weight": weight}, {"vocabulary": len(weight)}


def _linear(found: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {f"{name}.weight": found["weight"], f"{name}.bias": found["bias"]}


def _identity(features: int) -> dict[str, Tensor]:
    eye = torch.eye(features, dtype=torch.float64)
    return {"weight": eye, "bias": torch.zeros(features, dtype=torch.float64)}


def _guess(outputs: int) -> str:
    """The likely task of a model with this many outputs."""
    return "regression" if outputs == 1 else "classification"
