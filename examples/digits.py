"""Train a small S4D on handwritten digits, read pixel by pixel, and show what it can do.

    python examples/digits.py                 # about a minute on two CPU cores
    python examples/digits.py --layer s4      # any of s4, s4d, dss, lssl
    python examples/digits.py --out FILE      # also write everything printed, with the run's record, to a JSON file

The data (1,797 images of 8 by 8 pixels) comes with scikit-learn; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statespan._io import replace_file
from statespan.train import evaluate, fit, load_run, recipes

RECIPE = "digits-s4d"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", choices=("s4", "s4d", "dss", "lssl"), default="s4d", help="default: s4d")
    parser.add_argument("--epochs", type=int, help="passes over the training images (default: the recipe's)")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="folder of the run (default: runs)")
    parser.add_argument("--out", type=Path, help="write the record of the run to this JSON file")
    args = parser.parse_args()
    if args.epochs is not None and args.epochs < 1:
        parser.error(f"--epochs must be an integer >= 1, got {args.epochs}")
    if args.out and not args.out.absolute().parent.is_dir():
        parser.error(f"--out must be in an existing folder, got {args.out}")

    torch.set_num_threads(1)  # with arrays this small, threads would mostly wait for each other

    # The recipe is a YAML file that comes with the package; `statespan train digits-s4d` trains the same model.
    overrides = [] if args.epochs is None else [f"train.epochs={args.epochs}"]
    if args.layer != "s4d":
        overrides += [f"model.layer={args.layer}", "model.ssm={}"]
    recipe = recipes.read(RECIPE, overrides)
    folder = args.folder / f"digits-{args.layer}-{time.strftime('%Y%m%d-%H%M%S')}"
    print(f"{args.layer.upper()} on handwritten digits: 64 pixels one after the other, 10 classes")
    result = fit(recipe, folder)
    accuracy = result.test["accuracy"]
    print(f"{result.parameters:,} parameters, weights of the best validation (step {result.best_step})")
    print(f"test accuracy {100 * accuracy:.1f}% after {result.epochs:g} epochs, {result.seconds:.0f} s\n")

    # The same weights on every second pixel: the layers are continuous in time, so each step is simply twice as long.
    half = evaluate(folder, dt_scale=2.0, overrides=["data.subsample=2"])["accuracy"]
    plain = evaluate(folder, overrides=["data.subsample=2"])["accuracy"]
    unscaled = f"({100 * plain:.1f}% with dt_scale=1.0)"
    print(f"every second pixel  {100 * half:.1f}% with dt_scale=2.0 and no training {unscaled}")

    # The same weights as a recurrence: one pixel at a time, with a state of fixed size and the same predictions.
    model, _, dataset = load_run(folder)
    images = dataset.test.batch(list(range(len(dataset.test))))
    with torch.inference_mode():
        parallel, recurrent = model(images.x), step_by_step(model, images.x)
    same = int((parallel.argmax(1) == recurrent.argmax(1)).sum())
    difference = (parallel - recurrent).abs().max().item()
    print(f"step by step        {same} of {len(images.y)} predictions identical, scores differ by {difference:.0e}\n")

    draw(folder / "digits.png", images.x, images.y, parallel.softmax(1))
    print(f"pictures  {folder / 'curve.png'}\n          {folder / 'digits.png'}")
    if args.out:
        record = json.loads((folder / "result.json").read_text())
        record["every_second_pixel"] = {"accuracy": half, "accuracy_at_rate_1": plain}
        record["step_by_step"] = {"identical": same, "images": len(images.y), "largest_difference": difference}
        replace_file(args.out, (json.dumps(record, indent=2) + "\n").encode())
    if same != len(images.y):
        raise SystemExit("the recurrence and the convolution give different predictions")


def step_by_step(model: Any, x: Tensor) -> Tensor:
    """The scores after the last sample of x (B, L, 1), with the samples fed to the model one at a time."""
    step, state = model.stepper(), model.initial_state(len(x))
    for sample in x.unbind(1):
        scores, state = step(sample, state)
    return scores


def draw(path: Path, x: Tensor, y: Tensor, probabilities: Tensor) -> None:
    """Some test images with their predictions, the wrong ones first."""
    import io

    from matplotlib.figure import Figure

    predicted = probabilities.argmax(1)
    order = torch.cat([torch.nonzero(predicted != y)[:8, 0], torch.nonzero(predicted == y)[:24, 0]])[:24]
    figure = Figure(figsize=(8, 4), layout="constrained")
    for axes, i in zip(figure.subplots(3, 8).flat, order.tolist()):
        axes.imshow(x[i].reshape(8, 8).numpy(), cmap="gray_r")
        wrong = "" if predicted[i] == y[i] else f", is {y[i]}"
        title = f"{predicted[i]}{wrong}\n{probabilities[i].max():.0%}"
        axes.set_title(title, fontsize=9, color="C3" if wrong else "black")
        axes.set_axis_off()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    replace_file(path, buffer.getvalue())


if __name__ == "__main__":
    main()
