"""``statespan forecast``: the command.

Shapes: T rows, C columns, H horizon, Q quantiles.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from statespan._fail import fail
from statespan._suggest import suggest
from statespan._text import cell, printable
from statespan.cli import common

HELP = """Forecast a time series of your own.

FILE is a CSV file with a header, a column of times and columns of numbers. A model is trained on it (minutes on a CPU)
and forecasts the rows that follow. Writes a CSV file, and a plot with the interval between the outer quantiles.

\b
Examples:
  statespan forecast data.csv --time date --target OT --horizon 96
  statespan forecast data.csv --target sales,visits --horizon 30 --quantiles 0.05,0.5,0.95
  statespan forecast data.csv --horizon 24 --save model         save the model in a folder
  statespan forecast new.csv --model model                      newer rows, without training
"""
SEASONS = {60: 60, 3600: 24, 900: 96, 1800: 48, 86400: 7}  # rows of an hour, a day or a week by the step in seconds


def forecast(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV file.", show_default=False)],
    *,
    time: Annotated[str | None, typer.Option(help="Column of the times. [default: the first]")] = None,
    target: Annotated[
        str | None, typer.Option(help="Column to forecast, or several, comma-separated. [default: the last]")
    ] = None,
    horizon: Annotated[int | None, typer.Option(help="Rows to forecast. [default: 24]")] = None,
    context: Annotated[int | None, typer.Option(help="Rows to forecast from. [default: chosen from the data]")] = None,
    quantiles: Annotated[str, typer.Option(help="Quantiles, comma-separated.")] = "0.1,0.5,0.9",
    missing: Annotated[str, typer.Option(help="error, or mask to train with missing values.")] = "error",
    time_format: Annotated[
        str | None, typer.Option(help="Format of the times, such as %d.%m.%Y. [default: ISO 8601 or month/day/year]")
    ] = None,
    out: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("forecast.csv"),
    picture: Annotated[Path | None, typer.Option(help="PNG file to write. [default: beside the forecast]")] = None,
    save: Annotated[Path | None, typer.Option(help="Folder to save the model in.")] = None,
    model: Annotated[Path | None, typer.Option(help="Folder of a saved model to use, without training.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training updates. [default: chosen from the data]")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    device: common.Device = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="CPU threads. [default: one for a small model, else torch's choice]", show_default=False
        ),
    ] = None,
) -> None:
    """Forecast; :data:`HELP` is the text for users."""
    common.need("forecast", "lightning", "safetensors", "yaml", "sklearn", "pandas")
    picture = out.with_suffix(".png") if picture is None else picture
    common.check_output("--out", out, ".csv")
    common.check_output("--picture", picture, ".png")
    if out.resolve() == file.resolve():
        fail(f"--out must not be the file to read, got {out}")
    if model is not None and (context is not None or steps is not None or save is not None):
        fail("--model uses a model without training: remove --context, --steps and --save")
    if model is not None and not (model / "config.json").is_file():
        fail(f"--model must be the folder of a forecaster that --save wrote, got {model}")
    with common.explained():
        with common.rejected():
            frame = _read(file, time=time, target=target, time_format=time_format, missing=missing)
            if model is None:
                options = {"context": context, "quantiles": _numbers(quantiles), "steps": steps, "missing": missing}
                options |= {"random_state": seed, "device": device, "threads": threads}
                estimator = _fit(frame, 24 if horizon is None else horizon, options)
                if save is not None:
                    estimator.save(save)
            else:
                from statespan.estimators import S4Forecaster

                estimator = S4Forecaster.load(model, device=device).set_params(threads=threads)
            mean = estimator.predict(frame, horizon=horizon)
            bands = estimator.predict_quantiles(frame, horizon=horizon) if estimator.quantiles else None
        _write(out, mean, bands)
        drawn = _draw(picture, frame, mean, bands)
    common.say(f"{len(mean)} rows from {mean.index[0]} to {mean.index[-1]}")
    common.say(f"forecast  {out}" + (f"\npicture   {picture}" if drawn else ""))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError:
        fail(f"--quantiles must be numbers between 0 and 1 with commas, got {text!r}")


def _read(file: Path, *, time: str | None, target: str | None, time_format: str | None, missing: str) -> Any:
    import pandas as pd

    from statespan.data.formats.csv import MissingValueError, read_table

    if not file.is_file():
        fail(f"FILE must be an existing CSV file, got {file}")
    try:
        table = read_table(file, time, time_format, missing=missing == "mask")
    except MissingValueError as error:
        fail(f"{error}; --missing mask learns from series with missing values")
    except ValueError as error:
        fail(str(error).replace("time_format", "--time-format"))
    wanted = [table.columns[-1]] if target is None else [name.strip() for name in target.split(",")]
    for name in wanted:
        if name not in table.columns:
            hint = suggest(name, table.columns)
            fail(f"--target must be a column of {file}, got {name!r}{hint}; its columns are {', '.join(table.columns)}")
    values = table.values[:, [table.columns.index(name) for name in wanted]]
    return pd.DataFrame(values, index=pd.DatetimeIndex(table.times, name=time or "time"), columns=wanted)


def _fit(frame: Any, horizon: int, options: dict[str, Any]) -> Any:
    """Train, and print the error on the held-out rows."""
    from statespan.estimators import S4Forecaster

    estimator = S4Forecaster(horizon, **options).fit(frame)
    context = estimator.chosen_["context"]
    held_out = int(len(frame) * estimator.validation_fraction)
    if estimator.history_.valid:  # otherwise nothing was held out
        tail = frame.iloc[len(frame) - held_out - context :]
        error = estimator.evaluate(tail)["mae"]
        naive, season = _naive_error(tail, estimator, context, horizon)
        repeated = "the last row" if season == 1 else f"the last {season} rows"
        common.say(
            f"on the last {held_out} rows, which were held out: mean absolute error {error:.3f} standard deviations "
            f"({naive:.3f} for repeating {repeated})"
        )
    return estimator


def _naive_error(tail: Any, estimator: Any, context: int, horizon: int) -> tuple[float, int]:
    """The error of repeating the last season over the same windows, in the same units."""
    import numpy as np

    season = SEASONS.get(estimator.form_.step or 0, 12 if estimator.form_.unit == "M" else 1)
    season = season if season <= context else 1
    values, repeated = ((part.to_numpy() - estimator.mean_) / estimator.std_ for part in (tail, tail.ffill().bfill()))
    errors = []
    for ahead in range(horizon):
        back = season * (ahead // season + 1)
        answers = values[context + ahead : len(values) - horizon + 1 + ahead]
        errors.append(np.abs(answers - repeated[context + ahead - back : len(values) - horizon + 1 + ahead - back]))
    return float(np.nanmean(np.concatenate(errors))), season


def _write(out: Path, mean: Any, bands: Any) -> None:
    import pandas as pd

    from statespan._io import replace_file

    header, columns = [], []
    for name in mean.columns:
        levels = [] if bands is None else list(bands[name].columns)
        header += [cell(name), *(cell(f"{name}_q{level:g}") for level in levels)]
        columns += [mean[name], *(bands[name, level] for level in levels)]
    table = pd.concat(columns, axis=1).set_axis(mean.index.map(str).rename(cell(mean.index.name)))
    replace_file(out, table.to_csv(header=header, float_format="%.6g", na_rep="nan", lineterminator="\n").encode())


def _draw(path: Path, frame: Any, mean: Any, bands: Any) -> bool:
    """Plot the end of the series, the forecast and the interval; False without matplotlib."""
    if find_spec("matplotlib") is None:
        return False
    from statespan import _plotting
    from statespan._io import replace_file

    shown = list(mean.columns)[:6]
    past = frame.iloc[-3 * len(mean) :]
    figure = _plotting.figure(9, 1 + 2.4 * len(shown))
    for axes, name in zip(figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0], shown):
        axes.plot(past.index, past[name], color="black", linewidth=1, label="past")
        if bands is not None and bands[name].shape[1] > 1:
            levels = list(bands[name].columns)
            label = f"{levels[0]:g} to {levels[-1]:g} quantile"
            lower, upper = bands[name, levels[0]].to_numpy(), bands[name, levels[-1]].to_numpy()
            axes.fill_between(mean.index, lower, upper, alpha=0.25, color=_plotting.COLORS[0], linewidth=0, label=label)
        axes.plot(mean.index, mean[name], color=_plotting.COLORS[0], label="forecast")
        _plotting.tidy(axes, "", printable(str(name)), legend=axes is figure.axes[0])
    figure.autofmt_xdate()
    replace_file(path, _plotting.content(figure))
    return True
