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
and forecasts the rows that follow. The last rows are held back to compare it with simple forecasts: it is never much
worse than the best of them. Writes a CSV file, and a plot with the interval between the outer quantiles.

Columns that help are --past, or --future if they are known for the rows to forecast, too: then FILE goes on with rows
whose targets are empty.

\b
Examples:
  statespan forecast data.csv --time date --target OT --horizon 96
  statespan forecast data.csv --target sales,visits --horizon 30 --quantiles 0.05,0.5,0.95
  statespan forecast data.csv --target sales --future price,holiday
  statespan forecast data.csv --horizon 24 --save model         save the model in a folder
  statespan forecast new.csv --model model                      newer rows, without training
"""


def forecast(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV file.", show_default=False)],
    *,
    time: Annotated[str | None, typer.Option(help="Column of the times. [default: the first]")] = None,
    target: Annotated[
        str | None, typer.Option(help="Column to forecast, or several, comma-separated. [default: the last]")
    ] = None,
    past: Annotated[str | None, typer.Option(help="Columns that help, known for the past only.")] = None,
    future: Annotated[str | None, typer.Option(help="Columns that help, known ahead.")] = None,
    horizon: Annotated[
        int | None, typer.Option(help="Rows to forecast. [default: 24, or the rows without targets]")
    ] = None,
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
    if model is not None and (context is not None or steps is not None or save is not None):
        fail("--model uses a model without training: remove --context, --steps and --save")
    _check(file, out, picture, model)
    with common.explained():
        with common.rejected():
            names: dict[str, Any] = {"past": _names(past), "future": _names(future)}
            columns: dict[str, Any] = {"time": time, "target": target, "time_format": time_format}
            frame, ahead = _read(file, **columns, missing=missing, covariates=names)
            if ahead is not None:
                horizon = len(ahead) if horizon is None else horizon
            if model is None:
                options: dict[str, Any] = {"context": context, "quantiles": _numbers(quantiles), "steps": steps}
                options |= {"missing": missing, "random_state": seed, "device": device, "threads": threads}
                estimator = _fitted(frame, 24 if horizon is None else horizon, names, options, save=save)
            else:
                estimator = _loaded(model, device, threads)
            mean = estimator.predict(frame, horizon=horizon, future=ahead)
            shown = {"horizon": horizon, "future": ahead}
            bands = estimator.predict_quantiles(frame, **shown) if estimator.quantiles else None
        _write(out, mean, bands)
        drawn = _draw(picture, frame, mean, bands)
    common.say(f"{len(mean)} rows from {mean.index[0]} to {mean.index[-1]}")
    common.say(f"forecast  {out}" + (f"\npicture   {picture}" if drawn else ""))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError:
        fail(f"--quantiles must be numbers between 0 and 1 with commas, got {text!r}")


def _check(file: Path, out: Path, picture: Path, model: Path | None) -> None:
    common.check_output("--out", out, ".csv")
    common.check_output("--picture", picture, ".png")
    if out.resolve() == file.resolve():
        fail(f"--out must not be the file to read, got {out}")
    if model is not None and not (model / "config.json").is_file():
        fail(f"--model must be the folder of a forecaster that --save wrote, got {model}")


def _fitted(frame: Any, horizon: int, names: dict[str, Any], options: dict[str, Any], *, save: Path | None) -> Any:
    from statespan.estimators import S4Forecaster

    estimator = S4Forecaster(horizon, **options).fit(frame, **names)
    if save is not None:
        estimator.save(save)
    return estimator


def _loaded(model: Path, device: str | None, threads: int | None) -> Any:
    from statespan.estimators import S4Forecaster

    return S4Forecaster.load(model, device=device).set_params(threads=threads)


def _names(text: str | None) -> list[str]:
    return [] if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _read(
    file: Path,
    *,
    time: str | None,
    target: str | None,
    time_format: str | None,
    missing: str,
    covariates: dict[str, list[str]],
) -> tuple[Any, Any]:
    """The rows with targets, and those after them with the columns that are known ahead."""
    import pandas as pd

    from statespan.data.formats.csv import MissingValueError, read_table

    if not file.is_file():
        fail(f"FILE must be an existing CSV file, got {file}")
    try:
        table = read_table(file, time, time_format, missing=missing == "mask" or bool(covariates["future"]))
    except MissingValueError as error:
        fail(f"{error}; --missing mask learns from series with missing values")
    except ValueError as error:
        fail(str(error).replace("time_format", "--time-format"))
    helping = [*covariates["past"], *covariates["future"]]
    wanted = [name for name in table.columns if name not in helping][-1:] if target is None else _names(target)
    for option, names in (("--target", wanted), *((f"--{name}", names) for name, names in covariates.items())):
        for name in names:
            if name not in table.columns:
                hint = suggest(name, table.columns)
                fail(
                    f"{option} must be a column of {file}, got {name!r}{hint}; its columns are "
                    f"{', '.join(table.columns)}"
                )
    values = table.values[:, [table.columns.index(name) for name in (*wanted, *helping)]]
    index = pd.DatetimeIndex(table.times, name=time or "time")
    frame = pd.DataFrame(values, index=index, columns=[*wanted, *helping])
    if not covariates["future"]:
        return frame, None
    known = frame[wanted].notna().any(axis=1).to_numpy()
    end = len(known) - int(known[::-1].argmax()) if known.any() else 0
    if end == len(frame) or not end:
        fail(f"--future needs rows of {file} after the last with a target, in which the columns known ahead are given")
    return frame.iloc[:end], frame.iloc[end:][covariates["future"]]


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
