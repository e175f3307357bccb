"""`eager`: what a newcomer measures, one layer forward and backward in an ordinary loop, and one whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

import statespan
from statespan.papers.baselines.attention import Attention
from statespan.papers.bench import model, public_code
from statespan.papers.bench.case import OK, Benchmark, BenchOptions, BenchRow, Case, Floor, Work
from statespan.papers.bench.eager_work import (
    COMPILED,
    REDUCED,
    SAME_MAP,
    measure,
    measure_kernels,
    pass_work,
    public_work,
)
from statespan.papers.bench.layer_work import KINDS, attention_floor, ssm_floor
from statespan.papers.bench.training import CAPTURED, EAGER, step_work

ATTENTION, LSTM = "attention", "LSTM"
STEP = "S4D, AdamW step"
COLUMNS = {
    "time_ms": "wall",
    "host_ms": "host",
    "device_ms": "device",
    "floor_ms": "floor",
    "launches": "GPU\ncalls",
    "host_over_attention": "host /\nattn.",
    "wall_over_device": "wall /\ndevice",
}
Shape = tuple[int, int, int]


def cases(options: BenchOptions) -> Iterator[Case]:
    """All layers at each shape, at the first one in float32 too; then a training step of a model."""
    for number, shape in enumerate(options.sizes["shapes"]):
        yield from layers(options, shape, compiled=shape in options.sizes["compiled"])
        if number == 0 and options.dtype != torch.float32:
            yield from layers(replace(options, dtype=torch.float32), shape, compiled=False)
    yield from steps(options)


def layers(options: BenchOptions, shape: Shape, *, compiled: bool) -> Iterator[Case]:
    """Our layers, attention and LSTM at one shape; where asked for, compiled, and the papers' public code."""
    B, L, D = shape
    N = options.sizes["d_state"]
    n_heads = max(1, D // options.sizes["d_head"])
    floor = ssm_floor(options, B * L, D, 2 * D)
    make: dict[str, Callable[[], nn.Module]] = {
        kind: partial(layer, D, N, device=options.device) for kind, layer in KINDS.items()
    }
    make[ATTENTION] = partial(Attention, D, n_heads, flash=True, device=options.device)
    floors = {name: floor for name in KINDS}
    floors[ATTENTION] = attention_floor(options, B, L, D, inner=D, causal=True)

    def case(name: str, work: Callable[[], Work], **changes: Any) -> Case:
        fields = {"floor": floor, "tolerance": None, "optional": True, **changes}
        setting = _setting(options, shape, f"{B} × {L:,} × {D}")
        return _case(options, name, setting, work, **fields)

    for name, layer in make.items():
        ours = name in KINDS
        fused = options.device.type == "cuda" and not ours and not options.half
        notes = "torch's flash kernel needs 16 bits; this is another fused one" if fused else ""
        for variant in variants(options, compiled=compiled, captured=compiled or ours):
            work = partial(pass_work, layer, options, shape, variant=variant, compared=ours)
            label = name if variant is None else f"{name}, {variant}"
            tolerance = options.tolerance if ours else None
            optional = not ours or variant is not None
            yield case(label, work, floor=floors[name], tolerance=tolerance, optional=optional, notes=notes)
    lstm = partial(nn.LSTM, D, D, batch_first=True, device=options.device)
    how = replace(ssm_floor(options, B * L, D, 8 * D), how="x read twice, y and dx written, dy read; its products")
    work = partial(pass_work, lstm, options, shape, compared=False, graph=False)
    yield case(LSTM, work, floor=how, skip=too_long(options, L))
    if options.reference is not None:
        for public in public_code.LAYERS:
            built = partial(_public, options, public, D)
            notes = public_code.notes(options.reference, public)
            yield case(public.name, partial(public_work, built, options, shape), tolerance=SAME_MAP, notes=notes)


def variants(options: BenchOptions, *, compiled: bool, captured: bool) -> list[str | None]:
    """The ways to call a layer: None is the ordinary one, the only one on a CPU."""
    if options.device.type != "cuda":
        return [None]
    captured = captured and missing_capture() is None
    return [None, *([CAPTURED] if captured else []), *([COMPILED, REDUCED] if compiled else [])]


def _case(options: BenchOptions, name: str, setting: dict[str, Any], work: Callable[[], Work], **fields: Any) -> Case:
    later = measure_kernels if options.device.type == "cuda" else None
    return Case(name, setting, work, dtype=options.dtype, measure=measure, later=later, **fields)


def _setting(options: BenchOptions, shape: Shape, text: str) -> dict[str, Any]:
    batch, length, d_model = shape
    dtype = str(options.dtype).removeprefix("torch.")
    return {"shape": text, "dtype": dtype, "batch": batch, "length": length, "d_model": d_model}


def _public(options: BenchOptions, public: public_code.PublicLayer, d_model: int) -> nn.Module:
    assert options.reference is not None
    module = public_code.load(options.reference, public.file)
    return public.make(module, d_model, options.sizes["d_state"])


def too_long(options: BenchOptions, length: int) -> Callable[[Sequence[BenchRow]], str | None]:
    """Whether the LSTM, which steps through a sequence, would take too long by its slowest step so far."""

    def skip(before: Sequence[BenchRow]) -> str | None:
        steps = [row.time_ms / row.setting["length"] for row in before if row.name == LSTM and row.time_ms]
        expected, limit = length * max(steps, default=0.0), options.sizes["limit_ms"]
        if expected <= limit:
            return None
        return f"{length:,} steps one after another, about {expected:,.0f} ms a pass; the limit is {limit:,} ms"

    return skip


def steps(options: BenchOptions) -> Iterator[Case]:
    """A training step of the sCIFAR model with fused AdamW, in an ordinary loop and with ``statespan.capture``."""
    task = model.tasks(options)[0]
    shape = (task.batch, task.length, task.d_model)
    setting = _setting(options, shape, f"{task.name}, {task.n_layers} layers")
    floor = ssm_floor(options, task.batch * task.length, task.d_model, 2 * task.d_model)
    whole: Floor = floor.in_each_of(task.n_layers, "layers")
    for variant in (EAGER, CAPTURED) if options.device.type == "cuda" else (EAGER,):
        work = partial(_step, options, task, variant)
        name = STEP if variant == EAGER else f"{STEP}, {variant}"
        skip = (lambda rows: missing_capture()) if variant == CAPTURED else None
        fields = {"floor": whole, "tolerance": options.model_tolerance, "optional": variant != EAGER, "skip": skip}
        yield _case(options, name, setting, work, **fields)


def missing_capture() -> str | None:
    """Why there is no row with ``statespan.capture``, if there is none."""
    return None if hasattr(statespan, "capture") else "this version of statespan has no capture"


def _step(options: BenchOptions, task: model.TaskSizes, variant: str) -> Work:
    built = model.build(task, "S4D", options.sizes["d_state"], options.device)
    return step_work(built, torch.randn(task.batch, task.length, 3), options, variant=variant)


def finish(rows: Sequence[BenchRow], options: BenchOptions) -> tuple[list[BenchRow], list[str]]:
    """Add "host_over_attention" and "wall_over_device", and compare the wall times at each shape."""
    final, findings = [], []
    for row in rows:
        extra, base = dict(row.extra), _base(row, rows)
        if "host_ms" in extra and base is not None and "host_ms" in base.extra:
            extra["host_over_attention"] = extra["host_ms"] / base.extra["host_ms"]
        if "device_ms" in extra and row.time_ms:
            extra["wall_over_device"] = row.time_ms / extra["device_ms"]
        final.append(replace(row, extra=extra))
        if row is base and row.time_ms:
            others = [r for r in rows if r.setting == row.setting and r is not row and r.time_ms and not _is_variant(r)]
            ratios = [f"{other.name} {(other.time_ms or 0.0) / row.time_ms:.2f}" for other in others]
            place = f"{row.setting['shape']}, {row.setting['dtype']}"
            findings.append(f"{place}, wall time over that of {ATTENTION}: {'; '.join(ratios)}")
    return final, findings


def _is_variant(row: BenchRow) -> bool:
    return row.name.endswith((COMPILED, REDUCED, CAPTURED))


def _base(row: BenchRow, rows: Sequence[BenchRow]) -> BenchRow | None:
    """The row of eager attention at the same shape."""
    return next((r for r in rows if r.name == ATTENTION and r.setting == row.setting and r.status == OK), None)


BENCHMARK = Benchmark(
    "eager",
    cases,
    finish=finish,
    columns=COLUMNS,
    sections=("shape", "dtype"),
    dots={"host_ms": "host", "device_ms": "device", "time_ms": "wall"},
    on_cpu={"shapes": ((4, 1024, 64), (1, 4096, 64)), "batch": 2},
    takes_reference=True,
)
