"""Generating: one parallel pass over the prompt, then step after step, each choice read by the next step.

Shapes: B batch, P length of a prompt, K values of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan._check import check_finite, check_int, check_lengths
from statespan.generation.capture import Captured, CudaRecorder
from statespan.generation.forecast import forecast
from statespan.generation.noise import uniforms
from statespan.generation.rules import Choice, Rule, rule_of
from statespan.generation.sampling import Sampling
from statespan.generation.tree import leaves, map_leaves, settle
from statespan.models import Forecaster
from statespan.models.tokens import TokenModel

BLOCK = 256  # steps whose random numbers are made at a time
WORTH = 16  # steps from which on recording one pays

Callback = Callable[[int, Tensor], Any]


class Generated(NamedTuple):
    """What was generated."""

    values: Tensor
    """Tokens or pixel values (B, steps), int64; samples of series (B, steps, K)."""
    log_probs: Tensor
    """The model's own log-probability of each (B, steps), before temperature and cut-offs; 0 for series."""


@torch.no_grad()
def generate(
    model: Any,
    prompt: Tensor | None,
    steps: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int = 0,
    callback: Callback | None = None,
    batch: int | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    rows: Tensor | Sequence[int] | None = None,
    marks: Tensor | None = None,
    dt_scale: float = 1.0,
    state_dtype: torch.dtype | None = None,
    graph: bool = True,
) -> Generated:
    """Continue sequences, in constant time and memory a step.

    The random numbers of a sequence depend on ``seed`` and the number of its row alone: they are the same in any batch,
    with and without a CUDA graph. The model's outputs agree to rounding, 2e-6 of their peak in float32; so tokens are
    the same unless a random number falls within that distance of the border between two of them. Series read their own
    roundings again.

    Args:
        model: A language model, a pixel model, a forecaster, or a regressor that predicts the next sample of its own
            input; in evaluation mode.
        prompt: What comes before: tokens (B, P ≥ 1); pixel values (B, P ≥ 0), or None for whole images; samples
            (B, P ≥ 1, K).
        steps: How many to generate.
        temperature: See :class:`Sampling`, as for the next three; 0 takes the likeliest token.
        top_k: Tokens to choose from.
        top_p: Probability of the tokens to choose from.
        min_p: Least probability of a token to choose, over that of the likeliest.
        seed: At least 0.
        callback: Called after each step with its number and values (B,) or (B, K); one that returns True ends it.
        batch: How many images, where there is no prompt.
        lengths: True length of each prompt (B,); what follows is ignored.
        rows: Number of each row (B,), for the random numbers; 0, 1, … by default. Give the rows of a large batch their
            numbers to generate it in pieces.
        marks: Calendar features (B, P + steps, M), for a forecaster that has some.
        dt_scale: Step of the data relative to that of training.
        state_dtype: Of the SSMs' states, float32 or float64; None for float32 in S4, and float64 in what needs it to
            stay within 2e-6 of the parallel model (see ``SSMLayer.initial_state``).
        graph: Use CUDA graphs on a GPU.

    Returns:
        The values and their log-probabilities.

    Example:
        >>> from statespan.models import LanguageConfig, LanguageModel
        >>> model = LanguageModel(LanguageConfig(vocabulary=50, d_model=16, n_layers=1)).eval()
        >>> tokens, log_probs = generate(model, torch.tensor([[3, 4], [5, 6]]), steps=10, top_p=0.9, seed=1)
        >>> tokens.shape
        torch.Size([2, 10])
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a statespan model, got {type(model).__name__}")
    return _generate(
        model, prompt, check_int("steps", steps, minimum=1), Sampling(temperature, top_k, top_p, min_p), seed, callback,
        batch, lengths, rows, marks, dt_scale, state_dtype, graph,
    )  # fmt: skip


def _generate(
    model: Any, prompt: Tensor | None, steps: int, sampling: Sampling, seed: int, callback: Callback | None,
    batch: int | None, lengths: Tensor | Sequence[int] | None, rows: Tensor | Sequence[int] | None,
    marks: Tensor | None, dt_scale: float, state_dtype: torch.dtype | None, graph: bool,
) -> Generated:  # fmt: skip
    if model.training:
        raise ValueError("model must be in evaluation mode, got training mode: call model.eval() first")
    if isinstance(model, Forecaster):
        values = forecast(model, prompt, steps, marks=marks, lengths=lengths, dt_scale=dt_scale, callback=callback)
        return Generated(values, values.new_zeros(values.shape[:2], dtype=torch.float32))
    if marks is not None:
        raise ValueError(f"marks must be None for a {type(model).__name__}, got a tensor")
    rule = rule_of(model, sampling)
    device = next(model.parameters()).device
    read = rule.prompt(prompt if prompt is None else prompt.to(device), batch).to(device)
    size = read.shape[0]
    numbers = _rows(rows, size).to(device)
    ends = None
    if lengths is not None:
        ends = check_lengths(lengths, size, read.shape[1] - rule.start).to(device) + rule.start
    if read.is_floating_point():
        inside = None if ends is None else (torch.arange(read.shape[1], device=device) < ends[:, None])[..., None]
        check_finite("prompt", read, inside)
    state = model.initial_state(size, dtype=state_dtype)
    only_last: dict[str, bool] = {"last": True} if isinstance(model, TokenModel) else {}
    if not rule.decode:
        only_last["decode"] = False
    outputs, state = model.prefill(read, state, lengths=ends, dt_scale=dt_scale, **only_last)
    seen = torch.full((size,), read.shape[1], device=device) if ends is None else ends
    walk = Walk(model, rule, state, seen - rule.start, numbers, seed, steps, dt_scale)
    walk.start(outputs)
    advance: Callable[[], None] = walk.advance
    if graph and device.type == "cuda" and walk.together and steps >= WORTH:
        advance = Captured(walk.advance, walk.host, CudaRecorder(device))
    done = 1
    while not (callback is not None and callback(done - 1, walk.values[done - 1])) and done < steps:
        walk.refill(done)
        advance()
        done += 1
    return Generated(walk.values[:done].transpose(0, 1).contiguous(), walk.scores[:done].T.contiguous())


class Walk:
    """The fixed tensors of a run, and the step that changes them in place.

    Args:
        model: The model.
        rule: How it generates.
        state: Its state after the prompt.
        position: Values of each row before the first one to generate (B,).
        rows: Number of each row (B,).
        seed: Of the random numbers.
        steps: How many values there will be.
        dt_scale: Step of the data relative to that of training.
    """

    def __init__(
        self, model: Any, rule: Rule, state: Any, position: Tensor, rows: Tensor, seed: int, steps: int, dt_scale: float
    ) -> None:
        state = map_leaves(Tensor.contiguous, state)  # which is what can be written in place
        self.rule, self.state, self.seed, self.rows = rule, state, seed, rows
        device = position.device
        self.host = [leaf for leaf in leaves(state) if leaf.device != device]
        self.together = all(bool((leaf == leaf[:1]).all()) for leaf in _counters(state))
        options = {} if rule.decode else {"decode": False}
        self.step = model.stepper(dt_scale, in_place=self.together, **options)
        self.first, self.position, self.steps = position.clone(), position.clone(), steps
        self.index = torch.zeros(1, dtype=torch.int64, device=device)
        self.table = torch.zeros(min(BLOCK, steps), len(rows), dtype=torch.float64, device=device)
        self.read = self.values = self.scores = torch.empty(0)

    def start(self, outputs: Tensor) -> None:
        """Choose the first value from what came of the prompt (B, K)."""
        self.refill(0)
        choice = self.rule.choose(outputs, self.position, self.table[0])
        value, score, read = choice
        self.values = value.new_zeros(self.steps, *value.shape)
        self.scores = score.new_zeros(self.steps, *score.shape)
        self.read = read.clone()
        self._keep(choice)

    def refill(self, done: int) -> None:
        """Make the random numbers of the next steps where those before are used up."""
        if done % len(self.table):
            return
        ahead = done + torch.arange(len(self.table), device=self.first.device)
        self.table.copy_(uniforms(self.seed, self.rows, self.first + ahead[:, None]))

    def advance(self) -> None:
        """One step of the model and the choice after it."""
        outputs, new = self.step(self.read, self.state)
        settle(self.state, new)
        self.index.add_(1)
        self.position.add_(1)
        uniform = self.table.index_select(0, self.index % len(self.table))[0]
        self._keep(self.rule.choose(outputs, self.position, uniform))

    def _keep(self, choice: Choice) -> None:
        self.values.index_copy_(0, self.index, choice.value[None])
        self.scores.index_copy_(0, self.index, choice.score[None])
        self.read.copy_(choice.read)


def _counters(state: Any) -> list[Tensor]:
    """Positions in frames, which are whole numbers and on the CPU; those of a pool only count."""
    return [leaf for leaf in leaves(state) if leaf.dtype == torch.int64 and len(leaf)]


def _rows(rows: Tensor | Sequence[int] | None, size: int) -> Tensor:
    if rows is None:
        return torch.arange(size)
    numbers = rows if isinstance(rows, Tensor) else torch.tensor(list(rows))
    if numbers.dtype != torch.int64 or numbers.shape != (size,):
        raise ValueError(f"rows must be {size} whole numbers, one for each sequence, got {rows!r}")
    if size and not (int(numbers.min()) >= 0 and int(numbers.max()) < 1 << 32):
        raise ValueError(f"rows must be numbers >= 0 and < 2**32, got {rows!r}")
    return numbers
