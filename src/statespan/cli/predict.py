"""``statespan predict``: the command.

Shapes: B batch, L length, D features, K classes or values.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from statespan._fail import fail
from statespan._text import csv_line
from statespan.cli import common
from statespan.cli.locate import Opened, find_run, inputs_of, is_run, locate, open_model, trained_rate

if TYPE_CHECKING:
    import numpy as np

    from statespan.data.inputs import Preparation
    from statespan.train import Recipe

HELP = """Predict classes or values for files with a trained model.

RUN is the folder that `statespan train` or `statespan import-reference` made, or the name of a published model
(statespan models). Each file holds one series in the form of the training data: audio as WAV, otherwise CSV (a line for
each time, a column for each feature), npy or npz. It is scaled as the training data was; for an imported model, not at
all.

\b
Examples:
  statespan predict runs/own clips/*.wav                         to the terminal and predictions.csv
  statespan predict --model digits-s4d image.csv                 a published model, by name
  statespan predict runs/own one.csv two.npy --out answers.npz
  statespan predict runs/own slow/*.csv --dt-scale 2                 recorded at half the sampling rate
  statespan predict runs/own slow/*.csv --sampling-rate 62.5         the same, if the run knows its rate
  statespan predict runs/own data.path=/moved one.csv            if it needs its data, which has moved

The scale and the names of the classes are stored with the model. The training data is needed only if its preparation
is more than a scaling, or if the run is of an earlier version. A WAV file contains its sampling rate: the step is
adapted to it automatically.
"""
SHOWN = 20
ROWS_AT_ONCE = 64


class Sample(NamedTuple):
    """A file, its series (L, D), and its step relative to training.

    Example:
        >>> import numpy as np
        >>> sample = Sample(Path("cough.wav"), np.zeros((16000, 1)), dt_scale=0.5)
        >>> sample.file.name, sample.x.shape
        ('cough.wav', (16000, 1))
    """

    file: Path
    x: np.ndarray[Any, Any]
    dt_scale: float


def predict(
    words: Annotated[
        list[Path], typer.Argument(metavar="RUN FILES", help="A run, and WAV, CSV, npy or npz.", show_default=False)
    ],
    *,
    model: Annotated[
        Path | None, typer.Option(help="The run or published model; all arguments are then files.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write: .csv or .npz.")] = Path("predictions.csv"),
    dt_scale: common.DtScale = None,
    sampling_rate: common.SamplingRate = None,
    data: common.DataFolder = None,
    device: common.Device = None,
) -> None:
    """Predict; :data:`HELP` is the text for users."""
    common.need_training("predict")
    given = words[1:] if model is None else words
    changes = [str(file) for file in given if str(file).startswith("data.") and "=" in str(file) and not file.exists()]
    files = [file for file in given if str(file) not in changes]
    if not files:
        fail("FILES must be at least one file to predict, got none")
    run = _find(words[0], "RUN") if model is None else _find(model, "--model")
    common.check_output("--out", out, ".csv", ".npz")
    if out.resolve() in {file.resolve() for file in files}:
        fail(f"--out must not be one of the files to read, got {out}")
    common.relative_step(1.0, dt_scale, sampling_rate)
    if absent := [file for file in files if not file.is_file()]:
        fail(f"FILES must be existing files, but {absent[0]} is not ({len(absent)} of {len(files)})")
    with common.explained():
        from statespan.train import read_recipe
        from statespan.train.device import pick_device

        place = pick_device(device)
        recipe = read_recipe(run / "recipe.yaml", changes) if is_run(run) else None
        network, inputs = _open(run, recipe, data, changes)
        settings: Mapping[str, Any] = {"name": str(run)} if recipe is None else recipe.data
        info = inputs.info
        if info.task not in ("classification", "regression") or inputs.prepare is None:
            fail(
                f"predict is for classification and regression of series, but {settings['name']} is {info.task}"
                + (" of tokens" if info.d_input is None else "")
            )
        trained = trained_rate(run) or info.sampling_rate
        series = [_read(file, settings, inputs) for file in files]
        is_given = dt_scale is not None or sampling_rate is not None
        if sampling_rate is not None and settings["name"] == "own":
            sampling_rate /= settings.get("subsample", 1)  # of the samples that the model reads
        fixed = common.relative_step(trained, dt_scale, sampling_rate)
        steps = [fixed if is_given or not (trained and rate) else trained / rate for _, rate in series]
        samples = [Sample(file, x, step) for file, (x, _), step in zip(files, series, steps)]
        answers = _answers(network.to(place), samples, inputs)
        _write(out, files, answers, info)
    _show(samples, answers, info)
    common.say(f"written: {out}")


def _find(where: Path, argument: str) -> Path:
    """The folder of a run, or of a saved model with its inputs."""
    folder = locate(where)
    is_model = all((folder / name).is_file() for name in ("config.json", "inputs.json"))
    return folder if is_model else find_run(where, argument)


def _open(run: Path, recipe: Recipe | None, data: Path | None, changes: list[str]) -> tuple[Any, Preparation]:
    """The model and its input preparation; the data is read only if the two are not stored."""
    from statespan.data.inputs import of_dataset
    from statespan.train import load_run

    if any((place / "config.json").is_file() for place in (run, run / "model")):
        opened = Opened(open_model(run, "cpu").model, None if recipe is None else run)
        inputs = inputs_of(opened, data, changes)
        assert inputs is not None  # there is a run, or stored inputs
        return opened.model, inputs
    assert recipe is not None
    dataset = common.load_data(recipe, data)
    return load_run(run, data=dataset)[0], of_dataset(dataset)


def _read(file: Path, settings: Mapping[str, Any], inputs: Preparation) -> tuple[np.ndarray[Any, Any], float | None]:
    """Read a file as the dataset reads its own: the series, and its sampling rate if the file has one."""
    import numpy as np

    from statespan.data.formats.samples import read_sample

    try:
        x, rate = read_sample(file)
    except ValueError as error:
        fail(str(error))
    if settings["name"] == "own":
        subsample = settings.get("subsample", 1)
        x, rate = x[::subsample][: settings.get("length")], rate and rate / subsample
    elif file.suffix.lower() == ".wav" and inputs.whole:
        x = x * np.float32(2**15)  # whole numbers, as the dataset has them
    if x.shape[1] != inputs.info.d_input:
        fail(f"{file} must have {inputs.info.d_input} features, as the training data, got {x.shape[1]}")
    return x, rate


def _answers(model: Any, samples: list[Sample], inputs: Preparation) -> np.ndarray[Any, Any]:
    """Probabilities or values in their own units, (files, K); files of one length go through the model together."""
    import numpy as np
    import torch

    from statespan.train.feed import moved
    from statespan.train.tasks import output

    groups: dict[tuple[int, float], list[int]] = defaultdict(list)
    for number, sample in enumerate(samples):
        groups[len(sample.x), sample.dt_scale].append(number)
    info, prepare = inputs.info, inputs.prepare
    assert prepare is not None
    answers = np.zeros((len(samples), info.d_output))
    place = next(model.parameters()).device
    with torch.inference_mode():
        for (_, dt_scale), members in groups.items():
            for start in range(0, len(members), ROWS_AT_ONCE):
                rows = members[start : start + ROWS_AT_ONCE]
                try:
                    batch = moved(prepare(np.stack([samples[i].x for i in rows])), place)
                except ValueError as error:
                    fail(f"{samples[rows[0]].file}: {error}")
                scores = output(model, batch, dt_scale).double().cpu()
                answers[rows] = (scores.softmax(-1) if info.task == "classification" else scores).numpy()
    mean, std = (getattr(info, name, ()) for name in ("target_mean", "target_std"))
    return answers * np.array(std) + np.array(mean) if std else answers


def _write(out: Path, files: list[Path], answers: np.ndarray[Any, Any], info: Any) -> None:
    import numpy as np

    from statespan._io import replace_file
    from statespan.data.inputs import answer_names

    names, classes = answer_names(info), info.task == "classification"
    best = answers.argmax(1)
    if out.suffix.lower() == ".npz":
        arrays: dict[str, Any] = {"files": np.array([str(file) for file in files]), "names": np.array(names)}
        arrays |= {"class": np.array(names)[best], "probabilities": answers} if classes else {"values": answers}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        replace_file(out, buffer.getvalue())
        return
    header = ["file", "class", "probability", *(f"p({name})" for name in names)] if classes else ["file", *names]
    lines = [csv_line(header)]
    for file, row, top in zip(files, answers, best):
        numbers = [f"{value:.6g}" for value in row]
        lines.append(csv_line([file, names[top], numbers[top], *numbers] if classes else [file, *numbers]))
    replace_file(out, "".join(lines).encode("utf-8", "backslashreplace"))


def _show(samples: list[Sample], answers: np.ndarray[Any, Any], info: Any) -> None:
    from statespan.data.inputs import answer_names

    names = answer_names(info)
    width = max(len(str(sample.file)) for sample in samples[:SHOWN])
    for sample, row in list(zip(samples, answers))[:SHOWN]:
        top = int(row.argmax())
        answer = (
            f"{names[top]}  {100 * row[top]:.1f} %"
            if info.task == "classification"
            else "  ".join(f"{name} {value:.4g}" for name, value in zip(names, row))
        )
        at = f"  (dt_scale {sample.dt_scale:g})" if sample.dt_scale != 1.0 else ""
        common.say(f"{sample.file!s:<{width}}  {answer}{at}")
    if len(samples) > SHOWN:
        common.say(f"… and {len(samples) - SHOWN} more")
