"""``from_reference``: the reference's weights as a layer, a backbone or a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_dtype
from statespan.models.base import Model
from statespan.models.pretrained import LoadError
from statespan.models.reference.backbone import BackbonePlan, is_lightning, is_stack, plan_backbone
from statespan.models.reference.layer import SSMPlan, load_weights, plan_layer
from statespan.models.reference.names import ANCHOR
from statespan.models.reference.options import ReferenceOptions
from statespan.models.reference.source import NotExpressibleError, read_source
from statespan.models.reference.whole import Ends, build_bare, build_whole, ends_of
from statespan.nn import Backbone


def from_reference(
    source: Any, *, prefix: str = "", dt_transform: str | None = None, real_transform: str | None = None,
    imag_transform: str | None = None, disc: str | None = None, activation: str | None = None,
    l_kernel: int | None = None, prenorm: bool | None = None, pool: str | None = None, task: str | None = None,
    dropout: float = 0.0, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
) -> nn.Module:  # fmt: skip
    """Convert trained weights of the papers' public code (state-spaces/s4), versions 1 to 4.

    The result computes the same outputs. Some settings cannot be read from the weights. An option that is None is taken
    from the config in a Lightning checkpoint; otherwise it is the default of the reference's classes.

    Args:
        source: A state_dict, or a file of ``torch.save`` or safetensors; no code in it runs.
        prefix: Read only the names that begin with it, such as "backbone.s4.".
        dt_transform: How v4 computes Δ from ``inv_dt``: "exp" (default of its classes), "softplus" (of its configs, and
            here of whole Lightning modules), "relu", "sigmoid" or "none". For Δ ≤ 0.1 the
            first two differ by up to 5 %.
        real_transform: How −Re A is computed; the same names, by default "exp".
        imag_transform: How −Im A is computed in v4; the same names, by default "none".
        disc: Discretization of a diagonal SSM: "zoh" (default in v4) or "bilinear" (default in v3). S4 is always
            bilinear.
        activation: After the SSM: "gelu" (default) or "none".
        l_kernel: Length that S4's kernel was prepared for, for weights that do not store it.
        prenorm: Checked against the weights: with prenorm they have a last norm.
        pool: How the decoder reduces a sequence to one output: "mean" (default), "last" or "first"; or "none" for an
            output at every position.
        task: "classification" or "regression"; by default, one output means regression and several mean classes.
        dropout: Probability of dropping a feature in further training.
        device: Where to put the result.
        dtype: Dtype of its parameters; by default float64 if any weight has double precision, else float32.

    Returns:
        In evaluation mode: S4 or S4D for one layer; :class:`statespan.nn.Backbone` for a stack of layers; a model of
        :mod:`statespan.models` for a stack with an encoder or a decoder. All read (batch, length, features).

    Raises:
        LoadError: The file cannot be read, or the names are not the reference's.
        NotExpressibleError: No layer or model of statespan computes the same; the message names what is missing.

    Example:
        >>> from statespan import S4D, from_reference, to_reference
        >>> layer = S4D(4, 8, discretization="zoh").eval()
        >>> weights = to_reference(layer)
        >>> sorted(weights)[:3]
        ['layer.D', 'layer.kernel.A_imag', 'layer.kernel.A_real']
        >>> bool((from_reference(weights)(torch.ones(1, 9, 4)) - layer(torch.ones(1, 9, 4))).abs().max() < 1e-6)
        True
    """
    options = ReferenceOptions(
        dt_transform=dt_transform, real_transform=real_transform, imag_transform=imag_transform, disc=disc,
        activation=activation, l_kernel=l_kernel, prenorm=prenorm, pool=pool, task=task, dropout=dropout,
    )  # fmt: skip
    plan, ends, options, found = _plan(source, prefix, options)
    dtype = found if dtype is None else check_dtype("dtype", dtype)
    if ends is None:
        return _bare(plan, dropout, dtype).to(device).eval()
    assert isinstance(plan, BackbonePlan)
    return build_whole(plan, ends, options, dtype).to(device).eval()


def read_model(
    source: Any, options: ReferenceOptions, *, prefix: str = "", dtype: torch.dtype | None = None
) -> tuple[Model, ReferenceOptions]:
    """The weights as a model that can be saved, and the options that were used.

    A bare layer or stack becomes a :class:`statespan.models.Transducer` whose linear maps are the identity.

    Args:
        source: As in :func:`from_reference`.
        options: Its options.
        prefix: As there.
        dtype: As there.
    """
    plan, ends, options, found = _plan(source, prefix, options)
    dtype = found if dtype is None else check_dtype("dtype", dtype)
    if ends is None:
        return build_bare(plan, options.dropout, dtype).eval(), options
    assert isinstance(plan, BackbonePlan)
    return build_whole(plan, ends, options, dtype).eval(), options


def _bare(plan: BackbonePlan | SSMPlan, dropout: float, dtype: torch.dtype) -> nn.Module:
    """The layer or the stack."""
    if isinstance(plan, SSMPlan):
        layer = plan.build(dropout, dtype)
        load_weights(layer, plan.tensors)
        return layer
    layers, norm = [layer.build(dropout, dtype) for layer in plan.layers], plan.norm
    stack = Backbone(layers, norm=norm, prenorm=plan.prenorm, dropout=dropout, dtype=dtype)  # type: ignore[arg-type]
    load_weights(stack, plan.tensors())
    return stack


def _plan(
    source: Any, prefix: str, options: ReferenceOptions
) -> tuple[BackbonePlan | SSMPlan, Ends | None, ReferenceOptions, torch.dtype]:
    """The plan of a layer or stack, the encoder and decoder around it, the options, and the dtype of the weights."""
    read = read_source(source, prefix)
    tensors, given = read.tensors, options.disc
    options = options.with_config(read.config)
    dtype = _dtype(tensors)
    if not is_stack(tensors):
        inner, where = _one_layer(tensors)
        plan = plan_layer(inner, options, where)
        assert isinstance(plan, SSMPlan)  # it has a kernel
        _check_disc(given, [plan])
        return plan, None, options, dtype
    if is_lightning(tensors):
        options = options.filled(dt_transform="softplus")
    stack, rest = plan_backbone(tensors, options)
    _check_disc(given, stack.ssms)
    return stack, ends_of(rest, stack.root) if rest else None, options, dtype


def _check_disc(disc: str | None, layers: list[SSMPlan]) -> None:
    """Reject a ``disc`` that no layer uses; a stored config may have one beside S4, and means nothing by it."""
    if disc not in (None, "bilinear") and all(layer.name == "s4" for layer in layers):
        raise LoadError(f"disc must be 'bilinear' or None for S4, which has no other discretization, got {disc!r}")


def _one_layer(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """The tensors of one layer without their common prefix, and the prefix."""
    anchors = [match for name in tensors if (match := ANCHOR.match(name))]
    if len(anchors) > 1:
        first, second = (match["kernel"] for match in anchors[:2])
        raise NotExpressibleError(f"source has several kernels, {first} and {second}, outside a list named layers")
    where = anchors[0]["owner"]
    if where.endswith("layer.") and not any(name.startswith(f"{where}output_linear") for name in tensors):
        where = where.removesuffix("layer.")
    beside = [name for name in tensors if not name.startswith(where)]
    if beside:
        raise LoadError(
            f"{beside[0]} is none of the names of the layer {where!r}; to read only the layer, pass prefix={where!r}"
        )
    return {name[len(where) :]: value for name, value in tensors.items()}, where


def _dtype(tensors: dict[str, Tensor]) -> torch.dtype:
    """The dtype of the weights: float64 if any is, else float32."""
    wide = any(value.dtype in (torch.float64, torch.complex128) for value in tensors.values())
    return torch.float64 if wide else torch.float32
