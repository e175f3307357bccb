"""Figure 2 of the S4 paper: kernels of a trained model as images."""

from __future__ import annotations

import math
from pathlib import Path

from statespan import plot
from statespan.papers.runs.cell import Cell
from statespan.papers.tables.collect import ReproduceOptions
from statespan.papers.tables.figures import ReproducedFigure
from statespan.train import recipes
from statespan.train.config import read_recipe
from statespan.train.run import load_data

RECIPES = {"minutes": ("smnist-small", ("train.steps=600", "train.validate_every=300")), "full": ("lra-pathx-s4", ())}


def cell(options: ReproduceOptions) -> Cell:
    """The model to train: Path-X's with the full budget, otherwise a small MNIST model."""
    name, changes = RECIPES[options.budget]
    return Cell(read_recipe(recipes.read(name), [*changes, *options.changes]))


def cells(options: ReproduceOptions) -> Path:
    """The folder of the model's run, a separate one because the model is kept."""
    return options.cells / "s4-figure2"


def draw(options: ReproduceOptions, data: Path | None) -> ReproducedFigure:
    """The figure, from the trained model."""
    run = cell(options)
    parts = plot.read_parts(run.folder(cells(options)))
    dataset = load_data(run.recipe, data)
    side = math.isqrt(dataset.info.length)
    picture = dataset.test.batch([0]).x[0, :, 0].reshape(side, side).cpu()
    figure = plot.filters(parts, side=side, picture=picture)
    paragraphs = [
        f"{run.recipe.name}: an input, and kernels of the first and the last layer, each {side * side} samples long, "
        f"laid out as the image is read: {side} x {side}. A kernel begins at its top left corner; heads are ordered by "
        "their step size."
    ]
    if options.budget == "minutes":
        paragraphs.append(
            "The paper's figure shows Path-X (128 x 128), which `--budget full` trains on a GPU in hours."
        )
    return ReproducedFigure(figure, tuple(paragraphs), {"recipe": run.recipe.name, "side": side})
