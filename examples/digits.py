"""Train a small S4D on handwritten digits, read pixel by pixel, and print its test accuracy.

    python examples/digits.py                 # under a minute on two CPU cores
    python examples/digits.py --layer s4      # any of s4, s4d, dss, lssl
    python examples/digits.py --out FILE      # also write what was done and reached as JSON

The data (1,797 images of 8 by 8 pixels) comes with scikit-learn; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

import torch
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import statespan

LAYERS = {"s4": statespan.S4, "s4d": statespan.S4D, "dss": statespan.DSS, "lssl": statespan.LSSL}


class Classifier(nn.Module):
    """Pixels in, one score a digit out: residual SSM layers and a mean over the sequence."""

    def __init__(self, layer: type[nn.Module], d_model: int, n_layers: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(1, d_model)
        self.layers = nn.ModuleList(layer(d_model, 32, bidirectional=True, mix="glu") for _ in range(n_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(n_layers))
        self.decoder = nn.Linear(d_model, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, 1) to (batch, 10)."""
        x = self.encoder(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        return self.decoder(x.mean(1))


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    split = train_test_split(pixels / 16.0, labels, test_size=0.2, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in split)
    return x_train.float()[..., None], x_test.float()[..., None], y_train, y_test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", choices=LAYERS, default="s4d", help="which SSM layer (default: s4d)")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training set (default: 15)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and shuffling (default: 0)")
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error(f"--epochs must be an integer >= 1, got {args.epochs}")
    if args.out and not args.out.parent.is_dir():
        parser.error(f"--out must be in a folder that exists, got {args.out}")

    torch.manual_seed(args.seed)
    x_train, x_test, y_train, y_test = load()
    model = Classifier(LAYERS[args.layer], d_model=64, n_layers=2)
    optimizer = torch.optim.AdamW(statespan.param_groups(model, lr=0.01, weight_decay=0.01))
    steps = args.epochs * -(-len(x_train) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [g["lr"] for g in optimizer.param_groups], steps)
    size = sum(p.numel() for p in model.parameters())
    print(f"{args.layer} on digits: {len(x_train)} training and {len(x_test)} test images, {size:,} parameters")

    start = time.perf_counter()
    for _ in track(range(args.epochs), description="training"):
        for batch in torch.randperm(len(x_train)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x_train[batch]), y_train[batch]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        accuracy = (model.eval()(x_test).argmax(1) == y_test).double().mean().item()
    seconds = time.perf_counter() - start
    print(f"test accuracy {100 * accuracy:.1f}% after {args.epochs} epochs, {seconds:.0f} s")
    if args.out:
        recipe = {"layer": args.layer, "epochs": args.epochs, "seed": args.seed, "parameters": size}
        versions = {"statespan": statespan.__version__, "torch": torch.__version__, "python": platform.python_version()}
        hardware = {"machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
        result = {
            "command": " ".join(["python", "examples/digits.py", *sys.argv[1:]]),
            "recipe": recipe,
            "test_accuracy": accuracy,
            "seconds": round(seconds, 1),
            "versions": versions,
            "hardware": hardware,
        }
        write(args.out, json.dumps(result, indent=2) + "\n")


def write(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half a file."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    main()
