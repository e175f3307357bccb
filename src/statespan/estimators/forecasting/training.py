"""How a forecaster learns: rows are divided in time, the linear path is solved, S4 corrects it, held-back rows judge.

Shapes: N windows, T context, H horizon, C columns, F features of the linear path.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from statespan.data.base import Windows
from statespan.estimators.forecasting.blend import Blend, choose_naive, gain_weights, known_mean
from statespan.estimators.forecasting.intervals import Errors, measured_scales, to_array
from statespan.estimators.forecasting.linear import MOST, ridge
from statespan.estimators.forecasting.naive import NAIVES, naive_forecasts
from statespan.estimators.horizon import FLOOR, Horizon
from statespan.estimators.inputs.series import Array
from statespan.estimators.inputs.windows import PreparedSeries, make_windows, thinned
from statespan.train.feed import Feed
from statespan.train.tasks import Task

BATCH = 256  # windows forecast together
VALID_WINDOWS = 512  # to validate with and to hold back, evenly spread each
SURVEY_WINDOWS = 1200  # of all rows, to choose the best simple forecast and for intervals
SEASONS = 2 * 3 * 5 * 7  # the factors of usual seasons
CHANCE = 1.1  # ratio of errors up to which a difference may be chance
MOST_OPTIMISM = 5.0


class Borders(NamedTuple):
    """Where the rows to learn from end in each series, and those for early stopping; the others are held back.

    Example:
        >>> Borders(learn=[800], valid=[900]).valid
        [900]
    """

    learn: list[int]
    valid: list[int]


def divide(lengths: list[int], valid: float, held: float, *, context: int, horizon: int) -> Borders:
    """Divide series in time: shares of the rows for early stopping and to hold back.

    At least twice the horizon is held back, where enough rows are left to learn from.

    Example:
        >>> divide([1000, 100], 0.1, 0.1, context=20, horizon=10)
        Borders(learn=[800, 70], valid=[900, 80])
    """
    learn, until = [], []
    for rows in lengths:
        validating = int(rows * valid)
        spare = rows - validating - context - 4 * horizon
        holding = max(int(rows * held), min(2 * horizon, spare)) if held else 0
        until.append(rows - holding)
        learn.append(rows - holding - validating)
    return Borders(learn, until)


@dataclass(frozen=True)
class Portions:
    """The windows to learn from, to stop early with, to judge with, and evenly spread ones of all rows.

    Those that judge are the windows of early stopping and then, in number ``held``, those of rows held back. Of the
    windows of all rows ``learnt`` says which the model has learnt from.

    Example:
        >>> series = PreparedSeries(np.zeros((100, 1), np.float32), None, None)
        >>> portions = Portions.of([series], Borders([60], [80]), context=8, horizon=2)
        >>> len(portions.learn), portions.held
        (51, 19)
    """

    learn: Windows
    valid: Windows | None
    judges: Windows | None
    held: int
    everything: Windows
    learnt: Array
    blocks: int  # stretches as long as the horizon in the rows that judge

    @classmethod
    def of(
        cls, parts: list[PreparedSeries], ends: Borders, *, context: int, horizon: int, past: int = 0
    ) -> Portions | None:
        """The portions of prepared series; None if there is no window to learn from."""
        lengths = [len(part.values) for part in parts]
        spans = [[(0, end) for end in ends.learn], list(zip(ends.learn, ends.valid)), list(zip(ends.valid, lengths))]
        spans += [[(0, length) for length in lengths]]
        learn, valid, held, everything = (make_windows(parts, span, context, horizon, past=past) for span in spans)
        if learn is None:
            return None
        assert everything is not None
        everything = spread(everything, SURVEY_WINDOWS)
        learnt = np.isin(everything.arrays["starts"], learn.arrays["starts"])
        valid, held = (None if part is None else spread(part, VALID_WINDOWS) for part in (valid, held))
        judges = [part for part in (valid, held) if part is not None]
        rows = sum(length - end for length, end in zip(lengths, ends.learn))
        last = 0 if not judges else len(judges[-1])
        return cls(learn, valid, _joined(judges), last, everything, learnt, max(2, rows // horizon))


def spread(windows: Windows, most: int) -> Windows:
    """About ``most`` of the windows, evenly spread over time and over the phases of all usual seasons."""
    every = -(-len(windows) // most)
    while every > 1 and math.gcd(every, SEASONS) > 1:
        every += 1
    return thinned(windows, every=max(1, every))


def some(windows: Windows, first: int, end: int) -> Windows:
    """The windows from the first to the end."""
    part = thinned(windows)
    part.arrays["starts"] = windows.arrays["starts"][first:end]
    return part


def _joined(parts: list[Windows]) -> Windows | None:
    """The windows of several splits of the same rows."""
    if not parts:
        return None
    one = thinned(parts[0])
    one.arrays["starts"] = np.concatenate([part.arrays["starts"] for part in parts])
    return one


def set_linear_path(network: Horizon, portions: Portions) -> None:
    """Solve the linear path of a network."""
    columns = network.config.columns
    learn = spread(portions.learn, max(1, MOST // columns))
    x, y = _linear_rows(network, learn, fill=True)
    if portions.valid is not None:
        valid = _linear_rows(network, portions.valid, fill=False)
    else:  # the last windows to learn from choose the penalty
        cut = max(1, len(x) * 4 // 5)
        valid = x[cut:], y[cut:]
        if not len(valid[0]):
            return
        x, y = x[:cut], y[:cut]
    network.straight.copy_(ridge(x, y, *valid))


def _linear_rows(network: Horizon, windows: Windows, *, fill: bool) -> tuple[Tensor, Tensor]:
    """Features (N · C, F) and targets (N · C, H) of the linear path; with ``fill`` missing targets repeat the last."""
    context, columns = network.config.context, network.config.columns
    features, targets = [], []
    feed = Feed(windows, torch.device("cpu"))
    for batch in feed.batches(torch.arange(len(windows)).split(BATCH)):
        known = batch.x[:, :context]
        inputs, scale = network.linear_inputs(known, batch.marks)
        carried = batch.x[:, context:, :columns] if fill else batch.y
        centre = network._centre(known)
        features.append(inputs.flatten(0, 1).cpu())
        targets.append(((carried - centre) / scale).mT.flatten(0, 1).cpu())
    return torch.cat(features), torch.cat(targets)


class Answers(NamedTuple):
    """Of windows: the truth (N, H, C), the forecast by part, and the measured scales.

    Example:
        >>> zeros = np.zeros((5, 2, 1))
        >>> found = Answers(zeros, {"last value": zeros}, zeros, zeros, {})
        >>> found.of(Blend.whole(2)).shape
        (5, 2, 1)
    """

    truth: Array
    naive: dict[str, Array]
    base: Array
    added: Array  # (N, H, C), what the S4 gives
    scales: dict[str, Array]

    def of(self, blend: Blend) -> Array:
        """The forecast (N, H, C) with these weights."""
        table = np.stack([self.naive.get(name, self.naive["last value"]) for name in NAIVES])
        naive = table[np.array(blend.choice), :, np.arange(len(blend.choice))].transpose(1, 0, 2)
        correction, model = (np.array(part)[:, None] for part in (blend.correction, blend.model))
        return np.asarray(naive + model * (self.base + correction * self.added - naive))


def answers(network: Horizon, windows: Windows, season: int) -> Answers:
    """What a network and the simple forecasts answer to windows."""
    config, device = network.config, next(network.parameters()).device
    rows: list[tuple[Any, ...]] = []
    with torch.inference_mode():
        for batch in Feed(windows, device).batches(torch.arange(len(windows)).split(BATCH)):
            known = batch.x[:, : config.context]
            values = known[..., : config.columns]
            added = network.correction(known, config.horizon, batch.marks)
            base = network.base(known, config.horizon, batch.marks)
            naive = naive_forecasts(values, config.horizon, season)
            rows.append((batch.y, naive, base, added[..., 0], measured_scales(values, added)))
    table = [np.concatenate([to_array(row[number]) for row in rows]) for number in (0, 2, 3)]
    named = [
        {name: np.concatenate([to_array(row[number][name]) for row in rows]) for name in rows[0][number]}
        for number in (1, 4)
    ]
    return Answers(table[0], named[0], table[1], table[2], named[1])


def judge(network: Horizon, portions: Portions, season: int) -> tuple[Blend, Errors, Answers | None]:
    """The weights of the parts of a forecast, its errors, and the answers to the windows that judge."""
    horizon = network.config.horizon
    overall = answers(network, portions.everything, season)
    blocks = max(2, int(portions.blocks / max(1e-9, 1 - portions.learnt.mean()))) if portions.judges else 2
    overall_unit = unit_of(network, overall)
    simple = {name: values / overall_unit for name, values in overall.naive.items()}
    choice = choose_naive(overall.truth / overall_unit, simple, blocks)
    blend = replace(Blend.whole(horizon), season=season, choice=choice)
    found = None
    if portions.judges is not None:
        found = answers(network, portions.judges, season)
        unit = unit_of(network, found)
        share = gain_weights((found.truth - found.base) / unit, found.added / unit, portions.blocks, portions.held)
        blend = replace(blend, correction=tuple(share.tolist()))
        naive = found.of(replace(blend, model=(0.0,) * horizon))
        error, change = (found.truth - naive) / unit, (found.of(blend) - naive) / unit
        trust = gain_weights(error, change, portions.blocks, portions.held)
        blend = replace(blend, model=tuple(trust.tolist()))
    is_corrected = any(share * trust for share, trust in zip(blend.correction, blend.model))
    scales = {name: scale for name, scale in overall.scales.items() if is_corrected or name != "spread"}
    error = overall.truth - overall.of(blend)
    error[portions.learnt] *= optimism(overall, error, portions.learnt)
    return blend, Errors.of(error, scales).kept(), found


def unit_of(network: Horizon, found: Answers) -> Array:
    """What errors are compared in: of series of different size their deviation, so that large ones do not decide."""
    if not network.config.scaled:
        return np.ones(1)
    deviation = found.scales["deviation"]
    return np.asarray(deviation + 0.01 * max(float(np.median(deviation)), FLOOR))


def optimism(found: Answers, error: Array, learnt: Array) -> float:
    """By how much errors on windows that were learnt from must grow to be those of other windows; at least 1.

    The simple forecast shows how much of the difference is that of the windows themselves.
    """
    if learnt.all() or not learnt.any():
        return 1.0
    simple = found.truth - found.naive["last value"]
    kept, new = (
        np.nansum(error[part] ** 2) / max(np.nansum(simple[part] ** 2), np.finfo(float).tiny)
        for part in (learnt, ~learnt)
    )
    ratio = float(np.sqrt(new / kept)) if kept > 0 else 1.0
    return min(max(1.0, ratio / CHANCE), MOST_OPTIMISM)


def seconds_of(network: Horizon, portions: Portions, task: Task, *, batch: int, steps: int) -> float:
    """About how long training takes, from two updates that change nothing."""
    feed = Feed(portions.learn, next(network.parameters()).device)
    index = torch.arange(min(batch, len(portions.learn)))
    seconds = 0.0
    with torch.random.fork_rng(devices=[]):
        for _ in range(2):  # the first one compiles and allocates
            begun = time.perf_counter()
            for one in feed.batches([index]):
                task.loss(network, one).backward()
            seconds = time.perf_counter() - begun
    network.zero_grad(set_to_none=True)
    return 1.2 * steps * seconds  # with validations


def in_words(seconds: float) -> str:
    """A time for people.

    Example:
        >>> in_words(0.2), in_words(47.0), in_words(400.0)
        ('a second', '50 s', '7 min')
    """
    if seconds < 1.5:
        return "a second"
    return f"{max(2, round(seconds, -1 if seconds > 10 else 0)):.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def simple_forecasts(
    parts: list[PreparedSeries], windows: Windows, *, context: int, horizon: int, season: int
) -> tuple[Array, dict[str, Array]]:
    """The truth and the simple forecasts of windows (N, H, C), of values from which no effect was taken off."""
    table = np.concatenate([_whole(part) for part in parts])
    starts = windows.arrays["starts"][:, None]
    known = torch.from_numpy(table[starts + np.arange(context)])
    truth = table[starts + np.arange(context, context + horizon)]
    if parts[0].known is not None:
        flags = np.concatenate([part.known for part in parts if part.known is not None])
        truth = np.where(flags[starts + np.arange(context, context + horizon)], truth, np.nan)
    return truth, {name: to_array(part) for name, part in naive_forecasts(known, horizon, season).items()}


def _whole(part: PreparedSeries) -> Array:
    return part.values if part.effect is None else part.values + part.effect[: len(part.values)]


def mean_absolute(truth: Array, forecast: Array, unit: Array) -> float:
    """The mean absolute error of (N, H, C) in units (C,) of the data."""
    return float(known_mean((np.abs(truth - forecast) * unit).reshape(-1), 0))
