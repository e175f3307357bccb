"""One layer of the reference as a plan: the layer of statespan that equals it, its options and its weights.

Shapes: H heads, S independent SSMs, M = N/2 kept modes, K kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from statespan.models.config import LAYERS
from statespan.models.pretrained import LoadError
from statespan.models.reference.kernel import ConvertedSSM, convert
from statespan.models.reference.names import ANCHOR
from statespan.models.reference.options import ReferenceOptions
from statespan.models.reference.source import NotExpressibleError
from statespan.nn import FeedForward, SequenceLayer

_EXTRAS = {
    "input_gate": "a gate around the SSM (gate)", "output_gate": "a gate around the SSM (gate)",
    "input_linear": "a linear map in front of the SSM (bottleneck)", "hyper_linear": "a modulation (hyper_act)",
    "_initial_state": "a trained initial state (use_state)", "initial_state": "a trained initial state (use_state)",
}  # fmt: skip
_FEED_FORWARD = re.compile(r"ff\.(?P<place>\d+)\.(?:\d+\.)?(?P<kind>weight|bias)")


@dataclass(frozen=True)
class SSMPlan:
    """An SSM layer.

    Args:
        name: "s4" or "s4d".
        d_model: Heads H.
        d_state: State size N.
        mix: "glu", "linear" or None.
        bidirectional: Whether half of the kernels look ahead.
        ssm: Other options of the layer by name.
        tensors: Its weights by name, in float64.

    Example:
        >>> plan = SSMPlan("s4d", 4, 8, mix="glu", bidirectional=False, ssm={"init": "lin"}, tensors={})
        >>> plan.build(dropout=0.0, dtype=torch.float32).d_output
        4
    """

    name: str
    d_model: int
    d_state: int
    mix: str | None
    bidirectional: bool
    ssm: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def settings(self) -> tuple[Any, ...]:
        """Everything except the weights."""
        return self.name, self.d_model, self.d_state, self.mix, self.bidirectional, self.ssm

    def build(self, dropout: float, dtype: torch.dtype) -> SequenceLayer:
        """The layer, before its weights are loaded."""
        make: Any = LAYERS[self.name]
        options = {"mix": self.mix, "bidirectional": self.bidirectional, "dropout": dropout, "dtype": dtype}
        return make(self.d_model, self.d_state, **options, **self.ssm)


@dataclass(frozen=True)
class FeedForwardPlan:
    """A feed-forward layer.

    Args:
        d_model: Features.
        expand: Hidden features per feature.
        tensors: Its weights by name, in float64.

    Example:
        >>> FeedForwardPlan(d_model=4, expand=2, tensors={}).build(dropout=0.0, dtype=torch.float32).d_output
        4
    """

    d_model: int
    expand: int
    tensors: dict[str, Tensor]

    def build(self, dropout: float, dtype: torch.dtype) -> SequenceLayer:
        """The layer, before its weights are loaded."""
        return FeedForward(self.d_model, self.expand, dropout=dropout, dtype=dtype)


def plan_layer(tensors: Mapping[str, Tensor], options: ReferenceOptions, where: str) -> SSMPlan | FeedForwardPlan:
    """The plan of one layer.

    Args:
        tensors: Of the layer, by its own names.
        options: The options of the conversion.
        where: The prefix of the names, for messages.
    """
    anchors = [name for name in tensors if ANCHOR.match(name)]
    if not anchors:
        if any(name.startswith("ff.") for name in tensors):
            return _plan_feed_forward(tensors, where)
        raise NotExpressibleError(f"{where} is neither an S4 nor a feed-forward layer, got {_names(tensors)}")
    if len(anchors) > 1:
        raise LoadError(f"{where} must be one layer, got several kernels: {', '.join(anchors)}")
    return _plan_ssm(tensors, anchors[0], options, where)


def _plan_ssm(tensors: Mapping[str, Tensor], anchor: str, options: ReferenceOptions, where: str) -> SSMPlan:
    match = ANCHOR.match(anchor)
    assert match is not None
    kernel, block = match["kernel"], match["owner"]  # D is in the second: "layer." in v4's blocks
    if block not in ("", "layer."):
        raise LoadError(f"{where}{kernel}C must be the kernel of one layer")
    parts = {name[len(kernel) :]: value for name, value in tensors.items() if name.startswith(kernel)}
    rest = {name: value for name, value in tensors.items() if not name.startswith(kernel)}
    ssm = convert(parts, options, where + kernel)
    D = _take(rest, f"{block}D", where).double()
    D = D[None] if D.ndim == 1 else D
    kernels, heads = ssm.C.shape[:2]
    if D.ndim != 2 or D.shape[1] != heads or kernels not in (len(D), 2 * len(D)):
        raise LoadError(f"{where}{block}D must have shape (channels, {heads}), got {tuple(D.shape)}")
    channels, bidirectional = len(D), kernels == 2 * len(D)
    mix, weight, bias = _output_linear(rest, heads, where)
    for name in rest:
        part = name.removeprefix("layer.").partition(".")[0]
        if part in _EXTRAS:
            raise NotExpressibleError(f"{where}{name} belongs to {_EXTRAS[part]}, which no layer of statespan has")
        raise LoadError(f"{where}{name} is none of the names of an S4 layer")
    shapes = {"glu": (2 * heads, channels * heads), "linear": (heads, channels * heads)}
    if mix is not None and weight.shape != shapes[mix]:  # type: ignore[union-attr]
        raise NotExpressibleError(
            f"{where}output_linear has shape {tuple(weight.shape)}, but statespan's maps {channels} · {heads} features "  # type: ignore[union-attr]
            f"to {heads}, or to {2 * heads} before a gate"
        )
    weights = {"D": D, **_ssm_weights(ssm)}
    prefix = "mix.0." if mix == "glu" else "mix."
    if weight is not None and bias is not None:
        weights |= {f"{prefix}weight": weight, f"{prefix}bias": bias}
    activation = options.activation or "gelu"
    return SSMPlan(
        "s4d" if ssm.P is None else "s4", heads, 2 * ssm.C.shape[2], mix, bidirectional,
        _ssm_options(ssm, channels, activation), weights,
    )  # fmt: skip


def _ssm_options(ssm: ConvertedSSM, channels: int, activation: str) -> dict[str, Any]:
    """Options of the layer that differ from its defaults, so that a config stays short."""
    S, heads = len(ssm.A_real), ssm.C.shape[1]
    options: dict[str, Any] = {"init": "legs" if ssm.P is None or len(ssm.P) == 1 else "legt"}
    options["real_part"] = ssm.real_part
    if ssm.P is None:
        options |= {"init": "lin", "discretization": ssm.disc}
    if ssm.B is None:
        options["train_B"] = False
    if ssm.Q is not None:
        options["separate_Q"] = True
    if heads != S:
        options["n_ssm"] = S
    if channels > 1:
        options["channels"] = channels
    if activation == "none":
        options["activation"] = None
    return options


def _ssm_weights(ssm: ConvertedSSM) -> dict[str, Tensor]:
    B = ssm.B
    if B is None:
        B = torch.zeros(*ssm.A_real.shape, 2, dtype=torch.float64)
        B[..., 0] = 1.0
    weights = {"log_dt": ssm.log_dt, "A_real": ssm.A_real, "A_imag": ssm.A_imag, "B": B, "C": ssm.C}
    if ssm.P is not None:
        weights["P"] = ssm.P
    if ssm.Q is not None:
        weights["Q"] = ssm.Q
    return {f"ssm.{name}": value for name, value in weights.items()}


def _output_linear(rest: dict[str, Tensor], heads: int, where: str) -> tuple[str | None, Tensor | None, Tensor | None]:
    """Remove the linear map from ``rest``, and return the kind of mix with its weight and bias."""
    names = {name: name.split(".")[1:] for name in rest if name.startswith("output_linear.")}
    if not names:
        return None, None, None
    found = {".".join(parts[1:] if parts[0] == "0" else parts): rest.pop(name) for name, parts in names.items()}
    weight = _normed(found)
    bias = found.pop("bias", None)
    if weight is None or bias is None or found:
        raise LoadError(f"{where}output_linear must have a weight and a bias, got {_names(names)}")
    weight = weight.double()
    weight = weight[..., 0] if weight.ndim == 3 and weight.shape[2] == 1 else weight  # a convolution over one position
    if weight.ndim != 2 or bias.numel() != len(weight):
        raise LoadError(f"{where}output_linear must be a linear map, got a weight of shape {tuple(weight.shape)}")
    return "glu" if len(weight) == 2 * heads else "linear", weight, bias.double().flatten()


def _normed(found: dict[str, Tensor]) -> Tensor | None:
    """The weight of a linear map; with torch's weight norm, it is computed from its two parts."""
    for size, direction in (
        ("weight_g", "weight_v"),
        ("parametrizations.weight.original0", "parametrizations.weight.original1"),
    ):
        if size in found and direction in found:
            g, v = found.pop(size).double(), found.pop(direction).double()
            return g * v / v.flatten(1).norm(dim=1).view(-1, *[1] * (v.ndim - 1))
    return found.pop("weight", None)


def _plan_feed_forward(tensors: Mapping[str, Tensor], where: str) -> FeedForwardPlan:
    maps: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        match = _FEED_FORWARD.fullmatch(name)
        if match is None:
            raise LoadError(f"{where}{name} is none of the names of a feed-forward layer")
        maps.setdefault(int(match["place"]), {})[match["kind"]] = value.double()
    linear = [maps[place] for place in sorted(maps)]
    if len(linear) != 2 or any(part.keys() != {"weight", "bias"} for part in linear):
        raise LoadError(f"{where} must have two linear maps with a weight and a bias, got {_names(tensors)}")
    hidden, d_model = linear[0]["weight"].shape[:2]
    if linear[1]["weight"].shape[:2] != (d_model, hidden):
        raise LoadError(f"{where} must map {d_model} features to hidden features and back, got {_names(tensors)}")
    if hidden % d_model:
        raise NotExpressibleError(f"{where} has {hidden} hidden features, which is not a multiple of {d_model}")
    weights = {}
    for name, part in zip(("inner", "outer"), linear):
        weights[f"{name}.weight"], weights[f"{name}.bias"] = part["weight"].flatten(1), part["bias"].flatten()
    return FeedForwardPlan(d_model, hidden // d_model, weights)


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load float64 weights, which must be exactly those of the module, in its dtypes."""
    wanted = module.state_dict()
    if wanted.keys() != tensors.keys():
        differing = _names(wanted.keys() ^ tensors.keys())
        raise LoadError(f"weights must be exactly those of the layer: {differing} are missing or unknown")
    for name, value in tensors.items():
        if wanted[name].shape != value.shape:
            raise LoadError(f"weight {name} must have shape {tuple(wanted[name].shape)}, got {tuple(value.shape)}")
    module.load_state_dict({name: value.to(wanted[name].dtype) for name, value in tensors.items()})


def _take(rest: dict[str, Tensor], name: str, where: str) -> Tensor:
    if name not in rest:
        raise LoadError(f"{where}{name} is missing")
    return rest.pop(name)


def _names(names: Any) -> str:
    return ", ".join(sorted(names)[:4]) or "nothing"
