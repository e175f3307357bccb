"""Generation: one parallel pass over the prompt, then one step per position, each fed the previous choice.

The random numbers of a sequence depend on the seed and the number of its row alone: they are the same in any batch,
with and without a CUDA graph. The model's outputs agree to rounding, 2e-6 of their peak in float32; so tokens are the
same unless a random number falls within that distance of the border between two of them. Series read their own
roundings again.

Shapes: B batch, P length of a prompt, K values of a sample, M calendar features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan._check import check_finite, check_int, check_lengths, check_tensor
from statespan.generation.capture import Captured, CudaRecorder
from statespan.generation.noise import uniforms
from statespan.generation.rules import NextValue, Rule, rule_of
from statespan.generation.sampling import Sampling
from statespan.generation.tree import leaves, map_leaves, settle
from statespan.models import Forecaster
from statespan.models.tokens import TokenModel
from statespan.nn.padding import Padding
from statespan.nn.threads import few_threads, threads_for

RANDOM_STEPS = 256  # steps whose random numbers are made at a time
GRAPH_STEPS = 16  # fewer steps are not worth a CUDA graph

Callback = Callable[[int, Tensor], Any]


class Generated(NamedTuple):
    """Generated sequences.

    Example:
        >>> from statespan.models import LanguageConfig, LanguageModel
        >>> config = LanguageConfig(vocabulary=100, d_model=8, d_state=4, n_layers=1)
        >>> generated = generate(LanguageModel(config).eval(), torch.zeros(2, 3, dtype=torch.int64), steps=5)
        >>> generated.values.shape, bool((generated.log_probs < 0).all())
        (torch.Size([2, 5]), True)
    """

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
    """Continue sequences in constant time and memory per step; see the module for what the random numbers depend on.

    Args:
        model: A language model, a pixel model, a forecaster, or a regressor of its own next input; in evaluation mode.
        prompt: Tokens (B, P ≥ 1); pixel values (B, P ≥ 0), or None for whole images; samples (B, P ≥ 1, K).
        steps: How many to generate.
        temperature: See :class:`Sampling`, as for the next three; 0 takes the likeliest token.
        top_k: Tokens to choose from.
        top_p: Probability of the tokens to choose from.
        min_p: Least probability of a token to choose, over that of the likeliest.
        seed: At least 0.
        callback: Called after each step with its number and values (B,) or (B, K); one that returns True ends it.
        batch: How many images, where there is no prompt.
        lengths: True length of each prompt (B,); padding is ignored.
        rows: Number of each row (B,), for the random numbers, so that a batch can be generated in pieces; 0, 1, … if
            None.
        marks: Calendar features (B, P + steps, M), for a forecaster that has any.
        dt_scale: Step of the data relative to that of training.
        state_dtype: Of the SSMs' states; None for the smallest that is exact, see ``SSMLayer.initial_state``.
        graph: Use CUDA graphs on a GPU.

    Example:
        >>> from statespan.models import LanguageConfig, LanguageModel
        >>> model = LanguageModel(LanguageConfig(vocabulary=50, d_model=16, n_layers=1)).eval()
        >>> generate(model, torch.tensor([[3, 4], [5, 6]]), steps=10, top_p=0.9, seed=1).values.shape
        torch.Size([2, 10])
    """
    _check_model(model, marks)
    check_int("steps", steps, minimum=1)
    if isinstance(model, Forecaster):
        values = _forecast(model, prompt, steps, marks=marks, lengths=lengths, dt_scale=dt_scale, callback=callback)
        return Generated(values, values.new_zeros(values.shape[:2], dtype=torch.float32))
    rule = rule_of(model, Sampling(temperature, top_k, top_p, min_p))
    decoding = Decoding(model, rule, steps, seed=seed, dt_scale=dt_scale)
    decoding.read(prompt, batch=batch, lengths=lengths, rows=rows, state_dtype=state_dtype)
    return decoding.run(callback, graph=graph)


def _check_model(model: Any, marks: Tensor | None) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a statespan model, got {type(model).__name__}")
    if model.training:
        raise ValueError("model must be in evaluation mode, got training mode: call model.eval() first")
    if marks is not None and not isinstance(model, Forecaster):
        raise ValueError(f"marks must be None for a {type(model).__name__}, got a tensor")


def _forecast(
    model: Forecaster,
    past: Tensor | None,
    steps: int,
    *,
    marks: Tensor | None,
    lengths: Tensor | Sequence[int] | None,
    dt_scale: float,
    callback: Callback | None,
) -> Tensor:
    """Forecast values (B, steps, K) after the past (B, P, d_input).

    The model's own forecast, one position at a time, so it need not end at the horizon it was trained for. Its inputs
    are masked, so nothing is fed back.
    """
    config, like = model.config, next(model.parameters())
    past = check_tensor("prompt", past, ("batch", "length", config.d_input), kind="float")
    batch, length, _ = past.shape
    if lengths is not None and config.d_marks:
        raise ValueError("lengths must be None with marks, which have fixed positions, got lengths")
    if marks is not None:
        marks = check_tensor("marks", marks, (batch, length + steps, config.d_marks), kind="float").to(like.device)
    past = past.to(like.device, like.dtype)
    padding = Padding.of(past, lengths)
    check_finite("prompt", past, None if padding is None else padding.mask)
    early = None if marks is None else marks[:, :length]
    with few_threads(model, batch, length):
        _, state = model.prefill(past, marks=early, lengths=padding, dt_scale=dt_scale)
    step, masked, values = model.stepper(dt_scale, in_place=True), past.new_zeros(batch, config.d_input), []
    with threads_for(model, _largest(state)):
        for i in range(steps):
            y, state = step(masked, state, None if marks is None else marks[:, length + i], future=True)
            values.append(y)
            if callback is not None and callback(i, y):
                break
    return torch.stack(values, 1)


class Decoding:
    """A run of decoding: fixed tensors, and the step that changes them in place.

    Example:
        >>> from statespan.generation.rules import rule_of
        >>> from statespan.generation.sampling import Sampling
        >>> from statespan.models import LanguageConfig, LanguageModel
        >>> model = LanguageModel(LanguageConfig(vocabulary=100, d_model=8, d_state=4, n_layers=1)).eval()
        >>> decoding = Decoding(model, rule_of(model, Sampling()), steps=5)
        >>> none = dict.fromkeys(("batch", "lengths", "rows", "state_dtype"))
        >>> with torch.no_grad():
        ...     decoding.read(torch.zeros(2, 3, dtype=torch.int64), **none)
        ...     decoding.run(None, graph=False).values.shape
        torch.Size([2, 5])
    """

    def __init__(self, model: Any, rule: Rule, steps: int, *, seed: int = 0, dt_scale: float = 1.0) -> None:
        self.model, self.rule, self.steps, self.seed, self.dt_scale = model, rule, steps, seed, dt_scale

    def read(
        self,
        prompt: Tensor | None,
        *,
        batch: int | None,
        lengths: Tensor | Sequence[int] | None,
        rows: Tensor | Sequence[int] | None,
        state_dtype: torch.dtype | None,
    ) -> None:
        """Read a prompt and choose the first value; the arguments are those of :func:`generate`."""
        model, rule, device = self.model, self.rule, next(self.model.parameters()).device
        x = rule.prompt(prompt if prompt is None else prompt.to(device), batch).to(device)
        count, length = x.shape[:2]
        numbers, padding = _row_numbers(rows, count).to(device), None
        if lengths is not None:
            padding = Padding.to(check_lengths(lengths, count, length - rule.start).to(device) + rule.start, length)
        if x.is_floating_point():
            check_finite("prompt", x, None if padding is None else padding.mask)
        state = model.initial_state(count, dtype=state_dtype)
        options: dict[str, bool] = {"last": True} if isinstance(model, TokenModel) else {}
        if not rule.decode:
            options["decode"] = False
        with few_threads(model, count, length):
            outputs, state = model.prefill(x, state, lengths=padding, dt_scale=self.dt_scale, **options)
        seen = torch.full((count,), length, device=device) if padding is None else padding.lengths
        self.begin(state, position=seen - rule.start, rows=numbers)
        self.start(outputs)

    def begin(self, state: Any, *, position: Tensor, rows: Tensor) -> None:
        """Start from the state after prompts of ``position`` (B,) values, in rows of these numbers (B,)."""
        self.state = map_leaves(Tensor.contiguous, state)  # only contiguous tensors can be written in place
        self.rows, device = rows, position.device
        self.host = [leaf for leaf in leaves(self.state) if leaf.device != device]
        self.together = all(bool((leaf == leaf[:1]).all()) for leaf in _counters(self.state))
        options = {} if self.rule.decode else {"decode": False}
        self.step = self.model.stepper(self.dt_scale, in_place=self.together, **options)
        self.first, self.position = position.clone(), position.clone()
        self.index = torch.zeros(1, dtype=torch.int64, device=device)
        self.table = torch.zeros(min(RANDOM_STEPS, self.steps), len(rows), dtype=torch.float64, device=device)

    def start(self, outputs: Tensor) -> None:
        """Choose the first value from the outputs (B, K) for the prompt."""
        self._refill(0)
        choice = self.rule.choose(outputs, self.position, self.table[0])
        value, score, read = choice
        self.values = value.new_zeros(self.steps, *value.shape)
        self.scores = score.new_zeros(self.steps, *score.shape)
        self.last = read.clone()
        self._keep(choice)

    def advance(self) -> None:
        """One step of the model and the choice after it."""
        outputs, new = self.step(self.last, self.state)
        settle(self.state, new)
        self.index.add_(1)
        self.position.add_(1)
        uniform = self.table.index_select(0, self.index % len(self.table))[0]
        self._keep(self.rule.choose(outputs, self.position, uniform))

    def run(self, callback: Callback | None, *, graph: bool) -> Generated:
        """Run all steps, or stop when the callback returns True."""
        advance: Callable[[], None] = self.advance
        if graph and self.index.is_cuda and self.together and self.steps >= GRAPH_STEPS:
            advance = Captured(self.advance, self.host, CudaRecorder(self.index.device))
        done = 1
        with threads_for(self.model, _largest(self.state)):
            while not (callback is not None and callback(done - 1, self.values[done - 1])) and done < self.steps:
                self._refill(done)
                advance()
                done += 1
        return Generated(self.values[:done].transpose(0, 1).contiguous(), self.scores[:done].T.contiguous())

    def _refill(self, done: int) -> None:
        """Refill the random numbers when they are used up."""
        if done % len(self.table):
            return
        ahead = done + torch.arange(len(self.table), device=self.first.device)
        self.table.copy_(uniforms(self.seed, self.rows, self.first + ahead[:, None]))

    def _keep(self, choice: NextValue) -> None:
        self.values.index_copy_(0, self.index, choice.value[None])
        self.scores.index_copy_(0, self.index, choice.score[None])
        self.last.copy_(choice.read)


def _largest(state: Any) -> int:
    """The size of the largest tensor of a state."""
    return max((leaf.numel() for leaf in leaves(state)), default=0)


def _counters(state: Any) -> list[Tensor]:
    """Positions in frames: integers on the CPU, except those of a pool, which only count."""
    return [leaf for leaf in leaves(state) if leaf.dtype == torch.int64 and len(leaf)]


def _row_numbers(rows: Tensor | Sequence[int] | None, size: int) -> Tensor:
    if rows is None:
        return torch.arange(size)
    numbers = rows if isinstance(rows, Tensor) else torch.tensor(list(rows))
    if numbers.dtype != torch.int64 or numbers.shape != (size,):
        raise ValueError(f"rows must be {size} whole numbers, one for each sequence, got {rows!r}")
    if size and not (int(numbers.min()) >= 0 and int(numbers.max()) < 1 << 32):
        raise ValueError(f"rows must be numbers >= 0 and < 2**32, got {rows!r}")
    return numbers
