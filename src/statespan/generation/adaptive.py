"""Choosing from an adaptive softmax: a cluster or a frequent token first, then a token of the cluster.

The same token as from the probabilities of all, which are never made: a vocabulary of 267,735 is most of a step.

Shapes: B batch, D features, V tokens.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from statespan.generation.sampling import _invert, invert
from statespan.nn.adaptive import AdaptiveTokens


def choose(tokens: AdaptiveTokens, features: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """A token for each row, and the model's own log-probability of it.

    Args:
        tokens: The embedding whose tables the softmax shares.
        features: (B, D).
        uniform: Numbers in [0, 1), (B,).
        temperature: Above 0.

    Returns:
        Tokens (B,) int64 and log-probabilities (B,) float32.
    """
    first = tokens.edges[1]
    head = tokens._head(features).float()
    own = head.log_softmax(-1)
    tails = [tokens._tail(features, i) for i in range(1, len(tokens.edges) - 1)]
    # temperature makes a cluster likelier or not as a whole: by the sum of its tokens' powers
    sums = [tail.float().logsumexp(-1) for tail in tails]
    powers = sums if temperature == 1 else [(tail.float() / temperature).logsumexp(-1) for tail in tails]
    extra = torch.stack([power - total / temperature for power, total in zip(powers, sums)], -1)
    scores = torch.cat([head[:, :first] / temperature, head[:, first:] / temperature + extra], -1)
    entry, rest = _invert(scores.softmax(-1), uniform)
    token, log_prob = entry, own.gather(-1, entry[:, None])[:, 0]
    for i, (low, _) in enumerate(pairwise(tokens.edges[1:])):
        tail = tails[i]
        inside = invert((tail.float() / temperature - powers[i][:, None]).exp(), rest)
        chosen = entry == first + i
        token = torch.where(chosen, low + inside, token)
        score = tail.gather(-1, inside[:, None])[:, 0].float() - sums[i]
        log_prob = log_prob + torch.where(chosen, score, 0.0)
    return token, log_prob
