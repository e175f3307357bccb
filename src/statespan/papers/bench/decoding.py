"""Steps of generation: what `table7`, `table8` and `step` measure.

Shapes: B batch, T tokens, D features, V tokens of a vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from statespan.generation.capture import Captured, CudaRecorder
from statespan.generation.loop import Decoding
from statespan.generation.rules import rule_of
from statespan.generation.sampling import Sampling
from statespan.generation.tree import leaves
from statespan.papers.bench.case import Floor, Settings, Tensors, Work

STATE = torch.float32
CHECKED = 2
"""Sequences of the comparison with the parallel model."""


def steps_work(
    model: Any, settings: Settings, batch: int, steps: int, *, tokens: Tensor, state: Any = None, graph: bool = True
) -> Work:
    """Steps of a model with the choice of a token in each, as a CUDA graph where there is one.

    Args:
        model: A model of tokens, on the device and in the precision to measure.
        settings: The user's choices.
        batch: B.
        steps: Steps of a run.
        tokens: What is read in the comparison with the parallel model (CHECKED, T).
        state: To start from; None for zeros.
        graph: Whether to capture the steps.
    """
    device = settings.device
    before = _allocated(device) - sum(p.nbytes for p in model.parameters())
    walk = _walk(model, batch, steps, state, device)
    advance: Callable[[], None] = walk.advance
    if graph and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        advance = Captured(walk.advance, walk.host, CudaRecorder(device))

    @torch.no_grad()
    def run() -> Tensors:
        walk.index.zero_()
        for _ in range(steps):
            advance()
        return {"output": walk.last}

    for _ in range(2):  # once as they are, once recorded
        run()
    peak = None if device.type == "cpu" else torch.cuda.max_memory_allocated(device) - before
    parameters = sum(p.numel() for p in model.parameters())
    return Work(run, lambda: parallel(model, tokens, settings.wide), parameters, peak, lambda: stepped(model, tokens))


@torch.no_grad()
def _walk(model: Any, batch: int, steps: int, state: Any, device: torch.device) -> Decoding:
    """A walk from a state, whose first token is drawn from nothing; there is room for all tokens of a run."""
    rule = rule_of(model, Sampling())
    state = model.initial_state(batch, dtype=STATE) if state is None else state
    rows, position = torch.arange(batch, device=device), torch.zeros(batch, dtype=torch.int64, device=device)
    walk = Decoding(model, rule, steps + 1)
    walk.begin(state, position=position, rows=rows)
    width = model.config.d_model if not rule.decode else getattr(model.config, "d_output", model.config.vocabulary)
    dtype = next(model.parameters()).dtype
    walk.start(torch.randn(batch, width, device=device).to(dtype))
    return walk


@torch.no_grad()
def stepped(model: Any, tokens: Tensor) -> Tensors:
    """The outputs of steps through tokens (B, T), as they are taken in generation."""
    step, state, outputs = model.stepper(in_place=True), model.initial_state(len(tokens), dtype=STATE), []
    for t in range(tokens.shape[1]):
        y, new = step(tokens[:, t], state)
        outputs.append(y.float().log_softmax(-1))
        state = new
    return {"output": torch.stack(outputs, 1)}


@torch.no_grad()
def parallel(model: Any, tokens: Tensor, wide: torch.dtype) -> Tensors:
    """The same by one pass of a copy in wide precision."""
    return {"output": copy.deepcopy(model).to(wide)(tokens).double().log_softmax(-1)}


def step_floor(model: nn.Module, batch: int, read: Iterable[tuple[Any, float]], itemsize: int, steps: int = 1) -> Floor:
    """The floor of steps: all weights are read, all states read and written, and each weight multiplies each row.

    Args:
        model: On any device.
        batch: B.
        read: States of one row, and how many of them are read and written in a step (1 for every step).
        itemsize: Bytes of a weight.
        steps: How many.
    """
    weights = sum(p.numel() for p in model.parameters())
    states = sum(share * sum(leaf.numel() * 4 for leaf in leaves(state)) for state, share in read)
    return Floor(
        bytes=steps * (itemsize * weights + 2.0 * batch * states),
        flops=2.0 * steps * batch * weights,
        how="weights read once a step, float32 states of all rows read and written; a product with each weight",
    )


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
