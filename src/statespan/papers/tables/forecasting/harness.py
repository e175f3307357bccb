"""Trains a model in a setting: the same windows and budget for all models; the best in validation is tested."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from statespan import data as datasets
from statespan.data.base import Dataset, Windows
from statespan.data.calendar import mark_names
from statespan.estimators.fitting import fit_network, train_config
from statespan.estimators.inputs.windows import PERIODS, thinned
from statespan.papers.baselines.forecasters import LSTM, DLinear, MeanForecaster, NLinear, S4Baseline, SeasonalNaive
from statespan.papers.baselines.informer import Informer
from statespan.papers.tables.forecasting.settings import SEASONS, Setting
from statespan.train.device import OneProcess
from statespan.train.feed import Feed
from statespan.train.loop import Splits
from statespan.train.metrics import measure
from statespan.train.order import derive
from statespan.train.tasks import TASKS, Objective

VALIDATION_WINDOWS = 2000  # of the validation part, at most; the test uses all of its windows
TEST_BATCH = 256  # windows tested together


@dataclass(frozen=True)
class Budget:
    """The training budget of each model.

    Example:
        >>> Budget(steps=100).batch
        64
    """

    steps: int = 1000  # updates; of each variant, if a model has several
    batch: int = 64  # windows per update
    looks: int = 10  # number of validations; the best weights are kept
    every: int = 1  # test every n-th window only; 1 for the figures of a table


@dataclass(frozen=True)
class S4Variant:
    """A configuration of S4.

    Example:
        >>> S4Variant(context=96, calendar=True).d_model
        64
    """

    centre: str = "last"  # what windows are relative to
    calendar: bool = False  # read the calendar features whose period the training part covers twice
    context: int = 336  # rows that are read
    d_model: int = 64
    d_state: int = 32
    n_layers: int = 2
    dropout: float = 0.1  # probability of dropping a feature
    lr: float = 0.004
    weight_decay: float = 0.01


class Candidate(NamedTuple):
    """A candidate for testing: a model, its data and its origin.

    Example:
        >>> candidate = Candidate(nn.Linear(1, 1), dataset=None, facts={"context": 96})
        >>> candidate.facts["context"]
        96
    """

    model: nn.Module
    dataset: Dataset
    facts: dict[str, Any]


S4_VARIANTS = (S4Variant(), S4Variant(calendar=True), S4Variant(centre="none", calendar=True))
CONTEXT = 336  # of everything else
SEED = 0


def load(setting: Setting, context: int, folder: Path | None) -> Dataset:
    """The windows of a setting, with Informer's borders."""
    options: dict[str, Any] = {"features": setting.features, "context": context, "horizon": setting.horizon}
    return datasets.load(setting.dataset, folder=folder, **options)


def build(name: str, setting: Setting, dataset: Dataset, variant: S4Variant) -> tuple[nn.Module, float, float]:
    """A model with its learning rate and weight decay."""
    info, horizon = dataset.info, setting.horizon
    context = info.length - horizon
    width: dict[str, Any] = {"d_input": info.d_input, "d_output": info.d_output, "d_marks": info.d_marks}
    if name == "SeasonalNaive":
        return SeasonalNaive(context, horizon, SEASONS[setting.dataset]), 0.0, 0.0
    if name in ("NLinear", "DLinear"):
        return (NLinear if name == "NLinear" else DLinear)(context, horizon), 0.004, 0.0
    if name == "LSTM":
        return LSTM(context, horizon, **width), 0.002, 0.01
    if name == "Informer":
        return Informer(context, horizon, **width), 0.0005, 0.0
    assert name == "S4"
    options = {
        "d_model": variant.d_model, "d_state": variant.d_state, "n_layers": variant.n_layers, "layer": "s4d",
        "ssm": {"init": "legs", "dt_min": 0.001, "dt_max": 0.1}, "mix": "linear", "dropout": variant.dropout,
    }  # fmt: skip
    marks = _rhythms(dataset) if variant.calendar else 0
    model = S4Baseline(context, horizon, columns=info.d_output, d_marks=marks, centre=variant.centre, options=options)
    return model, variant.lr, variant.weight_decay


def _rhythms(dataset: Dataset) -> int:
    """The number of calendar features, ordered by period, whose period the training part covers twice."""
    assert dataset.info.sampling_rate is not None
    seconds = len(dataset.train.arrays["values"]) / dataset.info.sampling_rate
    names = mark_names(round(1 / dataset.info.sampling_rate))
    return sum(seconds >= 1.9 * PERIODS[name] for name in names)


def run(
    name: str, setting: Setting, budget: Budget, device: torch.device, *, folder: Path | None = None
) -> dict[str, Any]:
    """Train and test a model in a setting; for S4, the variant or the mean of all variants that validates best.

    The variant that validates best need not be best after a distribution shift; the mean is a candidate like the rest,
    and the same windows decide.
    """
    began = time.perf_counter()
    candidates = []
    for variant in S4_VARIANTS if name == "S4" else (S4Variant(context=CONTEXT),):
        dataset = load(setting, variant.context, folder)
        valid_mse, model, steps = _fit(name, setting, dataset, variant, budget=budget, device=device)
        facts = {"valid_mse": valid_mse, "steps": steps, **({"variant": asdict(variant)} if name == "S4" else {})}
        candidates.append(Candidate(model, dataset, facts))
    if len(candidates) > 1:
        candidates.append(_combined(candidates, setting, device))
    model, dataset, facts = min(candidates, key=lambda candidate: candidate.facts["valid_mse"])
    errors = _measure(model, thinned(dataset.test, every=budget.every), device)
    return {
        "model": name, "dataset": setting.dataset, "features": setting.features, "horizon": setting.horizon,
        "mse": errors["mse"], "mae": errors["mae"], **facts,
        "tried": [candidate.facts for candidate in candidates] if name == "S4" else [],
        "context": dataset.info.length - setting.horizon,
        "windows": len(thinned(dataset.test, every=budget.every)), "seed": SEED, "budget": asdict(budget),
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(time.perf_counter() - began, 2),
    }  # fmt: skip


def _combined(candidates: list[Candidate], setting: Setting, device: torch.device) -> Candidate:
    """The mean of all forecasts, on the data of the longest context, whose targets are the same."""
    dataset = max((candidate.dataset for candidate in candidates), key=lambda data: data.info.length)
    contexts = [candidate.dataset.info.length - setting.horizon for candidate in candidates]
    model = MeanForecaster([candidate.model for candidate in candidates], contexts, setting.horizon)
    valid_mse = _measure(model, thinned(dataset.valid, VALIDATION_WINDOWS), device)["mse"]
    steps = sum(candidate.facts["steps"] for candidate in candidates)
    return Candidate(model, dataset, {"valid_mse": valid_mse, "steps": steps, "combined": len(candidates)})


def _fit(
    name: str, setting: Setting, dataset: Dataset, variant: S4Variant, *, budget: Budget, device: torch.device
) -> tuple[float, nn.Module, int]:
    """Fit a model; returns the validation error, the model and the number of updates."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(SEED, name, setting.name))
        model, lr, decay = build(name, setting, dataset, variant)
    model = model.to(device)
    valid = thinned(dataset.valid, VALIDATION_WINDOWS)
    if name == "SeasonalNaive":
        return _measure(model, valid, device)["mse"], model.eval(), 0
    assert isinstance(dataset.train, Windows)
    config = train_config(
        len(dataset.train), batch=budget.batch, steps=budget.steps, validations=budget.looks, lr=lr,
        weight_decay=decay, compile="none" if name == "LSTM" else "auto", seed=SEED,
    )  # fmt: skip
    history = fit_network(model, Splits(dataset.train, valid), config, task=TASKS["forecast"], device=device)
    assert history.best is not None
    return history.best, model, history.steps


def _measure(model: nn.Module, split: Windows, device: torch.device) -> dict[str, float]:
    task = TASKS["forecast"]
    return measure(OneProcess(device), Objective(model, task), task, Feed(split, device), batch=TEST_BATCH)
