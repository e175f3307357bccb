"""Sampling from an adaptive softmax: a cluster or a frequent token first, then a token of the cluster.

The token is the same as from the probabilities of all tokens, which are never computed: with a vocabulary of 267,735
they would take most of a step.

Shapes: B batch, D features, V tokens.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from statespan.generation.sampling import _invert, invert
from statespan.nn.adaptive import AdaptiveTokens
from statespan.ops.sample import VocabularyPart, fused_sample, sampling_is_fused


def choose(tokens: AdaptiveTokens, features: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """A token (B,) int64 for each row of features (B, D), and its log-probability (B,) float32 under the model.

    The uniform numbers (B,) are in [0, 1), the temperature is above 0.
    """
    tables = [tokens.table(i) for i in range(len(tokens.edges) - 1)]
    fused = sampling_is_fused(features, tables, tokens.parameters())
    token, log_prob = (_fused if fused else _plain)(tokens, features, uniform, temperature)
    return token, log_prob.float()


def _fused(tokens: AdaptiveTokens, features: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Sample by kernels that keep the scores in registers."""
    head = tokens.head(features)
    inner = [head, *(tokens._inner(features, i) for i in range(1, len(tokens.edges) - 1))]
    parts = [
        VocabularyPart(z, tokens.table(i), tokens.bias[low:high])
        for i, (z, (low, high)) in enumerate(zip(inner, pairwise(tokens.edges)))
    ]
    return fused_sample(parts, tokens.clusters(head), uniform, temperature)


def _plain(tokens: AdaptiveTokens, features: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Sample in plain torch, one cluster at a time; in float64 for float64 features, else in float32."""
    first, wide = tokens.edges[1], torch.promote_types(features.dtype, torch.float32)
    head = tokens._head(features).to(wide)
    head_log_probs = head.log_softmax(-1)
    tails = [tokens._tail(features, i) for i in range(1, len(tokens.edges) - 1)]
    # temperature changes the probability of a whole cluster, by the sum of its tokens' powers
    sums = [tail.to(wide).logsumexp(-1) for tail in tails]
    powers = sums if temperature == 1 else [(tail.to(wide) / temperature).logsumexp(-1) for tail in tails]
    extra = torch.stack([power - total / temperature for power, total in zip(powers, sums)], -1)
    scores = torch.cat([head[:, :first] / temperature, head[:, first:] / temperature + extra], -1)
    entry, rest = _invert(scores.softmax(-1), uniform)
    token, log_prob = entry, head_log_probs.gather(-1, entry[:, None])[:, 0]
    for i, (low, _) in enumerate(pairwise(tokens.edges[1:])):
        tail = tails[i]
        inside = invert((tail.to(wide) / temperature - powers[i][:, None]).exp(), rest)
        chosen = entry == first + i
        token = torch.where(chosen, low + inside, token)
        score = tail.gather(-1, inside[:, None])[:, 0].to(wide) - sums[i]
        log_prob = log_prob + torch.where(chosen, score, 0.0)
    return token, log_prob
