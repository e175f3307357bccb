"""Other sampling rates without retraining: S4D, a CNN and a Transformer on real series.

    python -m statespan.papers.tables.studies.rates --data DATA --out results/rates.json

All are trained on every second sample of datasets of the UCR archive (DATA/uea) and tested at that rate, at twice the
rate (all samples), and at a half and a quarter of it. S4D is given the rate; the others cannot use it. For comparison,
the test series are also resampled linearly to the training rate, which helps any model. A plot is written beside the
record.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from statespan import _plotting as look
from statespan._io import replace_file
from statespan.data.base import Arrays, Batch
from statespan.estimators import S4Classifier, read_ts
from statespan.estimators.fitting import fit_network, train_config
from statespan.estimators.network import resampled
from statespan.estimators.tasks import classes
from statespan.papers.baselines.attention import Attention
from statespan.papers.baselines.transformer import Transformer
from statespan.papers.tables.studies.common import Study, parser
from statespan.train.loop import Splits
from statespan.train.order import derive

SETS = ("GunPoint", "OSULeaf")
EVERY = {"2x": 1, "1x": 2, "0.5x": 4, "0.25x": 8}  # samples of the archive's series that are one of each rate
CAPTION = "Test accuracy of models trained at 1x (every second sample), with no training at the other rates"


class CNN(nn.Module):
    """The fully convolutional network of Wang et al. (2017): three convolutions, global average pooling, a linear map.

    Example:
        >>> CNN(1, 3)(torch.randn(2, 50, 1)).shape
        torch.Size([2, 3])
    """

    def __init__(self, d_input: int, d_output: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for into, out, width in ((d_input, 64, 9), (64, 128, 5), (128, 64, 3)):
            layers += [nn.Conv1d(into, out, width, padding="same"), nn.BatchNorm1d(out), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.map = nn.Linear(64, d_output)

    def forward(self, x: Tensor) -> Tensor:
        """The scores (B, K) of K classes for x (B, L, C) of C channels."""
        return self.map(self.layers(x.mT).mean(-1))


class Attending(nn.Module):
    """A Transformer encoder with sinusoidal positions, global average pooling, a linear map.

    Example:
        >>> Attending(1, 3)(torch.randn(2, 50, 1)).shape
        torch.Size([2, 3])
    """

    def __init__(self, d_input: int, d_output: int, d_model: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Linear(d_input, d_model)
        mixers = [Attention(d_model, n_heads=4, bidirectional=True) for _ in range(3)]
        self.layers = Transformer(d_model, mixers, d_ff=2 * d_model, dropout=0.1)
        self.map = nn.Linear(d_model, d_output)

    def forward(self, x: Tensor) -> Tensor:
        """The scores (B, K) of x (B, L, C)."""
        y = self.encoder(x)
        half = torch.arange(0, y.shape[-1], 2, device=x.device)
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * 1000.0 ** (-half / y.shape[-1])
        return self.map(self.layers(y + torch.cat([angle.sin(), angle.cos()], -1)).mean(1))


def _score(model: nn.Module, X: Any, y: Any, device: torch.device, *, factor: float = 1.0) -> float:
    with torch.inference_mode():
        x = torch.from_numpy(X.astype(np.float32)).to(device)
        x = x if factor == 1.0 else resampled(x, factor)
        return float((model(x).argmax(1).cpu().numpy() == y).mean())


def scores(folder: Path, name: str, epochs: int | None, device: torch.device) -> dict[str, dict[str, float]]:
    """The accuracies of each model at each rate on one dataset of the archive."""
    (X, labels), (X_test, labels_test) = (read_ts(folder / "uea" / f"{name}_{part}.ts") for part in ("TRAIN", "TEST"))
    names = np.unique(labels)
    y, y_test = np.searchsorted(names, labels), np.searchsorted(names, labels_test)
    mean, std = X.mean((0, 1)), X.std((0, 1))
    base, tests = X[:, ::2], {rate: X_test[:, ::every] for rate, every in EVERY.items()}
    s4 = S4Classifier(stride=1, epochs=epochs, device=str(device)).fit(base, y)
    accuracies = {"S4D": {r: s4.score(tests[r], y_test, dt_scale=EVERY[r] / 2) for r in EVERY}}
    accuracies["S4D, not told the rate"] = {r: s4.score(tests[r], y_test) for r in EVERY}
    arrays = {"x": ((base - mean) / std).astype(np.float32), "y": y.astype(np.int64)}
    data = Arrays(arrays, lambda rows: Batch(rows["x"], rows["y"]))
    config = train_config(len(data), batch=16, epochs=s4.chosen_["epochs"], lr=0.001)
    for title, make in (("CNN", CNN), ("Transformer", Attending)):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(0, title, name))
            model = make(X.shape[2], len(names)).to(device)
        fit_network(model, Splits(data), config, task=classes(), device=device)
        model.eval()
        scaled = {rate: (x - mean) / std for rate, x in tests.items()}
        accuracies[title] = {r: _score(model, scaled[r], y_test, device) for r in EVERY}
        again = {r: _score(model, scaled[r], y_test, device, factor=EVERY[r] / 2) for r in EVERY}
        accuracies[f"{title}, series resampled"] = again
    return accuracies


def draw(rows: list[dict[str, Any]]) -> Any:
    """Plot accuracy against the rate, a panel for each dataset."""
    sets = list(dict.fromkeys(row["setting"]["set"] for row in rows))
    figure, panels = look.panels(len(sets), 3, width=1.0 + 4.0 * len(sets), height=3.2, sharey=True)
    colors = dict(zip(("S4D", "CNN", "Transformer"), look.COLORS))
    for axes, name in zip(panels, sets):
        for row in rows:
            if row["setting"]["set"] == name and row["name"] in colors:
                rates = sorted(row["extra"], key=lambda rate: float(rate[:-1]))
                accuracies = [100 * row["extra"][rate] for rate in rates]
                axes.plot(rates, accuracies, marker="o", color=colors[row["name"]], label=row["name"])
        axes.axvline("1x", color=look.GREY, linestyle=":", zorder=0)
        look.tidy(axes, "sampling rate of the test series", "test accuracy, %", f"{name}, trained at 1x", legend=True)
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the study; see the module's docstring."""
    options = parser(__doc__, "results/rates.json")
    options.add_argument("--sets", default=",".join(SETS), help="with commas (default: %(default)s)")
    options.add_argument("--epochs", type=int, help="passes over the series (default: the estimator's)")
    args = options.parse_args(arguments)
    study = Study("rates", CAPTION, args.out, args.device)
    for name in args.sets.split(","):
        if any(row["setting"]["set"] == name for row in study.rows):
            continue
        for title, accuracies in scores(args.data, name, args.epochs, study.device).items():
            study.add(title, {"set": name}, accuracies)
        study.save()
    for row in study.rows:
        print(f"{row['setting']['set']:10} {row['name']:30} {row['extra']}", flush=True)
    if find_spec("matplotlib"):
        replace_file(args.out.with_suffix(".png"), look.content(draw(study.rows)))


if __name__ == "__main__":
    main()
