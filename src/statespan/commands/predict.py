"""``statespan predict``: the command.

Shapes: B batch, L length, D features, K classes or values.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from statespan._fail import fail
from statespan.commands import common
from statespan.commands.evaluate import check_rate

if TYPE_CHECKING:
    import numpy as np

    from statespan.data import Batch, Dataset
    from statespan.train import Recipe

HELP = """Predict classes or values of files with a trained model.

RUN is the folder that `statespan train` made. Each file holds one series, as the data of the run does: audio as WAV,
otherwise CSV (a line for each time, a column for each feature), npy or npz. It is scaled as the training data was.

\b
Examples:
  statespan predict runs/own clips/*.wav                         to the terminal and predictions.csv
  statespan predict runs/own one.csv two.npy --out answers.npz
  statespan predict runs/own slow/*.csv --rate 2                 recorded with half the samples a second
  statespan predict runs/own data.path=/moved one.csv            where the data of the run is now

The scale and the names of the classes come from the data the run was trained on, which must still be there.
A WAV file says how often it was sampled: if that is not what the model was trained on, the step is adapted by itself.
"""
SHOWN = 20
ROWS_AT_ONCE = 64


class Sample(NamedTuple):
    """A file, its series (L, D), and the step relative to that of training."""

    file: Path
    x: np.ndarray[Any, Any]
    rate: float


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)],
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="WAV, CSV, npy or npz.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Where to write: .csv or .npz.")] = Path("predictions.csv"),
    rate: Annotated[
        float | None,
        typer.Option(
            help="Step relative to training: 2.0 for files sampled half as often. [default: 1, or what a WAV says]"
        ),
    ] = None,
    data: common.DataFolder = None,
    device: common.Device = None,
) -> None:
    """Predict; :data:`HELP` is the text for users."""
    common.need_training()
    run = common.find_run(run)
    if out.suffix.lower() not in (".csv", ".npz"):
        fail(f"--out must end in .csv or .npz, got {out}")
    if not out.absolute().parent.is_dir():
        fail(f"--out must be in a folder that is there, got {out}")
    if out.resolve() in {file.resolve() for file in files}:
        fail(f"--out must not be one of the files to read, got {out}")
    if rate is not None:
        check_rate(rate)
    changes = [str(file) for file in files if str(file).startswith("data.") and "=" in str(file) and not file.exists()]
    files = [file for file in files if str(file) not in changes]
    if not files:
        fail("FILES must be at least one file to predict, got none")
    if absent := [file for file in files if not file.is_file()]:
        fail(f"FILES must be files that are there, and {absent[0]} is not ({len(absent)} of {len(files)})")
    console = common.terminal()
    with common.explained():
        from statespan.train import load_run, read_recipe
        from statespan.train.device import pick_device

        place = pick_device(device)
        recipe = read_recipe(run / "recipe.yaml", changes)
        dataset = common.load_data(recipe, data, console)
        info = dataset.info
        if info.task not in ("classification", "regression") or info.d_input is None:
            fail(
                f"predict is for classification and regression of series, and {recipe.data['name']} is {info.task}"
                + (" of tokens" if info.d_input is None else "")
            )
        samples = [_sample(file, rate, recipe, dataset) for file in files]
        model = load_run(run, data=dataset)[0].to(place)
        answers = _answers(model, samples, dataset)
        _write(out, files, answers, info)
    _show(samples, answers, info, out, console)


def _sample(file: Path, rate: float | None, recipe: Recipe, dataset: Dataset) -> Sample:
    """Read a file as the dataset reads its own."""
    import numpy as np

    from statespan.data.samples import read_sample

    try:
        x, frequency = read_sample(file)
    except ValueError as error:
        fail(str(error))
    if recipe.data["name"] == "own":
        x = x[:: recipe.data.get("subsample", 1)][: recipe.data.get("length")]
        frequency = frequency and frequency / recipe.data.get("subsample", 1)
    elif file.suffix.lower() == ".wav" and dataset.test.arrays["x"].dtype == np.int16:
        x = x * np.float32(2**15)  # whole numbers, as the dataset has them
    if x.shape[1] != dataset.info.d_input:
        fail(f"{file} must have {dataset.info.d_input} features, as the training data, got {x.shape[1]}")
    trained = dataset.info.frequency
    if rate is None:
        rate = trained / frequency if trained and frequency else 1.0
    return Sample(file, x, rate)


def _batch(xs: np.ndarray[Any, Any], dataset: Dataset) -> Batch:
    """The batch of series (B, L, D), prepared as the dataset prepares its own rows."""
    import torch

    split: Any = dataset.test
    own = split.batch([0])
    rows: dict[str, Any] = {"x": torch.from_numpy(xs), "y": torch.zeros(len(xs), *own.y.shape[1:])}
    stored = split.arrays["x"].ndim - (0 if len(split.arrays["x"]) == len(split) else -1)
    if stored == 2:  # rows without an axis for their one feature
        rows["x"] = rows["x"][..., 0]
    if "lengths" in split.arrays:
        rows["lengths"] = torch.full((len(xs),), xs.shape[1])
    if "y" in split.arrays:
        rows["y"] = torch.zeros(len(xs), *split.arrays["y"].shape[1:])
    return split.prepare(rows)


def _answers(model: Any, samples: list[Sample], dataset: Dataset) -> np.ndarray[Any, Any]:
    """Probabilities or values in their own units, (files, K); files of one length go through the model together."""
    import numpy as np
    import torch

    from statespan.train.feed import moved
    from statespan.train.tasks import output

    groups: dict[tuple[int, float], list[int]] = defaultdict(list)
    for number, sample in enumerate(samples):
        groups[len(sample.x), sample.rate].append(number)
    found = np.zeros((len(samples), dataset.info.d_output))
    place = next(model.parameters()).device
    with torch.inference_mode():
        for (_, rate), members in groups.items():
            for start in range(0, len(members), ROWS_AT_ONCE):
                some = members[start : start + ROWS_AT_ONCE]
                batch = moved(_batch(np.stack([samples[i].x for i in some]), dataset), place)
                scores = output(model, batch, rate).double().cpu()
                found[some] = (scores.softmax(-1) if dataset.info.task == "classification" else scores).numpy()
    mean, std = (getattr(dataset.info, name, ()) for name in ("target_mean", "target_std"))
    return found * np.array(std) + np.array(mean) if std else found


def _names(info: Any) -> list[str]:
    """Names of the classes or values."""
    columns = getattr(info, "columns", ())
    if info.task == "classification":
        return list(info.classes) or [str(number) for number in range(info.d_output)]
    return list(columns) or (["value"] if info.d_output == 1 else [f"value_{i}" for i in range(info.d_output)])


def _write(out: Path, files: list[Path], answers: np.ndarray[Any, Any], info: Any) -> None:
    """Write the answers, whole or not at all."""
    import numpy as np

    from statespan.train.fsio import replace_file

    names, classes = _names(info), info.task == "classification"
    best = answers.argmax(1)
    if out.suffix.lower() == ".npz":
        arrays: dict[str, Any] = {"files": np.array([str(file) for file in files]), "names": np.array(names)}
        arrays |= {"class": np.array(names)[best], "probabilities": answers} if classes else {"values": answers}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        replace_file(out, buffer.getvalue())
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["file", "class", "probability", *(f"p({name})" for name in names)] if classes else ["file", *names]
    )
    for file, row, top in zip(files, answers, best):
        numbers = [f"{value:.6g}" for value in row]
        writer.writerow([str(file), names[top], numbers[top], *numbers] if classes else [str(file), *numbers])
    replace_file(out, text.getvalue().encode())


def _show(samples: list[Sample], answers: np.ndarray[Any, Any], info: Any, out: Path, console: Any) -> None:
    names = _names(info)
    wide = max(len(str(sample.file)) for sample in samples[:SHOWN])
    for sample, row in list(zip(samples, answers))[:SHOWN]:
        top = int(row.argmax())
        said = (
            f"{names[top]}  {100 * row[top]:.1f} %"
            if info.task == "classification"
            else "  ".join(f"{name} {value:.4g}" for name, value in zip(names, row))
        )
        at = f"  (rate {sample.rate:g})" if sample.rate != 1.0 else ""
        console.print(f"{sample.file!s:<{wide}}  {said}{at}", markup=False, soft_wrap=True)
    if len(samples) > SHOWN:
        console.print(f"… and {len(samples) - SHOWN} more")
    console.print(f"written: {out}", markup=False, soft_wrap=True)
