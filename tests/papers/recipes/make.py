"""Made-up data of the right kind for every recipe: its sizes, and a batch."""

from dataclasses import replace

import torch

from statespan.data.base import Batch, Info

SIGNALS = {  # length, features, classes
    "smnist": (784, 1, 10),
    "pmnist": (784, 1, 10),
    "digits": (64, 1, 10),
    "scifar": (1024, 3, 10),
    "image": (1024, 1, 10),
    "pathfinder": (1024, 1, 2),
    "path-x": (16384, 1, 2),
    "sc35": (16000, 1, 35),
    "sc10": (16000, 1, 10),
}
TOKENS = {"listops": (2048, 18, 10), "text": (4096, 135, 2), "retrieval": (4000, 98, 2)}  # length, vocabulary, classes
SERIES = {"etth1": (7, 4), "etth2": (7, 4), "ettm1": (7, 5), "weather": (12, 4), "ecl": (321, 4)}  # columns, marks
IMAGES = {"cifar-density": (3072, 3, 256), "mnist-density": (784, 1, 256), "digits-density": (64, 1, 17)}
TEXTS = {"own-text": (256, "characters", 66), "enwik8": (1024, "bytes", 256)}  # length, unit, vocabulary
LENGTH = 25  # of the batches: that of a square image, too
WORDS = {"wikitext103": 267_735, "wikitext2": 33_278}


def info(recipe):
    """What the recipe's dataset would say of itself."""
    data = recipe.data
    name = data["name"]
    if name in TOKENS:
        length, vocabulary, d_output = TOKENS[name]
        if data.get("find"):
            return Info("masked", data.get("length", length), None, vocabulary, vocabulary)
        task = "retrieval" if name == "retrieval" else "classification"
        return Info(task, data.get("length", length), None, vocabulary, d_output)
    if name in WORDS:
        return Info("language", data["length"], None, WORDS[name], WORDS[name])
    if name in TEXTS:
        length, unit, vocabulary = TEXTS[name]
        tokens = tuple(map(chr, range(0xFFFD, 0xFFFD - vocabulary, -1))) if unit == "characters" else ()
        return Info("language", data.get("length", length), None, vocabulary, vocabulary, tokens, unit=unit)
    if name in IMAGES:
        length, channels, values = IMAGES[name]
        return Info("density", length, None, 1 + channels * values, values)
    if name in SERIES:
        columns, d_marks = SERIES[name]
        width = {"S": 1, "M": columns}[data["features"]]
        return Info(
            "forecast", data["context"] + data["horizon"], width, None, width, horizon=data["horizon"], d_marks=d_marks
        )
    if name.startswith("bidmc-"):
        return Info("regression", 4000, 2, None, 1)
    length, d_input, d_output = SIGNALS[name]
    if data.get("features") == "mfcc":
        length, d_input = 161, 20
    return Info("classification", length, d_input, None, d_output)


def shrink(recipe):
    """Overrides that make the recipe's model tiny; its structure stays."""
    changes = ["model.d_model=8"]
    if "n_layers" in recipe.model:
        changes += ["model.d_state=4", "model.n_layers=1"]
    if "length" in recipe.model:
        changes.append(f"model.length={LENGTH}")
    if recipe.data["name"] in WORDS:
        changes += ["model.d_model=16", "model.cutoffs=[10, 20]"]  # each cluster is a quarter as wide
    if recipe.data["name"] in SERIES:
        changes += ["data.context=20", "data.horizon=4"]
    if "softmax_length" in recipe.model.get("ssm", {}):
        changes.append("model.ssm.softmax_length=24")
    return changes


def batch(about, size=3):
    """A batch of short sequences for an ``info``, and the info that fits it."""
    length = 96 if about.task == "density" else LENGTH  # the U-Net folds by 3, 4 and 4, and the first fold sees nothing
    if about.task == "language" and not about.unit:
        about = replace(about, vocabulary=30, d_output=30)
    rows = 2 * size if about.task == "retrieval" else size
    x = torch.randn(rows, length, about.d_input) if about.d_input else torch.randint(about.vocabulary, (rows, length))
    lengths = marks = None
    if about.task in ("classification", "retrieval"):
        y = torch.randint(about.d_output, (size,))
        if about.vocabulary:
            lengths = torch.arange(length - rows + 1, length + 1)
    elif about.task == "regression":
        y = torch.randn(size, about.d_output)
    elif about.task == "forecast":
        y, marks = torch.randn(size, about.horizon, about.d_output), torch.randn(size, length, about.d_marks)
    else:
        y = torch.randint(about.d_output, (size, length))
    return Batch(x, y, lengths, marks), about
