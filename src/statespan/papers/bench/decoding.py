"""Generation steps of our models, as measured by `s4_table7` and `s4_table8`.

Shapes: B batch, T tokens, D features, V tokens of a vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from statespan.generation.capture import Captured, CudaRecorder
from statespan.generation.loop import Decoding
from statespan.generation.rules import rule_of
from statespan.generation.sampling import Sampling
from statespan.generation.tree import leaves
from statespan.papers.bench.case import BenchOptions, Floor, Tensors, Work, count_parameters
from statespan.papers.bench.measure import allocated, peak_over, reset_peak

STATE = torch.float32
SEQUENCES_COMPARED = 2  # with the parallel model


def steps_work(
    model: Any, options: BenchOptions, batch: int, steps: int = 1, *, length: int, state: Any = None, graph: bool = True
) -> Work:
    """Generation steps of a token model, each with sampling, as a CUDA graph on a GPU.

    They start from ``state``, or from zeros. Steps through ``length`` tokens are compared with the parallel model.
    """
    device = options.device
    tokens = torch.randint(model.config.vocabulary, (SEQUENCES_COMPARED, length), device=device)
    before = allocated(device) - sum(p.nbytes for p in model.parameters())
    decoding = _decoding(model, batch, steps, state)
    reset_peak(device)
    advance: Callable[[], None] = decoding.advance
    if graph and device.type == "cuda":
        advance = Captured(decoding.advance, decoding.host, CudaRecorder(device))

    @torch.no_grad()
    def run() -> Tensors:
        decoding.index.zero_()
        for _ in range(steps):
            advance()
        return {"output": decoding.last}

    @torch.no_grad()
    def stepped() -> Tensors:
        step, state, outputs = model.stepper(in_place=True), model.initial_state(len(tokens), dtype=STATE), []
        for t in range(tokens.shape[1]):
            y, state = step(tokens[:, t], state)
            outputs.append(y.float().log_softmax(-1))
        return {"output": torch.stack(outputs, 1)}

    @torch.no_grad()
    def parallel() -> Tensors:
        return {"output": copy.deepcopy(model).to(options.wide)(tokens).double().log_softmax(-1)}

    for _ in range(2):  # once eagerly, once to record them
        run()
    return Work(run, parallel, count_parameters(model), peak_over(before, device), stepped)


@torch.no_grad()
def _decoding(model: Any, batch: int, steps: int, state: Any) -> Decoding:
    """A decoding run from a state with an arbitrary first token and room for all its tokens."""
    like = next(model.parameters())
    rule = rule_of(model, Sampling())
    state = model.initial_state(batch, dtype=STATE) if state is None else state
    rows = torch.arange(batch, device=like.device)
    position = torch.zeros(batch, dtype=torch.int64, device=like.device)
    decoding = Decoding(model, rule, steps + 1)
    decoding.begin(state, position=position, rows=rows)
    width = model.config.d_model if not rule.decode else getattr(model.config, "d_output", model.config.vocabulary)
    decoding.start(torch.randn(batch, width, device=like.device).to(like.dtype))
    return decoding


def step_floor(
    model: nn.Module, batch: int, read: Iterable[tuple[Any, float]], *, itemsize: int, steps: int = 1
) -> Floor:
    """The floor of steps: all weights are read, all states read and written, and each weight multiplies each row.

    ``read`` are the states of one row, and the share of the steps in which each is read and written.
    """
    weights = count_parameters(model)
    states = sum(share * sum(leaf.numel() * 4 for leaf in leaves(state)) for state, share in read)
    return Floor(
        bytes=steps * (itemsize * weights + 2.0 * batch * states),
        flops=2.0 * steps * batch * weights,
        how="weights read once a step, float32 states of all rows read and written; a product with each weight",
    )
