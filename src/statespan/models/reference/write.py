"""``to_reference``: a layer, a backbone or a model under the names of the papers' public code, version 4.

Shapes: H heads, S independent SSMs, M = N/2 kept modes, K kernels, R rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_choice, check_int
from statespan.models.base import Model
from statespan.models.classifier import Classifier, Regressor, Retrieval
from statespan.models.reference.kernel import truncate
from statespan.models.reference.options import DISCRETIZATIONS
from statespan.models.reference.source import NotExpressibleError
from statespan.models.transducer import Transducer
from statespan.nn import Backbone, FeedForward, SSMLayer
from statespan.nn.backbone import Chain
from statespan.nn.parameters import DiagonalParameters, DPLRParameters
from statespan.nn.real_part import real_part
from statespan.ops.fusion import GLU

LAYOUTS = ("block", "s4d")


def to_reference(
    model: nn.Module, *, l_kernel: int | None = None, dt_transform: str | None = None, layout: str = "block"
) -> dict[str, Tensor]:
    """The weights under the names of the papers' public code (state-spaces/s4), version 4.

    Build the reference's model with ``real_transform="exp"``, the ``dt_transform`` given here and, for a diagonal SSM,
    ``disc`` as the ``discretization`` of the layer.

    Args:
        model: An S4 or S4D layer, a :class:`statespan.nn.Backbone`, a Classifier, Regressor, Retrieval or Transducer.
        l_kernel: Length to prepare S4's kernel for: C̃ = C (I − Ā^l) replaces C. None writes C itself and
            ``l_kernel`` 0; the reference then computes C̃ when it first runs.
        dt_transform: "exp" or "softplus". None means "softplus" for a model, whose names are those of the reference's
            Lightning module, and "exp" for a layer or a backbone. :func:`statespan.from_reference` has
            the same defaults.
        layout: "block" for the reference's general block, or "s4d" for its standalone S4D.

    Returns:
        Copies of the tensors by name, in the dtype of the model.

    Raises:
        NotExpressibleError: The reference has no such layer or model.

    Example:
        >>> from statespan import S4
        >>> weights = to_reference(S4(4, 8), l_kernel=100)
        >>> weights["layer.kernel.C"].shape, int(weights["layer.kernel.l_kernel"])
        (torch.Size([1, 4, 4, 2]), 100)
    """
    if dt_transform is None:
        dt_transform = "softplus" if isinstance(model, Model) else "exp"
    check_choice("dt_transform", dt_transform, ("exp", "softplus"))
    check_choice("layout", layout, LAYOUTS)
    if l_kernel is not None:
        check_int("l_kernel", l_kernel, minimum=1)
    options = {"l_kernel": l_kernel or 0, "dt_transform": dt_transform, "layout": layout}
    with torch.no_grad():
        return {name: value.detach().clone().contiguous() for name, value in _write(model, options).items()}


def _write(model: Any, options: dict[str, Any]) -> dict[str, Tensor]:
    if isinstance(model, SSMLayer):
        return _layer(model, options)
    if isinstance(model, Backbone):
        return _backbone(model, options)
    if isinstance(model, (Classifier, Regressor, Retrieval, Transducer)):
        return _whole(model, options)
    raise TypeError(
        "model must be an S4 or S4D layer, a Backbone, a Classifier, Regressor, Retrieval or Transducer, got "
        f"{type(model).__name__}"
    )


def _whole(model: Any, options: dict[str, Any]) -> dict[str, Tensor]:
    if isinstance(model.backbone, Chain):
        raise NotExpressibleError(
            "residual=False: the reference's sequence models have residuals; convert the layer alone"
        )
    weights = {f"model.{name}": value for name, value in _backbone(model.backbone, options).items()}
    weights |= {f"encoder.0.{name}": value for name, value in model.encoder.map.state_dict().items()}
    if isinstance(model, Transducer):
        return weights | {f"decoder.0.output_transform.{n}": v for n, v in model.linear.state_dict().items()}
    if isinstance(model, Retrieval):
        names = {"inner": "0", "outer": "2"}
        head = {f"{names[n.split('.')[0]]}.{n.split('.')[1]}": v for n, v in model.head.state_dict().items()}
        return weights | {f"decoder.0.retrieval.classifier.{name}": value for name, value in head.items()}
    head = model.head.linear.state_dict()
    return weights | {f"decoder.0.output_transform.{name}": value for name, value in head.items()}


def _backbone(backbone: Any, options: dict[str, Any]) -> dict[str, Tensor]:
    if not isinstance(backbone, Backbone):
        raise NotExpressibleError(f"a {type(backbone).__name__} is not a sequence model of the reference")
    if backbone.positions is not None:
        raise NotExpressibleError("positions='sinusoidal': the reference's sequence models have no such encoding")
    weights: dict[str, Tensor] = {}
    for i, block in enumerate(backbone.blocks):
        part: Any = block
        weights |= {f"layers.{i}.layer.{n}": v for n, v in _any_layer(part.layer, options).items()}
        weights |= {f"layers.{i}.norm.norm.{n}": v for n, v in _norm(part.norm).items()}
    return weights | {f"norm.norm.{name}": value for name, value in _norm(backbone.norm).items()}


def _norm(norm: nn.Module) -> dict[str, Tensor]:
    weights = dict(norm.state_dict())
    if "running_mean" in weights:
        weights["num_batches_tracked"] = torch.tensor(0)
    return weights


def _any_layer(layer: Any, options: dict[str, Any]) -> dict[str, Tensor]:
    if isinstance(layer, FeedForward):
        inner = {f"ff.0.0.{name}": value for name, value in layer.inner.state_dict().items()}
        return inner | {f"ff.2.{name}": value for name, value in layer.outer.state_dict().items()}
    if isinstance(layer, SSMLayer):
        return _layer(layer, options)
    raise NotExpressibleError(f"a {type(layer).__name__} is not a layer of the reference's sequence models")


def _layer(layer: SSMLayer, options: dict[str, Any]) -> dict[str, Tensor]:
    ssm = layer.ssm
    low_rank = isinstance(ssm, DPLRParameters)
    if not isinstance(ssm, (DPLRParameters, DiagonalParameters)):
        raise NotExpressibleError(f"{type(ssm).__name__}: the reference's SSMs are diagonal, or diagonal plus low-rank")
    if isinstance(ssm, DiagonalParameters) and ssm.softmax:
        raise NotExpressibleError("kernel='softmax': the reference's own softmax is damped by 1e-7")
    if isinstance(ssm, DPLRParameters) and ssm.separate_Q:
        raise NotExpressibleError("separate_Q=True: the reference's low-rank term is P Pᴴ")
    rule, allowed = ssm.options.discretization, ("bilinear",) if low_rank else DISCRETIZATIONS
    if rule not in allowed:
        kind = "with a low-rank term" if low_rank else "of a diagonal SSM"
        raise NotExpressibleError(f"discretization={rule!r} {kind}; the reference's is {' or '.join(allowed)}")
    A_real = ssm.A_real
    if ssm.real_part != "exp":
        value = real_part(ssm.real_part, A_real)
        if not bool((value < 0).all()):
            raise NotExpressibleError(
                f"Re A must be < 0 everywhere for real_transform='exp', got up to {value.max().item():g}"
            )
        A_real = (-value).log().to(A_real.dtype)
    if options["layout"] == "s4d":
        return _standalone(layer, ssm, A_real)
    C = ssm.C
    if low_rank and options["l_kernel"]:
        system = ssm.structure()
        C = torch.view_as_real(truncate(system.C.to(torch.complex128), system, options["l_kernel"])).to(C.dtype)  # type: ignore[arg-type]
    inv_dt = ssm.log_dt[:, None]
    if options["dt_transform"] == "softplus":
        inv_dt = inv_dt.double().exp().expm1().log().to(inv_dt.dtype)
    kernel = {"C": C, "inv_dt": inv_dt, "A_real": A_real, "A_imag": -ssm.A_imag, "B": ssm.B[None]}
    if isinstance(ssm, DPLRParameters):
        kernel |= {"P": ssm.P, "l_kernel": torch.tensor(options["l_kernel"])}
    weights = {"layer.D": layer.D, **{f"layer.kernel.{name}": value for name, value in kernel.items()}}
    return weights | {f"output_linear.0.{name.split('.')[-1]}": value for name, value in layer.mix.state_dict().items()}


def _standalone(layer: SSMLayer, ssm: DPLRParameters | DiagonalParameters, A_real: Tensor) -> dict[str, Tensor]:
    """The reference's standalone S4D: one kernel per head, zero-order hold, GELU and a gate; B is multiplied into C."""
    wanted = {
        "a diagonal SSM": isinstance(ssm, DiagonalParameters),
        "discretization='zoh'": ssm.options.discretization == "zoh",
        "channels=1 and bidirectional=False": ssm.options.kernels == 1,
        "mix='glu'": isinstance(layer.mix, GLU),
        "activation='gelu'": layer.activation == "gelu",
    }
    missing = [name for name, there in wanted.items() if not there]
    if missing:
        raise NotExpressibleError(f"layout='s4d' needs {missing[0]}")
    copies = ssm.options.d_model // ssm.options.ssms
    B, C = (torch.view_as_complex(x.double().contiguous()) for x in (ssm.B, ssm.C))
    C = torch.view_as_real(C[0] * B.repeat(copies, 1)).to(ssm.C.dtype)
    A_imag, gate = ssm.A_imag.repeat(copies, 1), layer.mix.state_dict()
    kernel = {"C": C, "log_dt": ssm.log_dt, "log_A_real": A_real.repeat(copies, 1), "A_imag": A_imag}
    weights = {"D": layer.D[0], **{f"kernel.{name}": value for name, value in kernel.items()}}
    return weights | {"output_linear.0.weight": gate["0.weight"][..., None], "output_linear.0.bias": gate["0.bias"]}
