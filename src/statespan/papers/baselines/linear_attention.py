"""Linear-time attention: the kernel is a product of features, so that sums over the past form a state.

With features φ, the output at position t is ``φ(q_t)ᵀ S_t / φ(q_t)ᵀ z_t``, where ``S_t = Σ φ(k_s) v_sᵀ`` and
``z_t = Σ φ(k_s)`` over s ≤ t. A column of ones beside v makes z the last column of S. The sums are not stored for every
position, but passed from chunk to chunk, as in :mod:`statespan.ops.ssm.chunked`.

Features of keys may come with the logarithm a_s of a scale, ``φ(k_s) = exp(a_s) k̂_s``. Then sums are kept relative to
the largest scale so far, which keeps them in range and cancels in the output, as in an online softmax.

Shapes: B batch, L length, H heads, E = d_head features of a head, V = E + 1, F features of the kernel, c chunk length,
I number of chunks.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from statespan._check import check_int, check_tensor
from statespan.nn.initial import assign
from statespan.nn.precision import example_of, full_precision
from statespan.papers.baselines.attention import MultiHead

CHUNK = 64
GROUP = 64  # chunks whose sums, of different scales, are passed on by one matrix product
NO_SCALE = -1e30  # the logarithm of a scale before there is one; finite, so that differences are finite
FLOOR = -30.0  # the least exponent of linear attention's features; elu + 1 in float32 is 0 from -17 on
STABILIZER = 1e-6  # as in the Performer authors' code


class LinearState(NamedTuple):
    """The sums over the past.

    Example:
        >>> _, state = LinearAttention(16, n_heads=4).prefill(torch.zeros(2, 10, 16))
        >>> state.sums.shape, state.log_scale.shape  # of any length
        (torch.Size([2, 4, 4, 5]), torch.Size([2, 4]))
    """

    sums: Tensor  # (B, H, F, E + 1): Σ φ(k) vᵀ, and Σ φ(k) in the last column, both over exp(log_scale)
    log_scale: Tensor  # (B, H); stays 0 for features that need no scale


class Features(NamedTuple):
    """The features that attention sums over.

    Example:
        >>> q, k, v = (torch.rand(2, 4, 10, size) for size in (8, 8, 5))
        >>> features = Features(q, k, v, log_k=None)
        >>> (features.q @ (features.k.mT @ features.v)).shape  # sums that do not grow with the length
        torch.Size([2, 4, 10, 5])
    """

    q: Tensor  # features of queries (B, H, L, F), L ≥ 1
    k: Tensor  # features of keys (B, H, L, F)
    v: Tensor  # values (B, H, L, V)
    log_k: Tensor | None  # the logarithm of the keys' scale (B, H, L); None for 1


class FeatureAttention(MultiHead[LinearState]):
    """Attention whose kernel is a product of features; see the module. Dropout acts on the heads' outputs.

    Example:
        >>> layer = LinearAttention(16, n_heads=4)
        >>> isinstance(layer, FeatureAttention), layer.n_features
        (True, 4)
    """

    scaled: ClassVar[bool]
    """Whether the features of keys come with a scale."""

    @property
    def n_features(self) -> int:
        """Features F of the kernel."""
        return self.d_head

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> LinearState:
        """The empty sums: float64, as None does, keeps them exact over any length; float32 halves their memory."""
        self._check_causal("initial_state")
        check_int("batch", batch, minimum=0)
        dtype = torch.float64 if dtype is None else dtype
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        shape = batch, self.n_heads, self.n_features, self.d_head + 1
        sums = torch.zeros(shape, dtype=dtype, device=example_of(self).device)
        return LinearState(sums, torch.full_like(sums[..., 0, 0], NO_SCALE if self.scaled else 0.0))

    @abstractmethod
    def _features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features of queries and keys (B, H, L, F), and the logarithm (B, H, L) of the keys' scale.

        Those of a query may have any factor, since it cancels.
        """

    def _whole(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if not self.bidirectional:
            return self._extend(q, k, v, None, mask=mask)[0]
        with full_precision(q):
            phi_q, phi_k, ones_v, log_k = self._prepare(q, k, v, mask)
            if log_k is not None:
                phi_k = phi_k * (log_k - log_k.amax(-1, keepdim=True).detach()).exp()[..., None]
            return self._finish(phi_q @ (phi_k.mT @ ones_v), v.dtype)

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, *, mask: Tensor | None
    ) -> tuple[Tensor, LinearState]:
        state = self.initial_state(q.shape[0]) if state is None else state
        if q.shape[2] == 0:
            return v, state
        with full_precision(q):
            sums = one_sum if q.shape[2] == 1 else chunked_sums
            y, after = sums(self._prepare(q, k, v, mask), state)
            return self._finish(y, v.dtype), after

    def _prepare(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Features:
        """Features in at least float32, zero for padding, and the values with a column of ones."""
        q, k, v = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (q, k, v))
        phi_q, phi_k, log_k = self._features(q, k)
        if mask is not None:
            phi_k = phi_k * mask[:, None, :, None]
            log_k = None if log_k is None else log_k.masked_fill(~mask[:, None], NO_SCALE)
        return Features(phi_q, phi_k, nn.functional.pad(v, (0, 1), value=1.0), log_k)

    def _finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        total = y[..., -1:]
        y = y[..., :-1] / (total + (total == 0))  # nothing was seen in a sequence that is all padding
        return nn.functional.dropout(y.to(dtype), self.dropout, self.training)

    def _check_state(self, state: Any, batch: int) -> None:
        if not isinstance(state, LinearState):
            raise TypeError(f"state must be a LinearState, got {type(state).__name__}")
        check_tensor("state.sums", state.sums, (batch, self.n_heads, self.n_features, self.d_head + 1), kind="real")
        check_tensor("state.log_scale", state.log_scale, (batch, self.n_heads), kind="real")


def one_sum(features: Features, state: LinearState) -> tuple[Tensor, LinearState]:
    """The recurrence: :func:`chunked_sums` for L = 1."""
    q, k, v, log_k = features
    sums, scale, dtype = state.sums, state.log_scale, state.sums.dtype
    new = k.mT @ v  # (B, H, F, V)
    if log_k is not None:
        log_k = log_k[..., 0]
        top = torch.maximum(scale, log_k).detach()
        sums, new = sums * (scale - top).exp()[..., None, None], new * (log_k - top).exp()[..., None, None]
        scale = top
    sums = sums + new
    return q @ sums.to(q.dtype), LinearState(sums.to(dtype), scale.to(dtype))


def chunked_sums(features: Features, state: LinearState, *, chunk: int = CHUNK) -> tuple[Tensor, LinearState]:
    """``Σ_{s ≤ t} (φ(q_t)·φ(k_s)) v_s`` for every t, in time and memory linear in L.

    Returns the sums (B, H, L, V), each position's up to a factor of its own, and the state after the last sample.
    """
    q, k, v, log_k = features
    length = q.shape[2]
    c = min(chunk, length)
    rest = -length % c
    q, k, v = (nn.functional.pad(t, (0, 0, 0, rest)).unflatten(2, (-1, c)) for t in (q, k, v))  # (B, H, I, c, ·)
    weights = q @ k.mT  # (B, H, I, c, c)
    if log_k is None:
        added = k.mT @ v  # (B, H, I, F, V)
        before = torch.cat([state.sums.to(v.dtype)[:, :, None], added[:, :, :-1]], 2).cumsum(2)
        after = LinearState((state.sums + added.sum(2)).to(state.sums.dtype), state.log_scale)
        y = weights.tril() @ v + q @ before
    else:
        log_k = nn.functional.pad(log_k, (0, rest), value=NO_SCALE)
        start = state.log_scale.to(log_k.dtype)[..., None]  # (B, H, 1)
        # The scales are factors that cancel in the end, so no gradient goes through their choice.
        top = torch.maximum(log_k.detach().cummax(-1).values, start.detach()).unflatten(-1, (-1, c))
        log_k, end = log_k.unflatten(-1, (-1, c)), top[..., -1]  # (B, H, I, c), (B, H, I)
        added = (k * (log_k - end[..., None]).exp()[..., None]).mT @ v  # (B, H, I, F, V)
        before, after = _pass_on(added, end, state)
        scale = torch.cat([start.detach(), end[..., :-1]], -1)[..., None]
        y = (weights * _decay(log_k, top)) @ v + (q * (scale - top).exp()[..., None]) @ before
    return y.flatten(2, 3)[:, :, :length], after


def _pass_on(added: Tensor, end: Tensor, state: LinearState) -> tuple[Tensor, LinearState]:
    """The sums before each chunk (B, H, I, F, V), relative to the scale there, and the state after the last."""
    before, sums, scale = [], state.sums, state.log_scale
    for new, tops in zip(added.split(GROUP, 2), end.split(GROUP, 2)):
        scales = torch.cat([scale.to(tops.dtype)[..., None], tops], -1)  # (B, H, g + 1)
        decay = _decay(scales, scales.detach())
        earlier = torch.cat([sums.to(new.dtype)[:, :, None], new[:, :, :-1]], 2)
        before.append((decay[..., :-1, :-1] @ earlier.flatten(3)).unflatten(3, new.shape[3:]))
        # The sums that are handed on carry everything that lasts, so they stay in the dtype of the state.
        last = (decay[..., -1:, 1:] @ new.flatten(3)).unflatten(3, new.shape[3:])[:, :, 0]
        sums = (sums * (scale - tops[..., -1]).exp()[..., None, None] + last).to(sums.dtype)
        scale = tops[..., -1].to(sums.dtype)
    return torch.cat(before, 2), LinearState(sums, scale)


def _decay(scale: Tensor, top: Tensor) -> Tensor:
    """``exp(scale_s − top_t)`` for s ≤ t, at most 1, and 0 elsewhere: (…, n, n) from (…, n)."""
    future = torch.ones(2 * scale.shape[-1:], dtype=torch.bool, device=scale.device).triu(1)
    return (scale[..., None, :] - top[..., None]).masked_fill(future, -torch.inf).exp()


class LinearAttention(FeatureAttention):
    """Linear attention, the Linear Transformer's (Katharopoulos et al. 2020): features ``elu(x) + 1``, at least 1e-13.

    Its arguments are those of :class:`MultiHead`; the sums are at least float32, whatever the dtype.

    Example:
        >>> layer = LinearAttention(d_model=16, n_heads=4)
        >>> y, state = layer.prefill(torch.randn(2, 100, 16))
        >>> y.shape, state.sums.shape
        (torch.Size([2, 100, 16]), torch.Size([2, 4, 4, 5]))
    """

    scaled = False

    def _features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        # elu + 1 without its cancellation, and with a floor of 1e-13, which keeps float32 from underflow
        phi_q, phi_k = (t.relu() + t.clamp(FLOOR, 0.0).exp() for t in (q, k))
        return phi_q, phi_k, None


class Performer(FeatureAttention):
    """The Performer's attention (Choromanski et al. 2021): FAVOR+, positive orthogonal random features of the softmax.

    The features of x, divided by E^¼, are ``exp(w·x − |x|²/2)`` for F directions w (their Lemma 1, equation 5), plus
    1e-6 of the largest of them. That keeps the sum of the weights away from 0 and depends on one position only, unlike
    the authors' maximum over all keys; so all three uses of the layer give the same numbers.

    There are ``n_features`` F of them, by default E ln E, rounded. They are drawn once, with torch's generator, and
    saved with the weights; :meth:`redraw` draws others. The other arguments are those of :class:`MultiHead`; the sums
    are at least float32, whatever the dtype.

    Example:
        >>> layer = Performer(d_model=64, n_heads=2)
        >>> layer(torch.randn(2, 100, 64)).shape, layer.projection.shape
        (torch.Size([2, 100, 64]), torch.Size([111, 32]))
    """

    scaled = True
    projection: Tensor

    def __init__(
        self,
        d_model: int,
        n_heads: int = 8,
        *,
        d_head: int | None = None,
        bidirectional: bool = False,
        dropout: float = 0.0,
        n_features: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            d_model, n_heads, d_head=d_head, bidirectional=bidirectional, dropout=dropout, device=device, dtype=dtype
        )
        if n_features is None:
            n_features = max(1, round(self.d_head * math.log(self.d_head)))
        rows = check_int("n_features", n_features, minimum=1)
        self.register_buffer("projection", self.out.weight.new_empty(rows, self.d_head))
        self.redraw()

    @property
    def n_features(self) -> int:
        """Random features F, one for each direction."""
        return self.projection.shape[0]

    def reset_parameters(self) -> None:
        """Re-initialise the linear maps and the directions."""
        super().reset_parameters()
        self.redraw()

    @torch.no_grad()
    def redraw(self) -> None:
        """Redraw the random directions with torch's generator.

        Each is a standard Gaussian vector; E of them at a time are orthogonal to each other.
        """
        if self.projection.is_meta:
            return  # without values, nothing is drawn
        E = self.d_head
        blocks = -(-self.n_features // E)
        Q, R = torch.linalg.qr(torch.randn(blocks, E, E, dtype=torch.float64, device="cpu"))
        Q = Q * R.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]  # uniform over all rotations
        norms = torch.randn(self.n_features, E, dtype=torch.float64, device="cpu").norm(dim=1)
        assign(self.projection, norms[:, None] * Q.mT.flatten(0, 1)[: self.n_features])

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{super().extra_repr()}, n_features={self.n_features}"

    def _features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        q, k = q * self.d_head**-0.25, k * self.d_head**-0.25
        w = self.projection.to(q.dtype).mT  # (E, F)
        along_q, along_k = q @ w, k @ w  # (B, H, L, F)
        peak_q, peak_k = along_q.amax(-1, keepdim=True), along_k.amax(-1, keepdim=True)
        phi_q, phi_k = (along_q - peak_q).exp() + STABILIZER, (along_k - peak_k).exp() + STABILIZER
        return phi_q, phi_k, peak_k[..., 0] - k.square().sum(-1) / 2
