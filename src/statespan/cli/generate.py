"""``statespan generate``: the command.

Shapes: B batch, L length of a sequence, V tokens.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from statespan._fail import complain, fail
from statespan._text import printable
from statespan.cli import common
from statespan.cli.models import ARGUMENT, Opened, dataset_of, open_model

if TYPE_CHECKING:
    from torch import Tensor

HELP = """Generate text or images with a trained model.

\b
Examples:
  statespan generate runs/wikitext2-s4 --prompt "The city of" --steps 60 --top-p 0.9
  statespan generate runs/digits-density --count 32 --out digits.png
  statespan generate runs/cifar-density-base --complete --count 8     lower halves of test images
  statespan generate saved/model --size 28x28 --count 64 --batch 32   a saved model, in batches

Text goes to the terminal as it comes. Images go to a PNG file; with --complete it has the images themselves in its
first row, what the model was given of them in the second, and what it made of that below. The same --seed gives the
same samples, in batches of any size.
"""
COMPLETIONS = 3


class Choices(NamedTuple):
    """What samples are drawn with."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int


def generate(
    where: Annotated[Path, typer.Argument(metavar="MODEL", help=ARGUMENT, show_default=False)],
    prompt: Annotated[str, typer.Option(help="Text to go on with; none for the start of a line.")] = "",
    steps: Annotated[int, typer.Option(help="Words to generate.")] = 100,
    count: Annotated[
        int | None, typer.Option(help="Texts or images. [default: 1 text, 16 images, 8 completed]", show_default=False)
    ] = None,
    temperature: Annotated[float, typer.Option(help="Less than 1 for likelier samples; 0 for the likeliest.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Choose among so many of the likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the likeliest with this probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Least probability over that of the likeliest.")] = None,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    complete: Annotated[bool, typer.Option("--complete", help="Complete the lower halves of test images.")] = False,
    size: Annotated[
        str | None, typer.Option(help="Height and width, such as 28x28, for a model without a run.", show_default=False)
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts or images at a time.")] = 64,
    out: Annotated[Path, typer.Option(help="PNG file for images.")] = Path("samples.png"),
    bf16: Annotated[bool, typer.Option("--bf16", help="Weights of 16 bits, which a GPU multiplies faster.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Where datasets are. [default: $STATESPAN_DATA or ~/.cache/statespan/data]"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. [default: cuda where there is one]")] = None,
) -> None:
    """Generate; :data:`HELP` is the text for users."""
    for name, value in (("steps", steps), ("count", 1 if count is None else count), ("batch", batch)):
        if value < 1:
            fail(f"--{name} must be a number >= 1, got {value}")
    with common.explained():
        import torch

        from statespan.generation import Sampling
        from statespan.models import LanguageModel, PixelModel

        choices = Choices(temperature, top_k, top_p, min_p, seed)
        try:
            Sampling(*choices[:4])
        except (TypeError, ValueError) as error:
            fail(f"--{str(error).replace('_', '-', 1)}")
        opened = open_model(where, device)
        if bf16:
            opened.model.to(torch.bfloat16)
        if isinstance(opened.model, LanguageModel):
            _text(opened, prompt, steps, count or 1, batch, choices, data)
        elif isinstance(opened.model, PixelModel):
            _images(opened, count, complete, size, batch, choices, out, data)
        else:
            fail(f"generate is for models of text and of images, and {where} holds a {opened.model.name}")


def _text(opened: Opened, prompt: str, steps: int, count: int, batch: int, choices: Choices, data: Path | None) -> None:
    import torch

    from statespan.generation import generate

    dataset = dataset_of(opened, data, common.terminal())
    if dataset is None:
        fail("text needs the words of the training data: name the folder of the run, not that of the model")
    words = dataset.info.classes
    number = {word: i for i, word in enumerate(words)}
    given = prompt.split() or ["<eos>"]
    if unknown := [word for word in given if word not in number]:
        if "<unk>" not in number:
            fail(f"--prompt must be words of the training data, and {unknown[0]!r} is none")
        complain(f"{', '.join(unknown)} is not among the words of the training data")
    tokens = torch.tensor([[number.get(word, number.get("<unk>", 0)) for word in given]])
    for start in range(0, count, batch):
        size = min(batch, count - start)
        rows = range(start, start + size)

        def show(step: int, token: Tensor) -> None:
            print(_word(words[int(token[0])]), end="", flush=True)

        if size == 1:
            print(prompt, end=" " if prompt else "", flush=True)
        found = generate(
            opened.model, tokens.expand(size, -1), steps, callback=show if size == 1 else None, rows=rows,
            **choices._asdict(),
        )  # fmt: skip
        for row in found.values.tolist() if size > 1 else []:
            print(prompt, "".join(_word(words[token]) for token in row), sep=" " if prompt else "", end="\n\n")
        if size == 1:
            print()


def _word(word: str) -> str:
    return "\n" if word == "<eos>" else printable(word) + " "


def _images(
    opened: Opened, count: int | None, complete: bool, size: str | None, batch: int, choices: Choices, out: Path,
    data: Path | None,
) -> None:  # fmt: skip
    import numpy as np
    import torch

    from statespan._io import replace_file
    from statespan.generation.picture import grid, images, png

    if out.suffix.lower() != ".png" or not out.absolute().parent.is_dir():
        fail(f"--out must be a .png file in a folder that is there, got {out}")
    config, console = opened.model.config, common.terminal()
    channels = max(1, (config.vocabulary - 1) // config.d_output)
    known = None if complete or size else _known_length(opened)
    dataset = dataset_of(opened, data, console) if complete or (size is None and known is None) else None
    length = known or (_length(size, channels) if dataset is None else dataset.info.length)
    columns, given = count or (8 if complete else 16), None
    started = time.perf_counter()
    if complete:
        if dataset is None:
            fail("--complete needs test images: name the folder of the run, not that of the model")
        columns = min(columns, len(dataset.test))
        whole = dataset.test.batch(list(range(columns))).y
        given = whole[:, : length // 2].repeat(COMPLETIONS, 1)
    total = columns * COMPLETIONS if complete else columns
    made = _sample(opened.model, given, total, length, batch, choices)
    pictures = images(made, config.d_output, channels)
    if complete:
        half = torch.nn.functional.pad(whole[:, : length // 2], (0, length - length // 2))
        above = [images(some, config.d_output, channels) for some in (whole, half)]
        pictures = np.concatenate([*above, pictures])
    across = columns if complete else math.ceil(math.sqrt(total))
    enlarge = max(1, 96 // pictures.shape[1])
    replace_file(out, png(grid(pictures, across, enlarge)))
    seconds = time.perf_counter() - started
    what = f"{columns} images completed {COMPLETIONS} times" if complete else f"{total} images"
    console.print(f"{what} in {seconds:.1f} s, {total / seconds:.3g} a second", markup=False)
    console.print(f"written: {out}", markup=False, soft_wrap=True)


def _sample(model: Any, given: Any, total: int, length: int, batch: int, choices: Choices) -> Any:
    """Values (total, length), in batches; those that are given come first."""
    import torch

    from statespan.generation import generate

    parts = []
    for start in range(0, total, batch):
        rows = range(start, min(total, start + batch))
        prompt = None if given is None else given[rows.start : rows.stop]
        steps = length - (0 if prompt is None else prompt.shape[1])
        found = generate(model, prompt, steps, batch=len(rows), rows=rows, **choices._asdict()).values.cpu()
        parts.append(found if prompt is None else torch.cat([prompt, found], 1))
    return torch.cat(parts)


def _known_length(opened: Opened) -> int | None:
    """Of the images of a published model, which needs no data to say it."""
    from statespan.cli import inputs

    path = None if opened.run is None else opened.run / "inputs.json"
    return inputs.read(path).info.length if path is not None and path.is_file() else None


def _length(size: str | None, channels: int) -> int:
    if size is None:
        fail("a saved model does not know the size of its images: say it with --size, such as --size 28x28")
    sides = [int(side) for side in size.lower().split("x") if side.isdigit()]
    if len(sides) != 2 or min(sides) < 1 or sides[0] != sides[1]:
        fail(f"--size must be a height and the same width, such as 28x28, got {size!r}")
    return sides[0] * sides[1] * channels
