"""The model card of published weights: what they are, their training data and their limitations.

The text is in card.md, whose fields are filled in here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statespan._text import metric_text
from statespan.data.registry import entry
from statespan.papers.records.schema import Record

SPLITS = {"train": "training", "valid": "validation", "test": "testing"}
PATIENTS = (
    "- Its test windows overlap with training windows of the same patients, as in the papers: the error above says "
    "nothing of new patients. Models tested on new patients have errors many times larger (`docs/results.md`).\n"
)


def write_card(name: str, record: Record, inputs: Mapping[str, Any], *, file: str, size: int) -> str:
    """Write the model card as Markdown."""
    recipe, info, metric = record["recipe"], inputs["info"], record["metric"]
    data, model = recipe["data"], recipe["model"]
    options = ", ".join(f"{key} {value}" for key, value in data.items() if key != "name")
    rows = record.get("rows") or {}
    two_ways = bool(model.get("bidirectional"))
    return Path(__file__).with_suffix(".md").read_text(encoding="utf-8").format(
        name=name, record=record, info=info, file=file, megabytes=size / 1e6,
        layer=str(model.get("layer", "s4")).upper(), overrides=_with(record["overrides"]),
        summary=entry(data["name"]).summary, options=f" ({options})" if options else "",
        rows="".join(f", {rows[split]:,} for {word}" for split, word in SPLITS.items() if split in rows),
        test=metric_text(metric, record["test"][metric]), valid=metric_text(metric, record["valid"][metric]),
        weights=_weights(recipe["train"]),
        minutes=record["wall_seconds"] / 60, start=_start(record), rates=_rates(record),
        features="dtype=torch.long" if info["d_input"] is None else info["d_input"],
        units=_units(inputs), use=_use(name, inputs, two_ways), limit=_limit(info),
        patients=PATIENTS if data.get("split") == "windows" else "",
        direction="It is bidirectional: it needs whole sequences and cannot stream." if two_ways
        else "It is causal: it also runs step by step, with the same results.",
    )  # fmt: skip


def _weights(train: Mapping[str, Any]) -> str:
    if train["test_weights"] == "last":
        return "the last ones"
    tested = train.get("select") == "test"
    return "those that tested best: selected on the test data" if tested else "those that validated best"


def _with(overrides: Sequence[str]) -> str:
    return f" with `{' '.join(overrides)}`" if overrides else ""


def _start(record: Record) -> str:
    start = record.get("start")
    if not start:
        return ""
    duration = f"{start['steps']:,} steps in {start['wall_seconds'] / 60:.3g} min"
    recipe = f"`{start['recipe']}`{_with(start['overrides'])}, seed {start['seed']}"
    return f"- **Initial weights**: those of recipe {recipe}, after {duration}.\n"


def _rates(record: Record) -> str:
    metric = record["metric"]
    lines = [
        f"On data sampled {float(dt_scale):g} times as slowly (`dt_scale={float(dt_scale):g}`), without retraining: "
        f"{metric_text(metric, metrics[metric])}.\n"
        for dt_scale, metrics in record.get("rates", {}).items()
    ]
    return "".join([*lines, "\n"]) if lines else ""


def _units(inputs: Mapping[str, Any]) -> str:
    if inputs["info"]["d_input"] is None:
        return "tokens"
    return "scaled as inputs.json says" if inputs["prepare"] else "prepared as the dataset does"


def _use(name: str, inputs: Mapping[str, Any], two_ways: bool) -> str:
    if inputs["prepare"] is None:
        return (
            f"`statespan generate {name}` samples from it."
            if inputs["info"]["task"] == "density"
            else "predictions need its dataset."
        )
    text = f"`statespan predict --model {name} FILES` predicts for series in the data's own units."
    return text if two_ways else f"{text} `statespan stream {name}` predicts as samples arrive."


def _limit(info: Mapping[str, Any]) -> str:
    if info["task"] in ("classification", "retrieval"):
        return f"it assigns any input to one of its {info['d_output']} classes."
    if info["task"] == "regression":
        return "on signals unlike these, its predictions are meaningless. It is not a medical device."
    return "what it generates resembles it."
