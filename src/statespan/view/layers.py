"""The curves of a layer: kernels, frequency responses and eigenvalues, from the data functions of statespan.plot.

Shapes: H heads, M kept modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statespan.nn.mimo import MIMOParameters
from statespan.nn.parameters import DPLRParameters
from statespan.nn.real_part import inverse_real_part, real_part
from statespan.plot.source import Part, fresh, kernel_of, spread_heads, step_sizes
from statespan.plot.spectrum import eigenvalues_of, response_of
from statespan.ssm.discretize import RULES
from statespan.ssm.hippo import MEASURES
from statespan.ssm.inits import DIAGONAL
from statespan.view.fields import Fields, RefusedError, finite
from statespan.view.limits import HEADS, LARGEST_STATE, LONGEST_KERNEL, SHOWN_HEADS

CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "s4d": {"init": DIAGONAL, "discretization": ("bilinear", "zoh", "foh")},
    "s4": {"init": MEASURES, "discretization": ("bilinear", "zoh", "foh")},
    "dss": {"init": DIAGONAL, "discretization": ("zoh",)},
    "lssl": {"init": MEASURES, "discretization": ("bilinear", "zoh", "foh")},
    "s5": {"init": DIAGONAL, "discretization": ("zoh", "bilinear")},
    "lru": {"init": (), "discretization": ()},
}
"""The initializations and discretizations of each layer, the default first where the page opens."""
SCALED = ("s4d", "s4", "dss", "s5")  # layers with A_real and A_imag, which the page can scale
RANGES = {
    "dt_min": (1e-4, 1.0), "dt_max": (1e-4, 1.0), "real_scale": (0.01, 100.0), "imag_scale": (0.01, 100.0),
    "r_min": (0.0, 0.99), "r_max": (0.01, 1.0), "dt_scale": (0.1, 10.0),
}  # fmt: skip
"""The smallest and the largest value of each slider."""
STATES = (2, 4, 8, 16, 32, 64, 128, LARGEST_STATE)
SEEDS = 2**31 - 1


def fresh_curves(content: dict[str, Any]) -> dict[str, Any]:
    """The curves of an untrained layer with the options of a request."""
    fields = Fields(content, "layer", "init", "discretization", "d_state", "length", "head", "seed", *RANGES)
    if "dt_scale" in content:
        raise RefusedError("dt_scale is for layers of a model; an untrained layer has dt_min and dt_max")
    layer = fields.choice("layer", "s4d", CHOICES)
    options: dict[str, Any] = {"d_model": HEADS}
    options["d_state"] = fields.integer("d_state", 64, least=STATES[0], most=STATES[-1])
    if options["d_state"] % 2:
        raise RefusedError(f"d_state must be even, got {options['d_state']}")
    for name, allowed in CHOICES[layer].items():
        if allowed:
            options[name] = fields.choice(name, allowed[0], allowed)
        elif name in content:
            raise RefusedError(f"{name} is not an option of {layer}")
    for names, default, owners in (
        (("dt_min", "dt_max"), (0.001, 0.1), ("s4d", "s4", "dss", "lssl", "s5")),
        (("r_min", "r_max"), (0.0, 1.0), ("lru",)),
    ):
        low, high = (_ranged(fields, name, value) for name, value in zip(names, default))
        if layer in owners:
            if low > high or (layer == "lru" and low == high):
                raise RefusedError(f"{names[0]} must be at most {names[1]}={high:g}, got {low:g}")
            options.update(zip(names, (low, high)))
    scales = [_ranged(fields, name, 1.0) for name in ("real_scale", "imag_scale")]
    if scales != [1.0, 1.0] and layer not in SCALED:
        raise RefusedError(f"real_scale and imag_scale are for {', '.join(SCALED)}, got {layer}")
    (part,) = fresh(layer, options, seed=fields.integer("seed", 0, least=0, most=SEEDS))  # type: ignore[arg-type]
    if scales != [1.0, 1.0]:
        scale_modes(part, *scales)
    return curves(part, _length(fields), _head(fields, part))


def trained_curves(parts: Sequence[Part], content: dict[str, Any]) -> dict[str, Any]:
    """The curves of a layer of a model, at the sampling rate of a request."""
    fields = Fields(content, "part", "length", "head", "dt_scale")
    part = parts[fields.integer("part", 0, least=0, most=len(parts) - 1)]
    return curves(part, _length(fields), _head(fields, part), dt_scale=_ranged(fields, "dt_scale", 1.0))


@torch.no_grad()
def scale_modes(part: Part, real: float, imag: float) -> None:
    """Scale Re A and Im A of a layer in place; of S4, those of Λ."""
    ssm: Any = part.layer.ssm
    values = real * real_part(ssm.real_part, ssm.A_real)
    ssm.A_real.copy_(inverse_real_part(ssm.real_part, values))
    ssm.A_imag.mul_(imag)


@torch.no_grad()
def curves(part: Part, length: int, head: int | None = None, *, dt_scale: float = 1.0) -> dict[str, Any]:
    """What the page draws of a layer, as lists of numbers.

    Args:
        part: The layer.
        length: Samples of the kernels.
        head: The one to show; None for some, from the smallest Δ to the largest.
        dt_scale: Factor on Δ.

    Example:
        >>> part = fresh("s4d", {"d_model": 2, "d_state": 4, "init": "lin"})[0]
        >>> drawn = curves(part, 16)
        >>> len(drawn["kernels"]), len(drawn["kernels"][0]), len(drawn["A"][0])
        (2, 16, 2)
    """
    heads = spread_heads(part, SHOWN_HEADS) if head is None else [head]
    kernels = kernel_of(part, length, dt_scale=dt_scale)[0, heads]
    frequency, decibels = response_of(kernels)
    sizes = step_sizes(part) * dt_scale
    is_mimo = isinstance(part.layer.ssm, MIMOParameters)  # a mode is a head there, and all of them are one system
    groups = [(eigenvalues_of(part), sizes)] if is_mimo else [(eigenvalues_of(part, h), sizes[h]) for h in heads]
    rule = part.layer.ssm.options.discretization
    return {
        "name": part.name,
        "heads": heads,
        "unit": "mode" if is_mimo else "head",
        "low_rank": isinstance(part.layer.ssm, DPLRParameters),  # whose A are the eigenvalues of its diagonal part
        "dt": finite(sizes[heads].tolist()),
        "kernels": finite(kernels.tolist()),
        "frequency": frequency.double().tolist(),
        "decibels": finite(decibels.tolist()),
        "A": [_pairs(A) for A, _ in groups],
        "discrete": [_pairs(discretized(A, dt.expand(len(A)), rule)) for A, dt in groups],
    }


def _pairs(values: Tensor) -> Any:
    return finite(torch.view_as_real(values).tolist())


def discretized(A: Tensor, dt: Tensor, rule: str) -> Tensor:
    """The eigenvalues of Ā from those of A (M,) and step sizes (M,): a function of a matrix acts on its eigenvalues.

    Example:
        >>> discretized(torch.tensor([-1.0 + 0j]), torch.tensor([2.0]).log(), "zoh").real
        tensor([0.5000], dtype=torch.float64)
    """
    return RULES[rule](A.to(torch.complex128)[:, None], torch.ones_like(A)[:, None], dt.double())[0][:, 0]


def _ranged(fields: Fields, name: str, default: float) -> float:
    least, most = RANGES[name]
    return fields.number(name, default, least=least, most=most)


def _length(fields: Fields) -> int:
    return fields.integer("length", 512, least=2, most=LONGEST_KERNEL)


def _head(fields: Fields, part: Part) -> int | None:
    if fields.content.get("head") is None:
        return None
    return fields.integer("head", 0, least=0, most=len(step_sizes(part)) - 1)
