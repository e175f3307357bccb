"""Sampling from scores: temperature, cut-offs and inversion of the cumulative distribution.

Shapes: B batch, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statespan._check import check_int, check_number

BLOCK = 512


@dataclass(frozen=True)
class Sampling:
    """Options for choosing a token from scores and one uniform number for each row.

    The scores are divided by the temperature first; then the cut-offs apply one after the other.

    Args:
        temperature: 1 for the model's own distribution, less for likelier tokens, 0 for the likeliest.
        top_k: Keep this many of the likeliest tokens, and all that tie with the last of them.
        top_p: Keep the fewest of the likeliest tokens that have this much probability together.
        min_p: Keep tokens with at least this fraction of the likeliest one's probability.

    Example:
        >>> scores = torch.tensor([[0.0, 2.0, 1.0]])
        >>> Sampling(temperature=0)(scores, torch.tensor([0.5]))
        tensor([1])
        >>> Sampling()(scores.expand(3, 3), torch.tensor([0.01, 0.5, 0.99]))
        tensor([0, 1, 2])
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        """Reject invalid values."""
        check_number("temperature", self.temperature, above=0.0, closed=True)
        if self.top_k is not None:
            check_int("top_k", self.top_k, minimum=1)
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and check_number(name, share, above=0.0) > 1.0:
                raise ValueError(f"{name} must be a number > 0 and <= 1, got {share!r}")

    @property
    def plain(self) -> bool:
        """Whether every token remains possible."""
        return self.top_k is self.top_p is self.min_p is None

    def __call__(self, scores: Tensor, uniform: Tensor) -> Tensor:
        """Choose tokens (B,).

        Args:
            scores: Logits or log-probabilities (B, V).
            uniform: Numbers in [0, 1), (B,).
        """
        if self.temperature == 0:
            return scores.argmax(-1)
        return invert(self.probabilities(scores), uniform)

    def probabilities(self, scores: Tensor) -> Tensor:
        """The distribution (B, V) to sample from, float32 or float64; needs temperature > 0."""
        wide = torch.promote_types(scores.dtype, torch.float32)
        p = (scores.to(wide) / self.temperature).softmax(-1)
        if self.top_k is not None and self.top_k < p.shape[-1]:
            p = _at_least(p, p.topk(self.top_k, -1).values[..., -1:])
        if self.top_p is not None:
            ordered = p.sort(-1, descending=True).values
            before = ordered.cumsum(-1) - ordered
            p = _at_least(p, ordered.masked_fill(before >= self.top_p, torch.inf).amin(-1, keepdim=True))
        if self.min_p is not None:
            p = _at_least(p, self.min_p * p.amax(-1, keepdim=True))
        return p


def invert(p: Tensor, uniform: Tensor) -> Tensor:
    """The first token whose cumulative probability (B, V) exceeds the share ``uniform`` (B,) of the total.

    Many tokens are summed up in blocks first, so that each is read once.
    """
    tokens = p.shape[-1]
    if tokens <= 8 * BLOCK:
        return _invert(p, uniform)[0]
    whole = tokens // BLOCK
    blocks = p[:, : whole * BLOCK].unflatten(-1, (whole, BLOCK)).sum(-1, dtype=torch.float64)
    if tokens % BLOCK:
        blocks = torch.cat([blocks, p[:, whole * BLOCK :].sum(-1, keepdim=True, dtype=torch.float64)], -1)
    block, rest = _invert(blocks, uniform)
    place = block[:, None] * BLOCK + torch.arange(BLOCK, device=p.device)
    inside = p.gather(-1, place.clamp(max=tokens - 1)).masked_fill(place >= tokens, 0.0)
    return block * BLOCK + _invert(inside, rest)[0]


def _invert(p: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen entry, and the number's position within it, again uniform in [0, 1)."""
    sums = p.cumsum(-1, dtype=torch.float64)
    target = uniform[:, None].to(sums.dtype) * sums[:, -1:]
    entry = torch.searchsorted(sums, target, right=True).clamp(max=p.shape[-1] - 1)
    width = p.gather(-1, entry).to(sums.dtype)
    before = sums.gather(-1, entry) - width
    rest = ((target - before) / width.clamp(min=torch.finfo(sums.dtype).tiny)).clamp(0.0, 1.0 - 2.0**-52)
    return entry[:, 0], rest[:, 0]


def _at_least(p: Tensor, smallest: Tensor) -> Tensor:
    """The distribution without tokens less likely than this."""
    p = p.masked_fill(p < smallest, 0.0)
    return p / p.sum(-1, keepdim=True)
