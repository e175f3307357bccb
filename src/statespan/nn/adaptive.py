"""Adaptive embedding and softmax: many features for frequent tokens, few for rare ones.

Shapes: D = d_model features, V tokens; "…" any leading sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_int
from statespan.nn.initial import Initialised
from statespan.ops.fusion import untouched

SCALE = 0.5
"""Of the initial weights: tables have this standard deviation over the root of their width."""

SYNC_ERROR = 2
"""The mode of :func:`torch.cuda.set_sync_debug_mode` in which waiting for the device is an error."""


class TokenTable(nn.Embedding):
    """An embedding whose rows have an initial norm of about ``SCALE``.

    Example:
        >>> table = TokenTable(100, 8)
        >>> table(torch.tensor([[1, 5, 5]])).shape
        torch.Size([1, 3, 8])
    """

    def reset_parameters(self) -> None:
        """Draw the weight."""
        nn.init.normal_(self.weight, std=SCALE * self.embedding_dim**-0.5)


class Projection(nn.Linear):
    """A linear map without a bias from or to d_model features.

    Example:
        >>> Projection(2, 8, d_model=8)(torch.randn(5, 2)).shape
        torch.Size([5, 8])
    """

    def __init__(self, d_input: int, d_output: int, d_model: int, **options: Any) -> None:
        self.std = SCALE * d_model**-0.5
        super().__init__(d_input, d_output, bias=False, **options)

    def reset_parameters(self) -> None:
        """Draw the weight."""
        nn.init.normal_(self.weight, std=self.std)


class ZeroLinear(nn.Linear):
    """A linear map initialised with zeros.

    Example:
        >>> ZeroLinear(8, 2)(torch.randn(3, 8)).abs().max().item()
        0.0
    """

    def reset_parameters(self) -> None:
        """Fill weight and bias with zeros."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class AdaptiveTokens(Initialised):
    """Adaptive input embedding and the adaptive softmax tied to it (Baevski and Auli, 2019).

    Tokens are numbered by falling frequency and cut into clusters; cluster i has a table of ``d_model / div_val**i``
    features and a projection to d_model. The softmax uses the same tables and projections: first over the tokens of
    cluster 0 and one entry for each other cluster, then within a cluster. Cluster 0 has its own projection there.

    Args:
        vocabulary: Number of tokens V.
        d_model: Number of features D.
        cutoffs: First token of each cluster but the first, increasing.
        div_val: Factor by which the tables of successive clusters get narrower.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> tokens = AdaptiveTokens(1000, 32, cutoffs=(100, 400), div_val=4)
        >>> x = torch.randint(1000, (2, 50))
        >>> features = tokens(x)
        >>> features.shape, tokens.log_probs(features).shape, tokens.losses(features, x).shape
        (torch.Size([2, 50, 32]), torch.Size([2, 50, 1000]), torch.Size([2, 50]))
    """

    linear: Any = staticmethod(nn.functional.linear)
    """The matrix product of the softmax, which :mod:`statespan.generation.rows` replaces."""

    def __init__(
        self,
        vocabulary: int,
        d_model: int,
        *,
        cutoffs: Sequence[int],
        div_val: int = 4,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.vocabulary = check_int("vocabulary", vocabulary, minimum=1)
        self.d_model = check_int("d_model", d_model, minimum=1)
        self.edges = check_cutoffs(cutoffs, vocabulary)
        widths = [d_model // check_int("div_val", div_val, minimum=1) ** i for i in range(len(self.edges) - 1)]
        if widths[-1] < 1:
            raise ValueError(
                f"div_val must leave each cluster at least one feature, got {div_val} for d_model={d_model}"
            )
        options: Any = {"device": device, "dtype": dtype}
        self.tables: Any = nn.ModuleList(
            TokenTable(end - start, width, **options) for (start, end), width in zip(pairwise(self.edges), widths)
        )
        self.projections: Any = nn.ModuleList(Projection(width, d_model, d_model, **options) for width in widths)
        self.head = Projection(d_model, widths[0], d_model, **options)
        self.clusters = ZeroLinear(widths[0], len(widths) - 1, **options)
        self.bias = nn.Parameter(torch.zeros(vocabulary, **options))

    def reset_parameters(self) -> None:
        """Re-initialise all parameters as the constructor does; the same seed gives the same values."""
        super().reset_parameters()
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The features (…, D) of tokens x (…)."""
        y = x.new_zeros((), dtype=self.bias.dtype)
        # every table reads every token, which costs little and keeps shapes independent of the tokens
        for table, projection, start, end in self._parts():
            inside = (x >= start) & (x < end)
            rows = table((x - start).clamp(0, end - start - 1))
            y = y + projection(rows.masked_fill(~inside[..., None], 0.0))
        return y * self.d_model**0.5

    def log_probs(self, features: Tensor) -> Tensor:
        """The log-probabilities (…, V) of all tokens, from features (…, D)."""
        first = self.edges[1]
        head = self._head(features).log_softmax(-1)
        clusters = [head[..., :first]]
        for i, _ in enumerate(self.edges[2:], 1):
            clusters.append(self._tail(features, i).log_softmax(-1) + head[..., first + i - 1, None])
        return torch.cat(clusters, -1)

    def losses(self, features: Tensor, y: Tensor) -> Tensor:
        """``−log_probs`` of tokens y (…) from features (…, D), without computing all tokens' log-probabilities.

        Each cluster's softmax is computed for its own tokens. Their number depends on the data, so a GPU is
        synchronized once a cluster; in a compiled or captured graph, each softmax is computed for all tokens instead.
        """
        shape, first = y.shape, self.edges[1]
        y, features = y.flatten(), features.flatten(0, -2)
        entry = y.clone()
        for i, start in enumerate(self.edges[1:-1], 1):
            entry = torch.where(y >= start, first + i - 1, entry)
        losses = nn.functional.cross_entropy(self._head(features), entry, reduction="none")
        for i, (start, end) in enumerate(pairwise(self.edges[1:]), 1):
            inside = (y >= start) & (y < end)
            if _shapes_are_fixed(y):
                target = (y - start).clamp(0, end - start - 1)
                within = nn.functional.cross_entropy(self._tail(features, i), target, reduction="none")
                losses = losses + within.masked_fill(~inside, 0.0)
            else:
                rows = inside.nonzero()[:, 0]
                within = nn.functional.cross_entropy(self._tail(features[rows], i), y[rows] - start, reduction="none")
                losses = losses.index_add(0, rows, within.to(losses.dtype))
        return losses.view(shape)

    def table(self, i: int) -> Tensor:
        """The embedding table of cluster i, one row per token."""
        table = self.tables[i]
        if untouched(table, TokenTable):
            return table.weight
        return table(torch.arange(self.edges[i + 1] - self.edges[i], device=self.bias.device))

    def extra_repr(self) -> str:
        """The sizes."""
        return f"vocabulary={self.vocabulary}, d_model={self.d_model}, cutoffs={self.edges[1:-1]}"

    def _head(self, features: Tensor) -> Tensor:
        """Scores of the head's tokens and of each tail cluster."""
        z = self.head(features)
        tokens = self.linear(z, self.table(0), self.bias[: self.edges[1]])
        return torch.cat([tokens, self.clusters(z)], -1)

    def _tail(self, features: Tensor, i: int) -> Tensor:
        """Scores of the tokens of cluster i ≥ 1."""
        z = self._inner(features, i)
        return self.linear(z, self.table(i), self.bias[self.edges[i] : self.edges[i + 1]])

    def _inner(self, features: Tensor, i: int) -> Tensor:
        """Features projected to the width of cluster i ≥ 1."""
        projection = self.projections[i]
        if untouched(projection, Projection):
            return self.linear(features, projection.weight.T)
        units = torch.eye(self.tables[i].embedding_dim, dtype=features.dtype, device=features.device)
        return self.linear(features, projection(units))  # its rows are the columns of the matrix

    def _parts(self) -> list[tuple[TokenTable, Projection, int, int]]:
        return list(zip(self.tables, self.projections, self.edges[:-1], self.edges[1:]))


def _shapes_are_fixed(x: Tensor) -> bool:
    """Whether sizes must not depend on data: in a graph, or where synchronizing is an error."""
    if torch.compiler.is_compiling():
        return True
    return x.is_cuda and (torch.cuda.is_current_stream_capturing() or torch.cuda.get_sync_debug_mode() == SYNC_ERROR)


def check_cutoffs(cutoffs: Sequence[int], vocabulary: int) -> tuple[int, ...]:
    """The edges of the clusters: 0, the cutoffs, the size of the vocabulary."""
    if isinstance(cutoffs, str) or not isinstance(cutoffs, Sequence):
        raise TypeError(f"cutoffs must be a sequence of integers, got {cutoffs!r}")
    if not cutoffs:
        raise ValueError("cutoffs must be at least one integer, got none")
    edges = (0, *(check_int("cutoffs", cutoff, minimum=1) for cutoff in cutoffs), vocabulary)
    if any(start >= end for start, end in pairwise(edges)):
        raise ValueError(f"cutoffs must increase and stay below vocabulary={vocabulary}, got {tuple(cutoffs)}")
    return edges
