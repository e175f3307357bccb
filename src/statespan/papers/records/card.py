"""The model card of published weights: what they are, their training data and their limitations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from statespan._text import metric_text
from statespan.papers.records.schema import Record

SPLITS = {"train": "training", "valid": "validation", "test": "the test"}
LICENCE = "Apache-2.0, as statespan itself. The training data has its owners' terms."


def write_card(name: str, record: Record, inputs: Mapping[str, Any], *, file: str, size: int) -> str:
    """Write the model card as Markdown."""
    from statespan.data.registry import entry

    recipe, info, metric = record["recipe"], inputs["info"], record["metric"]
    data, model = recipe["data"], recipe["model"]
    options = ", ".join(f"{key} {value}" for key, value in data.items() if key != "name")
    weights = "the last ones" if recipe["train"]["test_weights"] == "last" else "those with the best validation"
    two_ways = bool(model.get("bidirectional"))
    lines = [
        f"# {name}",
        "",
        f"A {model['name']} of {str(model.get('layer', 's4')).upper()} layers with {record['parameters']:,} parameters "
        f"({size / 1e6:.2f} MB), trained by statespan's recipe `{recipe['name']}`{_with(record['overrides'])}, seed "
        f"{record['seed']}.",
        "",
        f"- **Task**: {info['task']}; {entry(data['name']).summary}.",
        f"- **Data**: the training part of `{data['name']}`{f' ({options})' if options else ''}; sequences of length "
        f"{info['length']:,}{_counts(record)}.",
        f"- **Test**: {metric_text(metric, record['test'][metric])} (validation: "
        f"{metric_text(metric, record['valid'][metric])}). The weights are {weights}; how the settings were chosen is "
        "said in the recipe.",
        f"- **Made by**: commit `{record['versions']['commit']}`, {record['epochs']:.4g} epochs in "
        f"{record['wall_seconds'] / 60:.3g} min on {record['machine']['device']}, "
        f"torch {record['versions']['torch']}.",
        *_start(record),
        f"- **Record**: every number here is from `{file}` (`record.json` beside this page is the same).",
        "",
        *_rates(record),
        *_usage(name, inputs, two_ways),
        "## Limits",
        "",
        f"- It knows the data above and nothing else: {_limit(info)}",
        *_known_patients(record),
        "- It is one run of one seed; other seeds differ a little.",
        "- It reads whole sequences, both ways; it cannot stream."
        if two_ways
        else "- It is causal: it also runs step by step, with the same answers.",
        "",
        f"Licence: {LICENCE}",
        "",
    ]
    return "\n".join(lines)


def _with(overrides: Sequence[str]) -> str:
    return f" with `{' '.join(overrides)}`" if overrides else ""


def _usage(name: str, inputs: Mapping[str, Any], two_ways: bool) -> list[str]:
    info = inputs["info"]
    tokens = info["d_input"] is None
    shape = f"1, {info['length']}, " + ("dtype=torch.long" if tokens else str(info["d_input"]))
    return [
        "```python",
        "import statespan",
        "import torch",
        "",
        f'model = statespan.load("{name}")',
        f"answer = model(torch.zeros({shape}))  # {_input_words(inputs)}",
        "```",
        "",
        f"`statespan eval {name}` measures it again; " + _predict(name, inputs, two_ways),
        "",
    ]


def _start(record: Record) -> list[str]:
    start = record.get("start")
    if not start:
        return []
    took = f"{start['steps']:,} steps in {start['wall_seconds'] / 60:.3g} min before that"
    recipe = f"`{start['recipe']}`{_with(start['overrides'])}, seed {start['seed']}"
    return [f"- **Begun with**: the weights of recipe {recipe}: {took}."]


def _known_patients(record: Record) -> list[str]:
    if record["recipe"]["data"].get("split") != "windows":
        return []
    return [
        "- Its test windows overlap with those of the training, of the same patients, as in the papers: the error "
        "above says nothing of new patients. Models that were tested on those have errors many times as large "
        "(`docs/results.md`)."
    ]


def _rates(record: Record) -> list[str]:
    metric = record["metric"]
    rows = [
        f"At `dt_scale={float(dt_scale):g}`, with so many times fewer samples a second and no training for it: "
        f"{metric_text(metric, found[metric])}."
        for dt_scale, found in record.get("rates", {}).items()
    ]
    return [*rows, ""] if rows else []


def _counts(record: Record) -> str:
    rows = record.get("rows") or {}
    return "".join(f", {rows[split]:,} for {word}" for split, word in SPLITS.items() if split in rows)


def _input_words(inputs: Mapping[str, Any]) -> str:
    if inputs["info"]["d_input"] is None:
        return "tokens"
    return "scaled as inputs.json says" if inputs["prepare"] else "prepared as the dataset does it"


def _predict(name: str, inputs: Mapping[str, Any], two_ways: bool) -> str:
    if inputs["prepare"] is None:
        return f"`statespan generate {name}` uses it." if inputs["info"]["task"] == "density" else "it needs its data."
    text = f"`statespan predict --model {name} FILES` answers for series in the data's own units."
    return text if two_ways else f"{text} `statespan stream {name}` answers as they come."


def _limit(info: Mapping[str, Any]) -> str:
    if info["task"] in ("classification", "retrieval"):
        return f"whatever it is given, it answers with one of its {info['d_output']} classes."
    if info["task"] == "regression":
        return "for signals unlike these its numbers mean nothing. It is no medical device."
    return "what it makes looks like them."
