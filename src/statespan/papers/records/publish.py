"""Publishes finished runs, all or nothing: records to ``results/tasks``, small weights to ``models``."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statespan import _io as fsio
from statespan.data import inputs as kept
from statespan.data.base import Dataset
from statespan.data.registry import entry
from statespan.models import from_pretrained
from statespan.models.find import INPUTS, RECIPE, RECORD
from statespan.models.pretrained import CONFIG
from statespan.papers.records import schema
from statespan.papers.records.card import write_card
from statespan.papers.records.record import make_record, model_name, stem
from statespan.papers.records.schema import PublishError
from statespan.train.config import read_recipe, write_recipe
from statespan.train.result import FIRST
from statespan.train.run import evaluate, load_data, without_others

LARGEST = 4_000_000
CHECKED = (32, FIRST)
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclass
class Publication:
    """The files to write by path, the model folders by name, and the messages about them.

    Example:
        >>> publication = Publication()
        >>> publication.files[Path("results/tasks/smnist.json")] = b"{}"
        >>> len(publication.files), publication.models
        (1, {})
    """

    files: dict[Path, bytes] = field(default_factory=dict)
    models: dict[Path, dict[str, bytes]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


def publish(
    runs: Sequence[Path],
    *,
    name: str | None = None,
    results: Path = Path("results"),
    models: Path = Path("models"),
    replace: bool = False,
    commit: str | None = None,
    data: Dataset | Path | None = None,
) -> list[str]:
    """Publish finished runs: all records, and for each recipe the weights of the run that validated best.

    Records go to ``results/tasks``, and weights to ``models`` by the ``name`` for a single recipe, or the recipe's.
    With ``replace`` they take the place of what is published under the same recipe and seed, or the same name.
    ``commit`` is the one that made the runs, where they do not say it. Returns what was done, in lines.

    Raises:
        PublishError: A run is not finished, or something is published already; nothing was written.
    """
    if name is not None and not NAME.fullmatch(name):
        raise PublishError(f"the name must consist of lower-case letters, digits, dots and hyphens, got {name!r}")
    records = {run: make_record(run, commit) for run in runs}
    if len({stem(record) for record in records.values()}) != len(records):
        raise PublishError("the runs must differ in recipe or seed, but two of them do not")
    families: dict[str, list[Path]] = {}
    for run, record in records.items():
        families.setdefault(model_name(record), []).append(run)
    if name is not None and len(families) != 1:
        raise PublishError(f"one name cannot serve {len(families)} recipes: {', '.join(families)}")
    plan = Publication()
    for family, members in families.items():
        best = _best(members, records)
        _plan_model(plan, best, records[best], models / (name or family), replace=replace, data=data)
    for record in records.values():
        path = results / "tasks" / f"{stem(record)}.json"
        content = schema.dumps(record)
        if path.is_file() and path.read_bytes() != content and not replace:
            raise PublishError(f"{path} already exists, from another run; --replace overwrites it")
        plan.files[path] = content
        plan.messages.insert(0, f"record   {path}")
        if record["versions"]["commit"].endswith("+changes"):
            plan.messages.append(f"note     {stem(record)} was made with changes that are in no commit")
    _write(plan)
    return plan.messages


def fingerprint(dataset: Dataset) -> list[float]:
    """The mean magnitude of the inputs and mean of the targets of the first test rows, to identify the data.

    A dataset that is generated where its files are not has the same name and other rows.
    """
    rows = dataset.test.batch(list(range(min(CHECKED[0], len(dataset.test)))))
    return [float(rows.x.double().abs().mean()), float(rows.y.double().mean())]


def _best(members: list[Path], records: dict[Path, dict[str, Any]]) -> Path:
    """The run with the best validation; test scores play no role."""
    metric = records[members[0]]["metric"]
    choose = max if metric == "accuracy" else min
    return choose(members, key=lambda run: records[run]["valid"].get(metric, 0.0))


def _plan_model(
    plan: Publication, run: Path, record: dict[str, Any], target: Path, *, replace: bool, data: Dataset | Path | None
) -> None:
    """Add the weights of a run, and their results on a CPU to its record."""
    source = run / "model"
    if not (source / CONFIG).is_file():
        plan.messages.append(f"no model of {run}: there is no {source}")
        return
    weights = json.loads((source / CONFIG).read_text(encoding="utf-8"))["weights"]
    if weights["bytes"] > LARGEST:
        text = f"its weights have {weights['bytes'] / 1e6:.1f} MB, and up to {LARGEST / 1e6:g} MB are published"
        plan.messages.append(f"no model of {run}: {text}")
        return
    if (target / RECORD).is_file() and not replace:
        published = schema.read(target / RECORD)
        unchecked = {"check": None, "rates": None}
        if {**published, **unchecked} != json.loads(schema.dumps({**record, **unchecked})):
            if stem(published) == stem(record):
                raise PublishError(f"{target} already exists, from another run; --replace overwrites it")
            owner = stem(published)
            plan.messages.append(f"no model of {run}: {target} is that of {owner}; --replace puts the new one there")
            return
    model = from_pretrained(source)
    if any(tensor.is_floating_point() and tensor.element_size() != 4 for tensor in model.state_dict().values()):
        raise PublishError(f"{source} must have 32-bit weights")
    recipe = read_recipe(record["recipe"])
    dataset = load_data(read_recipe(recipe, without_others(recipe, "test")), data)
    single = read_recipe(recipe, ["train.precision=fp32", "train.strategy=auto"])

    def measure(overrides: Sequence[str] = (), dt_scale: float = 1.0, rows: int | None = None) -> dict[str, float]:
        chosen = dataset if not overrides else (None if isinstance(data, Dataset) else data)
        return evaluate(
            single, "test", dt_scale, overrides=overrides, data=chosen, model=model, device="cpu", rows=rows
        )  # fmt: skip

    record["check"] = {
        "device": "cpu", "precision": "fp32", "data": fingerprint(dataset),
        "rows": {str(rows): measure(rows=rows) for rows in CHECKED},
    }  # fmt: skip
    _check_weights(run, record)
    sampled = dataset.info.sampling_rate is not None and recipe.data.get("features", "raw") == "raw"
    if sampled and "subsample" in entry(recipe.data["name"]).options and "subsample" not in recipe.data:
        record["rates"] = {"2": measure(["data.subsample=2"], 2.0)}
    about = kept.to_json(dataset)
    file = f"results/tasks/{stem(record)}.json"
    contents = {path.name: path.read_bytes() for path in (source / CONFIG, source / weights["file"])}
    contents |= {
        RECIPE: write_recipe(recipe).encode(),
        RECORD: schema.dumps(record),
        INPUTS: schema.dumps(about),
        "README.md": write_card(target.name, record, about, file=file, size=weights["bytes"]).encode(),
    }
    plan.models[target] = contents
    plan.messages.append(f"model    {target}  {weights['bytes'] / 1e6:.2f} MB")


def slack(metric: str, number: float) -> float:
    """The tolerance for 16-bit arithmetic on the first rows, where predictions near the boundary may flip.

    A model that is wrong more often has more of those.

    Example:
        >>> round(slack("accuracy", 0.99), 4), round(slack("accuracy", 0.86), 4), round(slack("rmse", 0.4), 4)
        (0.0115, 0.031, 0.02)
    """
    return 0.01 + 0.15 * (1 - number) if metric == "accuracy" else 0.05 * abs(number)


def _check_weights(run: Path, record: dict[str, Any]) -> None:
    """Reject weights other than the tested ones."""
    first, metric = record["first"], record["metric"]
    measured = record["check"]["rows"][str(FIRST)]
    if not first or first.get("rows") != FIRST or metric not in first:
        return  # a run from before this was noted
    if abs(measured[metric] - first[metric]) > slack(metric, first[metric]):
        raise PublishError(
            f"{run}/model is not what was tested: {metric} of the first {FIRST} rows is {measured[metric]:.4g}, "
            f"and was {first[metric]:.4g}"
        )


def _write(plan: Publication) -> None:
    """Write everything under temporary names, then rename, when a full disk can no longer interfere."""
    with contextlib.ExitStack() as stack:
        moves: list[tuple[Path, Path]] = []
        for target, contents in plan.models.items():
            draft = _draft(target, stack)
            fsio.make_folder(draft)
            for file, content in contents.items():
                fsio.write_new(draft / file, [content])
            fsio.sync_folder(draft)
            moves.append((draft, target))
        for path, content in plan.files.items():
            draft = _draft(path, stack)
            fsio.write_new(draft, [content])
            moves.append((draft, path))
        for draft, target in moves:
            if target.is_dir():
                old = _draft(target, stack)
                fsio.rename(target, old)
            fsio.rename(draft, target)
            fsio.sync_folder(target.parent)


def _draft(target: Path, stack: contextlib.ExitStack) -> Path:
    """A temporary name beside the real one, removed at the end."""
    fsio.make_folder(target.parent)
    draft = target.with_name(f"{fsio.TEMPORARY}{uuid.uuid4().hex}")
    stack.callback(draft.unlink, missing_ok=True)
    stack.callback(shutil.rmtree, draft, ignore_errors=True)  # first, because the last one in is the first one out
    return draft
