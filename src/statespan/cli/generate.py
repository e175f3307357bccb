"""``statespan generate``: the command.

Shapes: B batch, L length of a sequence, V tokens.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statespan._fail import fail
from statespan.cli import common
from statespan.cli.locate import Model, Opened, dataset_of, open_model
from statespan.cli.text import Text, Writer, text_of

if TYPE_CHECKING:
    from torch import Tensor

HELP = """Generate text or images with a trained model.

\b
Examples:
  statespan generate runs/wikitext2-s4 --prompt "The city of" --steps 60 --top-p 0.9
  statespan generate runs/own-text --prompt "Once upon a time" --steps 500 --temperature 0.8
  statespan generate runs/digits-density --count 32 --out digits.png
  statespan generate runs/cifar-density-base --complete --count 8     lower halves of test images
  statespan generate saved/model --size 28x28 --count 64 --batch 32   a saved model, in batches

Text goes to the terminal as it is generated. Images go to a PNG file; with --complete, its first row shows the
originals, the second the halves that the model was given, and the rows below its completions. The same --seed gives the
same samples, in batches of any size.
"""
COMPLETIONS = 3


def generate(
    where: Model,
    *,
    prompt: Annotated[str, typer.Option(help="Text to continue; empty for the start of a line.")] = "",
    steps: Annotated[int, typer.Option(help="Words, characters or bytes to generate.")] = 100,
    count: Annotated[
        int | None, typer.Option(help="Texts or images. [default: 1 text, 16 images, 8 completed]", show_default=False)
    ] = None,
    temperature: Annotated[float, typer.Option(help="Below 1 for more likely samples; 0 for greedy.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the most likely, up to this total.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Minimum probability relative to the most likely.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    complete: Annotated[bool, typer.Option("--complete", help="Complete the lower halves of test images.")] = False,
    size: Annotated[
        str | None, typer.Option(help="Height and width, such as 28x28, for a model without a run.", show_default=False)
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts or images per batch.")] = 64,
    out: Annotated[Path, typer.Option(help="PNG file for images.")] = Path("samples.png"),
    bf16: Annotated[bool, typer.Option("--bf16", help="16-bit weights, which a GPU multiplies faster.")] = False,
    data: common.DataFolder = None,
    device: common.Device = None,
) -> None:
    """Generate; :data:`HELP` is the text for users."""
    for name, value in (("steps", steps), ("count", 1 if count is None else count), ("batch", batch)):
        if value < 1:
            fail(f"--{name} must be a number >= 1, got {value}")
    common.need("generate", "safetensors")
    with common.explained():
        import torch

        from statespan.generation import Sampling
        from statespan.models import LanguageModel, PixelModel

        sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        try:
            Sampling(**sampling)
        except (TypeError, ValueError) as error:
            fail(f"--{str(error).replace('_', '-', 1)}")
        sampling["seed"] = seed
        opened = open_model(where, device)
        if bf16:
            opened.model.to(torch.bfloat16)
        if isinstance(opened.model, LanguageModel):
            text = text_of(opened, data)
            _text(opened.model, text, sampling, prompt=prompt, steps=steps, count=count or 1, batch=batch)
        elif isinstance(opened.model, PixelModel):
            common.check_output("--out", out, ".png")
            _images(opened, sampling, data, count=count, complete=complete, size=size, batch=batch, out=out)
        else:
            fail(f"generate is for models of text or images, but {where} holds a {opened.model.name}{_generators()}")


def _generators() -> str:
    """The published models that can generate, or a recipe of one."""
    from statespan.models import LanguageModel, PixelModel, find
    from statespan.models.pretrained import read_name

    kinds = LanguageModel.name, PixelModel.name
    names = [name for name in find.names() if read_name(find.find(name)) in kinds]
    return f"; published are {', '.join(names)}" if names else "; train one, such as: statespan train digits-density"


def _text(model: Any, text: Text, sampling: dict[str, Any], *, prompt: str, steps: int, count: int, batch: int) -> None:
    import torch

    from statespan.generation import generate

    tokens = torch.tensor([text.read(prompt)])
    shown = text.shown(prompt) + text.between if prompt else ""
    for start in range(0, count, batch):
        size = min(batch, count - start)
        rows = range(start, start + size)
        write = text.writer()

        def show(step: int, token: Tensor, write: Writer = write) -> None:
            print(write(int(token[0])), end="", flush=True)

        if size == 1:
            print(shown, end="", flush=True)
        callback = show if size == 1 else None
        generated = generate(model, tokens.expand(size, -1), steps, callback=callback, rows=rows, **sampling)
        for row in generated.values.tolist() if size > 1 else []:
            write = text.writer()
            print(shown + "".join(map(write, row)) + write(None), end="\n\n")
        if size == 1:
            print(write(None))


def _images(
    opened: Opened, sampling: dict[str, Any], data: Path | None,
    *, count: int | None, complete: bool, size: str | None, batch: int, out: Path,
) -> None:  # fmt: skip
    """Generate images, or complete the lower halves of test images, and write them to a PNG file."""
    import numpy as np
    import torch

    from statespan._io import replace_file
    from statespan.generation.picture import grid, images, png

    config = opened.model.config
    channels = max(1, (config.vocabulary - 1) // config.d_output)
    stored = None if complete or size else opened.model.inputs
    needs_data = complete or (size is None and stored is None)
    dataset = dataset_of(opened, data) if needs_data else None
    if complete and dataset is None:
        fail("--complete needs test images: give the folder of the run, not that of the model")
    known = stored or dataset
    length = _length(size, channels) if known is None else known.info.length
    columns, given = count or (8 if complete else 16), None
    started = time.perf_counter()
    if dataset is not None and complete:
        columns = min(columns, len(dataset.test))
        whole = dataset.test.batch(list(range(columns))).y
        given = whole[:, : length // 2].repeat(COMPLETIONS, 1)
    total = columns * COMPLETIONS if complete else columns
    samples = _sample(opened.model, given, sampling, total=total, length=length, batch=batch)
    pictures = images(samples, config.d_output, channels)
    if complete:
        half = torch.nn.functional.pad(whole[:, : length // 2], (0, length - length // 2))
        above = [images(rows, config.d_output, channels) for rows in (whole, half)]
        pictures = np.concatenate([*above, pictures])
    across = columns if complete else math.ceil(math.sqrt(total))
    enlarge = max(1, 96 // pictures.shape[1])
    replace_file(out, png(grid(pictures, across, enlarge)))
    seconds = time.perf_counter() - started
    summary = f"{columns} images completed {COMPLETIONS} times" if complete else f"{total} images"
    common.say(f"{summary} in {seconds:.1f} s, {total / seconds:.3g} a second")
    common.say(f"written: {out}")


def _sample(model: Any, given: Any, sampling: dict[str, Any], *, total: int, length: int, batch: int) -> Any:
    """Sample values (total, length) in batches; given ones come first."""
    import torch

    from statespan.generation import generate

    parts = []
    for start in range(0, total, batch):
        rows = range(start, min(total, start + batch))
        prompt = None if given is None else given[rows.start : rows.stop]
        steps = length - (0 if prompt is None else prompt.shape[1])
        generated = generate(model, prompt, steps, batch=len(rows), rows=rows, **sampling).values.cpu()
        parts.append(generated if prompt is None else torch.cat([prompt, generated], 1))
    return torch.cat(parts)


def _length(size: str | None, channels: int) -> int:
    if size is None:
        fail("a saved model does not know the size of its images: give it, such as --size 28x28")
    sides = [int(side) for side in size.lower().split("x") if side.isdigit()]
    if len(sides) != 2 or min(sides) < 1 or sides[0] != sides[1]:
        fail(f"--size must be a height and the same width, such as 28x28, got {size!r}")
    return sides[0] * sides[1] * channels
