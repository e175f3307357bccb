"""The Informer (Zhou et al., AAAI 2021), small: sparse attention, a distilling encoder, a one-pass decoder.

Shapes: B windows, T context, H horizon, C columns read, K forecast, M calendar features, D features, N heads of
E = D / N features, L and S lengths of queries and keys.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from statespan._check import check_int

FACTOR = 5  # of :func:`prob_attention`
DROPOUT = 0.05


def prob_attention(q: Tensor, k: Tensor, v: Tensor, *, factor: int, causal: bool = False) -> Tensor:
    """ProbSparse attention: only the most selective queries attend; the others take the mean of the values.

    The selectivity of a query is the largest of its scores minus their mean, on a random sample of ``factor · ln S``
    keys; the ``factor · ln L`` most selective ones attend to all keys. With a factor so large that all
    keys are sampled and all queries attend, it is softmax attention. A causal one, with L = S, sees itself and the past
    alone; queries that do not attend then take the mean of those. From q (B, N, L, E), k and v (B, N, S, E) to
    (B, N, L, E).
    """
    batch, heads, length, width = q.shape
    keys = k.shape[2]
    sampled = min(keys, factor * max(1, math.ceil(math.log(max(keys, 2)))))
    attending = min(length, factor * max(1, math.ceil(math.log(max(length, 2)))))
    with torch.no_grad():  # which queries attend has no gradient
        if sampled < keys:  # each query has its own sample
            choice = torch.randint(keys, (length, sampled), device=q.device)
            sample = torch.einsum("bnle,bnlse->bnls", q, k[:, :, choice])  # (B, N, L, sampled)
        else:
            sample = q @ k.mT
        top = (sample.amax(-1) - sample.sum(-1) / keys).topk(attending, sorted=False).indices  # (B, N, attending)
    chosen = q.gather(2, top[..., None].expand(-1, -1, -1, width))
    scores = chosen @ k.mT / math.sqrt(width)  # (B, N, attending, S)
    if causal:
        scores = scores.masked_fill(torch.arange(keys, device=q.device) > top[..., None], -torch.inf)
        counts = torch.arange(1, keys + 1, device=q.device, dtype=v.dtype)
        rest = v.cumsum(2) / counts[:, None]
    else:
        rest = v.mean(2, keepdim=True).expand(batch, heads, length, width)
    return rest.scatter(2, top[..., None].expand(-1, -1, -1, width), scores.softmax(-1) @ v)


class InformerAttention(nn.Module):
    """Multi-head attention: sparse to the sequence itself, or full to another one.

    Example:
        >>> attention, x = InformerAttention(8, n_heads=2), torch.zeros(2, 20, 8)
        >>> attention(x).shape, attention(x, torch.zeros(2, 30, 8)).shape
        (torch.Size([2, 20, 8]), torch.Size([2, 20, 8]))
    """

    def __init__(self, d_model: int, n_heads: int, *, causal: bool = False) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"n_heads must divide d_model={d_model}, got {n_heads}")
        self.n_heads, self.causal = n_heads, causal
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Attend from x (B, L, D) to itself, or to ``other`` (B, S, D)."""
        source = x if other is None else other
        q, k, v = (
            projected.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for projected in (self.query(x), self.key(source), self.value(source))
        )
        if other is None:
            y = prob_attention(q, k, v, factor=FACTOR, causal=self.causal)
        else:
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class InformerLayer(nn.Module):
    """Attention and a feed-forward network, each with a residual and a post-norm.

    A layer of the decoder is causal, and between the two it attends to what the encoder returns.

    Example:
        >>> InformerLayer(8, n_heads=2, decodes=True)(torch.zeros(2, 20, 8), torch.zeros(2, 30, 8)).shape
        torch.Size([2, 20, 8])
    """

    def __init__(self, d_model: int, n_heads: int, *, decodes: bool = False) -> None:
        super().__init__()
        self.mixer = InformerAttention(d_model, n_heads, causal=decodes)
        self.cross = InformerAttention(d_model, n_heads) if decodes else None
        self.feed = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Dropout(DROPOUT), nn.Linear(4 * d_model, d_model)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(3 if decodes else 2))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Apply to x (B, L, D); the decoder also attends to memory (B, S, D)."""
        x = self.norms[0](x + self.dropout(self.mixer(x)))
        if self.cross is not None:
            x = self.norms[1](x + self.dropout(self.cross(x, memory)))
        return self.norms[-1](x + self.dropout(self.feed(x)))


class Distill(nn.Module):
    """Halve the length: a convolution, a norm, ELU and max pooling.

    Example:
        >>> Distill(8)(torch.zeros(2, 25, 8)).shape
        torch.Size([2, 13, 8])
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(d_model, d_model, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm1d(d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, L, D) to (B, ⌈L/2⌉, D)."""
        y = nn.functional.elu(self.norm(self.conv(x.mT)))
        return nn.functional.max_pool1d(y, 3, stride=2, padding=1).mT


class InformerEmbedding(nn.Module):
    """Embed values by a convolution of width 3, the calendar by a linear map and the position by sines.

    Example:
        >>> InformerEmbedding(d_input=1, d_marks=4, d_model=8)(torch.zeros(2, 20, 1), torch.zeros(2, 20, 4)).shape
        torch.Size([2, 20, 8])
    """

    def __init__(self, d_input: int, d_marks: int, d_model: int) -> None:
        super().__init__()
        self.values = nn.Conv1d(d_input, d_model, 3, padding=1, padding_mode="circular")
        self.marks = nn.Linear(d_marks, d_model, bias=False) if d_marks else None
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, marks: Tensor | None) -> Tensor:
        """Map x (B, L, C) and marks (B, L, M) to (B, L, D)."""
        y = self.values(x.mT).mT
        if self.marks is not None:
            y = y + self.marks(marks)
        return self.dropout(y + _places(x.shape[1], y.shape[-1], y.device).to(y.dtype))


class Informer(nn.Module):
    """The Informer: an encoder of two layers that halves the context between them, and a one-pass decoder.

    The decoder reads the last ``label`` known rows, half of the context by default, and zeros for the horizon, and
    forecasts the whole horizon at once.

    Example:
        >>> model = Informer(48, 24, d_input=3, d_output=3, d_marks=4, d_model=16, n_heads=2)
        >>> model(torch.randn(2, 72, 3), marks=torch.randn(2, 72, 4)).shape
        torch.Size([2, 24, 3])
    """

    def __init__(
        self,
        context: int,
        horizon: int,
        *,
        d_input: int,
        d_output: int,
        d_marks: int,
        label: int | None = None,
        d_model: int = 128,
        n_heads: int = 8,
    ) -> None:
        super().__init__()
        self.context = check_int("context", context, minimum=1)
        self.horizon = check_int("horizon", horizon, minimum=1)
        self.label = context // 2 if label is None else check_int("label", label, minimum=0)
        if self.label > context:
            raise ValueError(f"label must be at most the context, {context}, got {label}")
        self.reader = InformerEmbedding(d_input, d_marks, d_model)
        self.writer = InformerEmbedding(d_input, d_marks, d_model)
        layer = partial(InformerLayer, d_model, n_heads)
        self.encoder = nn.Sequential(layer(), Distill(d_model), layer(), nn.LayerNorm(d_model))
        self.decoder = layer(decodes=True)
        self.norm = nn.LayerNorm(d_model)
        self.map = nn.Linear(d_model, d_output)

    def forward(self, x: Tensor, *, marks: Tensor | None = None) -> Tensor:
        """The forecast (B, H, K) of x (B, T + H, C) and marks (B, T + H, M)."""
        known, first = x[:, : self.context], self.context - self.label
        known_marks, decoder_marks = (None, None) if marks is None else (marks[:, : self.context], marks[:, first:])
        memory = self.encoder(self.reader(known, known_marks))
        start = nn.functional.pad(known[:, first:], (0, 0, 0, self.horizon))
        y = self.decoder(self.writer(start, decoder_marks), memory)
        return self.map(self.norm(y[:, -self.horizon :]))


def _places(length: int, features: int, device: torch.device) -> Tensor:
    """Sinusoidal position encodings (L, D)."""
    half = torch.arange(0, features, 2, device=device)
    angle = torch.arange(length, device=device)[:, None] * torch.exp(half * (-math.log(10000.0) / features))
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :features]
