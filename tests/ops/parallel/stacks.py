"""Whole models and their losses, on whole sequences or on shards."""

import copy
from functools import cache

import torch
from torch.nn.functional import cross_entropy, mse_loss

from statespan.models import Classifier, ClassifierConfig, LanguageConfig, LanguageModel, Regressor

TOTAL, SIZES = 47, {2: (20, 27), 4: (1, 25, 9, 12)}
LENGTHS = {"no padding": None, "padding": (47, 3, 21, 30)}


def classifier(pool, norm, bidirectional):
    torch.manual_seed(1)
    config = ClassifierConfig(
        d_input=2, d_output=3, d_model=8, n_layers=2, layer="s4d", norm=norm, pool=pool, bidirectional=bidirectional
    )  # fmt: skip
    return (Regressor if pool == "first" else Classifier)(config, dtype=torch.float64)


def language():
    torch.manual_seed(2)
    config = LanguageConfig(vocabulary=20, d_model=8, n_layers=1, layer="s4", norm="batch", cutoffs=(5, 10), div_val=2)
    return LanguageModel(config, dtype=torch.float64)


MODELS = {
    "mean": lambda: classifier("mean", "batch", True),
    "last": lambda: classifier("last", "layer", False),
    "first": lambda: classifier("first", "batch", True),
    "language": language,
}


@cache  # made once, before threads that share the random numbers
def batch(name):
    torch.manual_seed(3)
    if name == "language":
        text = torch.randint(20, (4, TOTAL + 1))
        return text[:, :-1], text[:, 1:]
    x = torch.randn(4, TOTAL, 2, dtype=torch.float64)
    return x, torch.randn(4, 3, dtype=torch.float64) if name == "first" else torch.tensor([0, 2, 1, 2])


def whole_loss(name, model, x, y, *, lengths=None, shards=None):
    """The loss of whole sequences, the same on every rank."""
    if name != "language":
        return (mse_loss if name == "first" else cross_entropy)(model(x, lengths=lengths), y)
    losses = model.token_losses(x, y, lengths=lengths)
    if shards is not None:
        return shards.mean(losses, lengths=lengths)
    return losses.sum() / (y.numel() if lengths is None else sum(lengths))


def trained(name, made, lengths, shards=None):
    """The loss, each gradient, and the running statistics after a step in training."""
    model, (x, y) = copy.deepcopy(made), batch(name)
    if shards is not None:
        sizes = SIZES[shards.ranks.size]
        x = shards.shard(x, sizes=sizes)
        y = shards.shard(y, sizes=sizes) if name == "language" else y
    loss = whole_loss(name, model, x, y, lengths=lengths, shards=shards)
    loss.backward()
    if shards is not None:
        shards.reduce_gradients(model)
    found = {key: parameter.grad for key, parameter in model.named_parameters()}
    return {"loss": loss.detach()} | found | {f"{key} of the norms": value for key, value in model.named_buffers()}
