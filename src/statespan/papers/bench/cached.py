"""The Transformers that `table7` and `table8` compare with: ours with flash attention and a cache, and Hugging Face's.

Shapes: B batch, H heads, E features of a head, M slots of a cache, D features.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from statespan.generation.adaptive import choose
from statespan.generation.capture import Captured, CudaRecorder
from statespan.generation.sampling import Sampling
from statespan.nn import AdaptiveTokens
from statespan.papers.baselines.attention import Attention
from statespan.papers.baselines.transformer import Transformer
from statespan.papers.bench.case import Floor, Settings, Tensors, Work

HUGGING_FACE = "Hugging Face GPT-2"
AS_IT_COMES = f"{HUGGING_FACE} as it comes"
PLACES = 1024
"""Positions of GPT-2 that have a vector of their own; those beyond share them in turn."""


class CachedTransformer(nn.Module):
    """A Transformer of tokens with a cache of fixed size, and one step of it at a given context.

    Args:
        d_model: Number of features D.
        n_heads: Number of heads H.
        n_layers: Number of blocks.
        tokens: What embeds tokens and gives their log-probabilities.
        places: Positions that have a vector of their own; those beyond share them in turn.
        device: Where it lives.
        dtype: Its dtype.
    """

    def __init__(
        self, d_model: int, n_heads: int, n_layers: int, tokens: Any, places: int, device: torch.device,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens, self.place = tokens, nn.Embedding(places, d_model, device=device, dtype=dtype)
        mixers = [Attention(d_model, n_heads, device=device, dtype=dtype) for _ in range(n_layers)]
        self.stack = Transformer(d_model, mixers, d_ff=4 * d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The log-probabilities (B, L, V) after tokens x (B, L), in one pass."""
        places = torch.arange(x.shape[1], device=x.device)
        return self.tokens.log_probs(self.stack(self.tokens(x) + self.place(places)))

    def cache(self, batch: int, slots: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each block, (B, H, M, E)."""
        mixers: list[Any] = [block.mixer for block in self.stack._blocks()]
        shape = (batch, mixers[0].n_heads, slots, mixers[0].d_head)
        weight = mixers[0].out.weight
        return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in mixers]

    def step(self, x: Tensor, cache: list[tuple[Tensor, Tensor]], context: int) -> Tensor:
        """The features (B, D) after one more token x (B,), the ``context``-th of its sequence.

        Its key and value go into the cache in place; attention is over what is in use, without a mask, which is the
        case that the fused kernels are made for.
        """
        y = self.tokens(x) + self.place.weight[(context - 1) % self.place.num_embeddings]
        for block, (keys, values) in zip(self.stack._blocks(), cache):
            mixer: Any = block.mixer
            z = block.mixer_norm(y)[:, None]
            q, k, v = mixer._heads(z, None)
            keys[:, :, context - 1], values[:, :, context - 1] = k[:, :, 0], v[:, :, 0]
            mixed = scaled_dot_product_attention(q, keys[:, :, :context], values[:, :, :context])
            y = block._after(y, mixer._output(mixed, None)[:, 0], None)
        return self.stack.norm(y)

    def choose(self, features: Tensor, uniform: Tensor) -> Tensor:
        """A token for each row, as our own models choose theirs."""
        if isinstance(self.tokens, AdaptiveTokens):
            return choose(self.tokens, features, uniform, 1.0)[0]
        return Sampling()(self.tokens.log_probs(features), uniform)


class Values(nn.Module):
    """A table of tokens and a linear map to fewer values: images."""

    def __init__(self, vocabulary: int, values: int, d_model: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, d_model, device=device, dtype=dtype)
        self.linear = nn.Linear(d_model, values, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Features of tokens."""
        return self.table(x)

    def log_probs(self, features: Tensor) -> Tensor:
        """Log-probabilities of values."""
        return self.linear(features).log_softmax(-1)


def words(vocabulary: int, d_model: int, cutoffs: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Any:
    """The adaptive embedding and softmax of the language models."""
    return AdaptiveTokens(vocabulary, d_model, cutoffs=cutoffs, device=device, dtype=dtype)


def cached_work(make: Callable[[], CachedTransformer], settings: Settings, batch: int, context: int) -> Work:
    """A step of a Transformer at a context, and the choice of a token; compared with its own parallel pass."""
    device = settings.device
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    model = make().eval()
    tokens = torch.randint(2, (2, 12), device=device)
    with torch.no_grad():
        cache = model.cache(batch, context)
        x = torch.zeros(batch, dtype=torch.int64, device=device)
        uniform = torch.rand(batch, dtype=torch.float64, device=device)

        def advance() -> None:
            x.copy_(model.choose(model.step(x, cache, context), uniform))

        taken: Callable[[], None] = advance
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            taken = Captured(advance, [], CudaRecorder(device))
        for _ in range(2):
            taken()

    @torch.no_grad()
    def run() -> Tensors:
        taken()
        return {"output": x}

    @torch.no_grad()
    def few() -> Tensors:
        kept = model.cache(len(tokens), tokens.shape[1])
        steps = [model.step(tokens[:, t], kept, t + 1) for t in range(tokens.shape[1])]
        return {"output": model.tokens.log_probs(torch.stack(steps, 1))}

    @torch.no_grad()
    def wanted() -> Tensors:
        return {"output": copy.deepcopy(model).to(settings.wide)(tokens)}

    peak = None if device.type == "cpu" else torch.cuda.max_memory_allocated(device) - before
    return Work(run, wanted, sum(p.numel() for p in model.parameters()), peak, few)


def cached_floor(d_model: int, n_layers: int, weights: int, batch: int, context: int, itemsize: int) -> Floor:
    """All weights are read, and the keys and values of all rows."""
    cache = 2.0 * batch * n_layers * context * d_model * itemsize
    return Floor(
        bytes=itemsize * weights + cache,
        flops=2.0 * batch * weights + 4.0 * batch * n_layers * context * d_model,
        how="weights, and the keys and values of all rows, read once; a product with each of them",
    )


def hugging_face_work(
    settings: Settings, batch: int, context: int, d_model: int, n_heads: int, n_layers: int, *, as_it_comes: bool
) -> Work:
    """A step of transformers' GPT-2: the blocks alone, without embedding and softmax.

    As in appendix D.3.3 of the S4 paper, which leaves those out in favour of this baseline. It runs as its users run
    it, without a graph.

    Args:
        settings: The user's choices.
        batch: Rows.
        context: Tokens of which the last is read in the step.
        d_model: Number of features.
        n_heads: Number of heads.
        n_layers: Number of blocks.
        as_it_comes: Whether in float32 with the cache that it makes by itself, to which each step appends by copying
            all of it; else in the settings' precision with a static cache.
    """
    import transformers

    device, dtype = settings.device, torch.float32 if as_it_comes else settings.dtype
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    attention = {} if as_it_comes else {"attn_implementation": "sdpa"}
    # some versions keep a mask of all pairs of positions in each block, so there are no more of them than it has
    config = transformers.GPT2Config(
        n_embd=d_model, n_layer=n_layers, n_head=n_heads, n_inner=4 * d_model, n_positions=min(context, PLACES),
        vocab_size=2, bos_token_id=None, eos_token_id=None, **attention,
    )  # fmt: skip
    with device:
        model = transformers.GPT2Model(config).eval().to(dtype)
    cache = (_grown_cache if as_it_comes else _static_cache)(config, batch, context, device, dtype)
    x = torch.randn(batch, 1, d_model, device=device).to(dtype)
    place = torch.tensor([context - 1], device=device)
    more = {"cache_position": place} if "cache_position" in inspect.signature(model.forward).parameters else {}
    positions = (place % config.n_positions)[None].expand(batch, 1)

    @torch.no_grad()
    def run() -> Tensors:
        for layer in getattr(cache, "layers", ()):  # newer static caches count for themselves: back to the last place
            if isinstance(getattr(layer, "cumulative_length", None), Tensor):
                layer.cumulative_length.fill_(context - 1)
        y = model(inputs_embeds=x, past_key_values=cache, use_cache=True, position_ids=positions, **more)
        if as_it_comes:
            cache.crop(-1)
        return {"output": y.last_hidden_state}

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    run()
    peak = None if device.type == "cpu" else torch.cuda.max_memory_allocated(device) - before
    return Work(run, None, sum(p.numel() for p in model.parameters()), peak)


def _static_cache(config: Any, batch: int, context: int, device: torch.device, dtype: torch.dtype) -> Any:
    """Room for the whole context."""
    import transformers

    options = {
        "config": config, "max_batch_size": batch, "batch_size": batch, "max_cache_len": context, "device": device,
        "dtype": dtype,
    }  # fmt: skip
    taken = inspect.signature(transformers.StaticCache.__init__).parameters  # which differ between its versions
    return transformers.StaticCache(**{name: value for name, value in options.items() if name in taken})


def _grown_cache(config: Any, batch: int, context: int, device: torch.device, dtype: torch.dtype) -> Any:
    """Keys and values of all tokens but the last."""
    import transformers

    cache = transformers.DynamicCache()
    shape = (batch, config.n_head, context - 1, config.n_embd // config.n_head)
    for layer in range(config.n_layer):
        keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        cache.update(keys, values, layer)
    return cache
