"""Layers on whole sequences and on shards of them: outputs, states and every gradient by name."""

import copy
import random
from dataclasses import dataclass

import torch

from tests.nn.make import LAYERS, random_state

OTHERS = ("y", "x", "after", "state")
"""Results that are no gradients of parameters."""
BOUNDS = {torch.float64: 1e-11, torch.float32: 2e-6}


@dataclass(frozen=True)
class Case:
    """One layer on one batch; everything random comes from the seed."""

    number: int
    layer: int
    sizes: tuple[int, ...]
    bidirectional: bool = False
    prefill: bool = False
    padded: bool = False
    channels: int = 1
    dtype: torch.dtype = torch.float64
    dt_scale: float = 1.0

    @property
    def total(self):
        return sum(self.sizes)

    def make(self):
        """The layer, its input, the weights of its outputs in the loss, lengths and a state."""
        torch.manual_seed(self.number)
        cls, options = LAYERS[self.layer]
        options = {**options, "bidirectional": self.bidirectional, "channels": self.channels, "dtype": self.dtype}
        layer = cls(4, 8, **options)
        x, w = torch.randn(2, 2, self.total, 4, dtype=self.dtype)
        lengths = torch.randint(self.total + 1, (2,)) if self.padded else None
        state = random_state(layer, 2) if self.prefill else None
        return layer, x, w, lengths, state


def draw(number, size):
    """A random case for this many ranks."""
    at = random.Random(number)
    layer, bidirectional = at.randrange(len(LAYERS)), at.random() < 0.4
    sizes = tuple(at.choice((1, at.randint(2, 9), at.randint(10, 60))) for _ in range(size))
    return Case(
        number, layer, sizes, bidirectional, not bidirectional and at.random() < 0.5, at.random() < 0.4,
        at.choice((1, 1, 2)), at.choice((torch.float64, torch.float32)), at.choice((1.0, 1.0, 0.5)),
    )  # fmt: skip


def results(case, made, shards=None):
    """Outputs and gradients on whole sequences, or on this rank's shards of them; ``made`` is of ``case.make()``."""
    layer, x, w, lengths, state = made
    layer, state = copy.deepcopy(layer), None if state is None else state.clone()
    if shards is not None:
        x, w = (shards.shard(part, sizes=case.sizes) for part in (x, w))
    x = x.clone().requires_grad_()
    found = {}
    if case.prefill:
        state.requires_grad_()
        y, after = layer.prefill(x, state, lengths=lengths, dt_scale=case.dt_scale)
        found["after"] = after.detach()
        loss = (y * w).sum()
        if shards is None or shards.ranks.rank == 0:  # the sum of the ranks' losses counts it once
            loss = loss + after.sin().sum()
    else:
        y = layer(x, lengths=lengths, dt_scale=case.dt_scale)
        loss = (y * w).sum()
    loss.backward()
    found |= {"y": y.detach(), "x": x.grad}
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    if shards is not None:
        shards.reduce_gradients(layer)
        gradients = {name: gradient * shards.ranks.size for name, gradient in gradients.items()}
    if case.prefill:
        found["state"] = state.grad
    return found | gradients


def joined(parts):
    """The results of all ranks as those of whole sequences; what each rank has must be the same bits."""
    found = {}
    for name, first in parts[0].items():
        each = [part[name] for part in parts]
        if name in ("y", "x"):
            found[name] = torch.cat(each, 1)
        elif name == "state":
            found[name] = sum(each)
        else:
            found[name] = first
            assert all(torch.equal(first, other) for other in each), name
    return found


def exact(case, made):
    """The results on whole sequences in float64, of the same float32 numbers."""
    wide = (part if part is None or part.dtype == torch.int64 else part.double() for part in made[1:])
    return results(case, (copy.deepcopy(made[0]).double(), *wide))


def assert_near_one_process(got, case, made):
    """As :func:`assert_same`; float32 results may be as far from one process as that is from float64."""
    wanted = results(case, made)
    try:
        assert_same(got, wanted, BOUNDS[case.dtype], case)
    except AssertionError:
        if case.dtype == torch.float64:
            raise
        for name, value in exact(case, made).items():
            rounding = (wanted[name] - value).abs().max().item()
            bound = BOUNDS[case.dtype] * value.abs().max().item() + 2 * rounding
            assert (got[name] - value).abs().max().item() <= bound, (name, case, rounding)


def assert_same(got, wanted, bound, what):
    """Each result is near the one wanted. In float32 gradients of parameters count beside the largest of them.

    There one process is as far from float64 where a gradient is a sum that cancels.
    """
    assert got.keys() == wanted.keys()
    largest = max((v.abs().max().item() for n, v in wanted.items() if n not in OTHERS), default=0.0)
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype, name
        assert got[name].shape == value.shape, name
        difference, peak = (got[name] - value).abs().max().item(), value.abs().max().item()
        if name not in OTHERS:  # a bias before a batch norm has none, but for rounding
            peak = largest if value.dtype == torch.float32 else max(peak, 1e-3 * largest)
        assert difference <= bound * peak, f"{what}: {name} differs by {difference:.2e} of {peak:.2e}"
