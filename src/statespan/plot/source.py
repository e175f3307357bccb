"""The SSM layers to draw: those of a module, a saved model or a run, or an untrained one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from statespan import _plotting as _look
from statespan._check import check_choice
from statespan._suggest import suggest
from statespan.models.config import LAYERS, LayerName
from statespan.nn import SSMLayer

Item = TypeVar("Item")


class Part(NamedTuple):
    """A layer and its name in the plot.

    Example:
        >>> from statespan import S4D
        >>> from statespan.nn import Backbone
        >>> [part.name for part in parts_of(Backbone([S4D(4), S4D(4)]))]
        ['layer 1', 'layer 2']
    """

    name: str
    layer: SSMLayer


def parts_of(module: nn.Module) -> list[Part]:
    """The SSM layers of a module, in their order.

    Example:
        >>> from statespan import S4D
        >>> [part.name for part in parts_of(nn.Sequential(S4D(4), nn.ReLU(), S4D(4)))]
        ['layer 1', 'layer 2']
    """
    layers = [layer for layer in module.modules() if isinstance(layer, SSMLayer)]
    if not layers:
        raise ValueError(f"module must have SSM layers such as S4D in it, got a {type(module).__name__} without any")
    if len(layers) == 1:
        return [Part(type(layers[0]).__name__, layers[0])]
    return [Part(f"layer {number}", layer) for number, layer in enumerate(layers, 1)]


def read_parts(folder: Path) -> list[Part]:
    """The layers of a saved model, or of the model of a run."""
    from statespan.models import from_pretrained

    inside = folder / "model"
    return parts_of(from_pretrained(inside if (inside / "config.json").is_file() else folder))


def fresh(layer: LayerName = "s4d", options: Mapping[str, Any] | None = None, *, seed: int = 0) -> list[Part]:
    """A layer before training.

    Args:
        layer: "s4", "s4d", "dss", "lssl", "s5" or "lru".
        options: Its arguments, such as ``{"init": "lin", "d_state": 32}``; 64 features by default.
        seed: Of the random initialization.

    Example:
        >>> fresh("s4d", {"init": "lin"})[0].name
        'S4D, init lin'
    """
    check_choice("layer", layer, tuple(LAYERS))
    chosen = {"d_model": 64, **(options or {})}
    known = sorted(inspect.signature(LAYERS[layer]).parameters)
    for key in chosen:
        if key not in known:
            raise ValueError(f"options must be those of {LAYERS[layer].__name__}, got {key!r}{suggest(key, known)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn: SSMLayer = LAYERS[layer](**chosen)
    words = [f"{key} {value}" for key, value in chosen.items() if key != "d_model"]
    return [Part(", ".join([LAYERS[layer].__name__, *words]), drawn)]


def kernel_of(part: Part, length: int, *, dt_scale: float = 1.0) -> Tensor:
    """The kernels (K, H, length) of a layer, float64."""
    with torch.no_grad():
        structure = part.layer.ssm.structure(dt_scale, length)
        return structure.kernel(length).double().cpu()


def step_sizes(part: Part) -> Tensor:
    """The step size Δ of each head (H,), float64."""
    return part.layer.structure().dt.detach().double().cpu()


def spread_heads(part: Part, count: int) -> list[int]:
    """``count`` heads, evenly spaced from the smallest Δ to the largest."""
    return evenly_spaced(torch.argsort(step_sizes(part)).tolist(), count)


def save(figure: Any, out: Path | str) -> list[Path]:
    """Write a figure atomically.

    Args:
        figure: The figure.
        out: A file that ends in .png or .svg; without an ending, both are written.

    Returns:
        The files.
    """
    from statespan._io import replace_file

    written = _look.targets(Path(out))
    for path in written:
        replace_file(path, _look.content(figure, path.suffix.lower().removeprefix(".")))
    return written


def evenly_spaced(items: Sequence[Item], most: int) -> list[Item]:
    """At most ``most`` items, evenly spaced from the first to the last."""
    count = min(most, len(items))
    return [items[round(n * (len(items) - 1) / max(1, count - 1))] for n in range(count)]
