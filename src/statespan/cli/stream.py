"""``statespan stream``: the command.

Shapes: L length, D features, K classes or values.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from statespan._fail import complain, fail
from statespan._text import csv_line
from statespan.cli import common
from statespan.cli.locate import Model, Opened, inputs_of, open_model

if TYPE_CHECKING:
    import numpy as np

HELP = """Feed samples into a model and print its outputs.

Reads standard input: lines of CSV (a column for each feature, or a token) of at most 16 MiB, or raw 16-bit audio.
Writes the outputs to standard output as CSV, at constant cost per sample. Samples are scaled as the training data was;
a model that was saved without its scaling gets them as they are, audio in [-1, 1). A line with NaN, infinity or text
ends the command with exit code 2; the state is then the one before that line. After MODEL, key=value overrides the data
settings of a run whose training data is needed (see predict).

\b
Examples:
  statespan stream runs/own < new.csv                             an output for each line
  arecord -f S16_LE -r 16000 -t raw | statespan stream runs/words --format s16le
  statespan stream runs/own --state box7.state < morning.csv      resume later from this state
  statespan stream runs/own --every 100 < new.csv                 an output for every 100 samples
"""
FORMATS = ("csv", "s16le")
LARGEST = (2 - 2**-23) * 2.0**127  # what samples of float32 can be


def stream(
    where: Model,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Overrides, such as data.path=/moved.", show_default=False),
    ] = None,
    *,
    form: Annotated[str, typer.Option("--format", help="csv, or s16le for raw audio.")] = "csv",
    every: Annotated[
        int | None,
        typer.Option(help="Samples per output, read at once. [default: 1, or 1600 for audio]", show_default=False),
    ] = None,
    dt_scale: common.DtScale = None,
    sampling_rate: common.SamplingRate = None,
    state: Annotated[
        Path | None, typer.Option(help="State file: resumed from if it exists, written at the end.", show_default=False)
    ] = None,
    data: common.DataFolder = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
) -> None:
    """Stream; :data:`HELP` is the text for users."""
    common.check_choice("--format", form, FORMATS)
    for change in changes or []:
        if not change.startswith("data.") or "=" not in change:
            fail(f"overrides must be data settings such as data.path=/moved, got {change!r}")
    block = every if every is not None else 1600 if form == "s16le" else 1
    if block < 1:
        fail(f"--every must be a number >= 1, got {every}")
    common.relative_step(1.0, dt_scale, sampling_rate)
    if state is not None:
        common.check_output("--state", state)
    common.need("stream", "safetensors")
    with common.explained():
        from statespan.generation import Stream

        opened = open_model(where, device)
        step = common.relative_step(opened.model.config.sampling_rate, dt_scale, sampling_rate)
        with common.rejected():
            running = Stream(opened.model, dt_scale=step)
        if state is not None and state.exists():
            running.restore(state)
        prepare, answer = _preparation(opened, data, form, changes or [])
        try:
            with common.rejected():  # a line that is too long
                for number, samples in _read(sys.stdin.buffer, form, block, opened.model.config):
                    try:
                        y = _push(running, prepare(samples))
                    except ValueError as error:  # scaled, they are too large
                        fail(f"sample {number}: {error}")
                    answer(number, y)
        except (BrokenPipeError, KeyboardInterrupt):
            _close_output()  # the reader is done
        finally:
            if state is not None:
                running.save(state)


def _close_output() -> None:
    """Discard the remaining output, so that Python does not complain when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _push(running: Any, x: Any) -> Any:
    """The output after samples (L, …): a step for one sample, a parallel pass for more."""
    y = running.push(x[None, 0]) if len(x) == 1 else running.prefill(x[None])
    return (y[0, -1] if y.ndim == 3 else y[0]).double().cpu()


def _read(source: BinaryIO, form: str, block: int, config: Any) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Blocks of samples (≤ block, D) or tokens (≤ block,), and the number of the last sample of each."""
    import numpy as np

    from statespan.data.formats.limits import bounded

    width = getattr(config, "d_input", None)
    seen = 0
    if form == "s16le":
        frame = 2 * (width or 1)  # bytes of a sample
        while raw := source.read(frame * block):
            whole = np.frombuffer(raw[: len(raw) // frame * frame], "<i2")
            if whole.size == 0:
                return
            samples = whole.reshape(-1, width or 1).astype(np.float32) / np.float32(2**15)
            seen += len(samples)
            yield seen, samples
        return
    rows: list[list[float]] = []
    problem = ""
    for number, line in enumerate(bounded(source), 1):
        text = line.decode("utf-8", "replace").strip()
        if not text:
            continue
        values, mistake = _values(text, width, getattr(config, "vocabulary", None))
        if mistake and number == 1 and not values:
            continue  # names of the columns
        if mistake:
            problem = f"line {number} {mistake}; the lines before it were read"
            break
        rows.append(values)
        if len(rows) == block:
            seen += len(rows)
            yield seen, _array(rows, width)
            rows = []
    if rows:  # also before a rejected line: the saved state is the one before it
        yield seen + len(rows), _array(rows, width)
    if problem:
        fail(problem)


def _values(text: str, width: int | None, vocabulary: int | None) -> tuple[list[float], str]:
    """The numbers of a line (none if it is invalid), and the fault, if any."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        return [], f"must be numbers with commas between them, got {text[:60]!r}"
    if len(values) != (width or 1):
        return values, f"must have {width or 1} numbers, as the model reads, got {len(values)}"
    if not all(abs(value) <= LARGEST for value in values):  # rejects NaN
        return values, f"must be finite numbers of at most {LARGEST:.4g}, got {text[:60]!r}"
    if width is None and vocabulary is not None and not (values[0].is_integer() and 0 <= values[0] < vocabulary):
        return values, f"must be a token 0 … {vocabulary - 1}, got {text[:60]!r}"
    return values, ""


def _array(rows: list[list[float]], width: int | None) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.array(rows, np.float32) if width is not None else np.array(rows)[:, 0].astype(np.int64)


def _preparation(
    opened: Opened, data: Path | None, form: str, changes: list[str]
) -> tuple[Callable[[Any], Any], Printer]:
    """The preparation of raw samples, and the printer of outputs."""
    import numpy as np
    import torch

    config = opened.model.config
    dtype = next(opened.model.parameters()).dtype
    tokens = getattr(config, "vocabulary", None) is not None
    inputs = None if tokens else inputs_of(opened, data, changes)
    if inputs is None or inputs.prepare is None:
        if inputs is not None:
            complain("the samples are not scaled, because the training data was prepared by more than a scaling")
        plain = Printer(opened.model, [], None)
        return (lambda x: torch.from_numpy(x) if tokens else torch.from_numpy(x).to(dtype)), plain
    from statespan.data.inputs import WHOLE, answer_names

    make, info = inputs.prepare, inputs.info
    if inputs.scaled is not None and inputs.scaled.order:
        fail(
            f"{opened.model.name} reads the positions of a series in an order of its own, not as they arrive; use "
            "statespan predict with whole series"
        )
    scale = WHOLE if form == "s16le" and inputs.whole else 1.0

    def prepare(x: Any) -> Any:
        return make((x * np.float32(scale))[None]).x[0].to(dtype)

    probe = np.ones((3, config.d_input), np.float32)
    try:
        prepared = prepare(probe)
        is_per_sample = torch.equal(prepared[:1], prepare(probe[:1])) and torch.equal(prepared[2], prepared[0])
    except ValueError:  # it wants a whole series
        is_per_sample = False
    if not is_per_sample:
        fail(
            f"the data of {opened.run} is scaled as a whole, not sample by sample; stream scaled samples into "
            f"{opened.run}/model instead"
        )
    return prepare, Printer(opened.model, answer_names(info), info)


class Printer:
    """Prints outputs as lines of CSV after a header.

    ``names`` are those of the classes or values, if any, and ``info`` has the units of values, if not None.

    Example:
        >>> from statespan.models import ClassifierConfig, Regressor
        >>> import torch
        >>> model = Regressor(ClassifierConfig(d_input=1, d_output=1, d_model=8, d_state=4, n_layers=1))
        >>> show = Printer(model, ["rate"], None)
        >>> show(50, torch.tensor([72.5]))
        sample,rate
        50,72.5
    """

    def __init__(self, model: Any, names: list[str], info: Any) -> None:
        from statespan.models import Classifier

        self.classes, self.names, self.started = isinstance(model, Classifier), names, False
        self.mean, self.std = (getattr(info, name, ()) for name in ("target_mean", "target_std"))

    def __call__(self, number: int, y: Any) -> None:
        """Print the output (K,) after this number of samples."""
        if not self.started:
            self.started = True
            columns = [self.names[i] if i < len(self.names) else f"value_{i}" for i in range(len(y))]
            self._line("sample", *(("class", "probability") if self.classes else columns))
        if self.classes:
            best = int(y.argmax())
            self._line(number, self.names[best] if self.names else best, f"{y.softmax(-1)[best]:.4f}")
        else:
            if self.std:
                y = y * y.new_tensor(self.std) + y.new_tensor(self.mean)
            self._line(number, *(f"{value:.6g}" for value in y))

    def _line(self, *parts: object) -> None:
        print(csv_line(parts), end="", flush=True)
