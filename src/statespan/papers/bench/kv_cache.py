"""The Transformers of `s4_table7` and `s4_table8`, with a cache of past keys and values.

One is ours, with flash attention and a cache of fixed size; the other is Hugging Face's GPT-2.

Shapes: B batch, H heads, E features of a head, M slots of a cache, D features.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from statespan.generation.adaptive import choose
from statespan.generation.capture import Captured, CudaRecorder
from statespan.generation.sampling import Sampling
from statespan.nn import AdaptiveTokens
from statespan.papers.baselines.attention import Attention
from statespan.papers.baselines.transformer import Transformer
from statespan.papers.bench.case import BenchOptions, Floor, Tensors, Work, count_parameters
from statespan.papers.bench.measure import allocated, peak_over, reset_peak

STATIC = "Hugging Face GPT-2"
AS_IT_COMES = f"{STATIC} as it comes"
LEARNED_PLACES = 1024
"""Positions of GPT-2 that have learned vectors; later ones reuse these in turn."""


class StackSizes(NamedTuple):
    """The sizes of a stack of Transformer blocks.

    Example:
        >>> StackSizes(d_model=64, n_layers=2, n_heads=4)._replace(n_layers=4).n_layers
        4
    """

    d_model: int
    n_layers: int
    n_heads: int


class CachedTransformer(nn.Module):
    """A token Transformer with a cache of fixed size, and its step at a given context.

    ``tokens`` embeds tokens and returns log-probabilities; all parameters have its device and dtype. The first
    ``places`` positions have learned vectors, and later ones reuse these in turn.

    Example:
        >>> from statespan.models.language import PlainTokens
        >>> model = CachedTransformer(StackSizes(16, n_layers=1, n_heads=2), PlainTokens(100, 16), places=32)
        >>> model(torch.zeros(2, 10, dtype=torch.int64)).shape
        torch.Size([2, 10, 100])
    """

    def __init__(self, sizes: StackSizes, tokens: Any, places: int) -> None:
        super().__init__()
        like = next(tokens.parameters())
        factory = {"device": like.device, "dtype": like.dtype}
        self.tokens, self.place = tokens, nn.Embedding(places, sizes.d_model, **factory)
        mixers = [Attention(sizes.d_model, sizes.n_heads, **factory) for _ in range(sizes.n_layers)]
        self.stack = Transformer(sizes.d_model, mixers, d_ff=4 * sizes.d_model, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """The log-probabilities (B, L, V) after tokens x (B, L), in one pass."""
        places = torch.arange(x.shape[1], device=x.device)
        return self.tokens.log_probs(self.stack(self.tokens(x) + self.place(places)))

    def cache(self, batch: int, slots: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each block, (B, H, M, E)."""
        states = [block.initial_state(batch, max_length=slots) for block in self.stack.parts()]
        return [(state.keys, state.values) for state in states]

    def step(self, x: Tensor, cache: list[tuple[Tensor, Tensor]], context: int) -> Tensor:
        """The features (B, D) after one more token x (B,), the ``context``-th of its sequence.

        Its key and value are written to the cache in place. Attention is over the slots in use, without a mask, which
        the fused kernels are best at.
        """
        y = self.tokens(x) + self.place.weight[(context - 1) % self.place.num_embeddings]
        for block, (keys, values) in zip(self.stack.parts(), cache):
            mixer: Any = block.mixer
            z = block.mixer_norm(y)[:, None]
            q, k, v = mixer._heads(z, None)
            keys[:, :, context - 1], values[:, :, context - 1] = k[:, :, 0], v[:, :, 0]
            mixed = scaled_dot_product_attention(q, keys[:, :, :context], values[:, :, :context])
            y = block._after(y, mixer._output(mixed, None)[:, 0], None)
        return self.stack.norm(y)

    def choose(self, features: Tensor, uniform: Tensor) -> Tensor:
        """Choose a token for each row, as our own models do."""
        if isinstance(self.tokens, AdaptiveTokens):
            return choose(self.tokens, features, uniform, 1.0)[0]
        return Sampling()(self.tokens.log_probs(features), uniform)


def cached_work(make: Callable[[], CachedTransformer], options: BenchOptions, batch: int, context: int) -> Work:
    """A step of a Transformer at a context, with sampling; checked against its own parallel pass."""
    device = options.device
    before = allocated(device)
    model = make().eval()
    tokens = torch.randint(2, (2, 12), device=device)
    with torch.no_grad():
        cache = model.cache(batch, context)
        x = torch.zeros(batch, dtype=torch.int64, device=device)
        uniform = torch.rand(batch, dtype=torch.float64, device=device)

        def step() -> None:
            x.copy_(model.choose(model.step(x, cache, context), uniform))

        reset_peak(device)
        advance: Callable[[], None] = step
        if device.type == "cuda":
            advance = Captured(step, [], CudaRecorder(device))
        for _ in range(2):
            advance()

    @torch.no_grad()
    def run() -> Tensors:
        advance()
        return {"output": x}

    @torch.no_grad()
    def stepped() -> Tensors:
        cache = model.cache(len(tokens), tokens.shape[1])
        steps = [model.step(tokens[:, t], cache, t + 1) for t in range(tokens.shape[1])]
        return {"output": model.tokens.log_probs(torch.stack(steps, 1))}

    @torch.no_grad()
    def parallel() -> Tensors:
        return {"output": copy.deepcopy(model).to(options.wide)(tokens)}

    return Work(run, parallel, count_parameters(model), peak_over(before, device), stepped)


def cached_floor(sizes: StackSizes, weights: int, batch: int, *, context: int, itemsize: int) -> Floor:
    """The floor: all weights are read, and the keys and values of all rows."""
    cached = batch * sizes.n_layers * context * sizes.d_model
    return Floor(
        bytes=itemsize * weights + 2.0 * cached * itemsize,
        flops=2.0 * batch * weights + 4.0 * cached,
        how="weights, and the keys and values of all rows, read once; a product with each of them",
    )


def hugging_face_work(options: BenchOptions, sizes: StackSizes, batch: int, context: int, *, as_it_comes: bool) -> Work:
    """A step of transformers' GPT-2, which reads the last of ``context`` tokens; the blocks alone.

    Embedding and softmax are left out as in appendix D.3.3 of the S4 paper, in favour of this baseline. It runs without
    a CUDA graph, as its users run it: with ``as_it_comes`` in float32 and with its default cache, which every step
    copies to append to it; otherwise in the dtype of the options with a static cache.
    """
    import transformers

    device, dtype = options.device, torch.float32 if as_it_comes else options.dtype
    before = allocated(device)
    attention = {} if as_it_comes else {"attn_implementation": "sdpa"}
    # some versions keep a mask of all pairs of positions in each block, so their number is limited
    config = transformers.GPT2Config(
        n_embd=sizes.d_model, n_layer=sizes.n_layers, n_head=sizes.n_heads, n_inner=4 * sizes.d_model,
        n_positions=min(context, LEARNED_PLACES), vocab_size=2, bos_token_id=None, eos_token_id=None, **attention,
    )  # fmt: skip
    with device:
        model = transformers.GPT2Model(config).eval().to(dtype)
    like = torch.zeros(batch, 0, dtype=dtype, device=device)
    cache = (_grown_cache if as_it_comes else _static_cache)(config, context, like)
    x = torch.randn(batch, 1, sizes.d_model, device=device).to(dtype)
    place = torch.tensor([context - 1], device=device)
    places = {"cache_position": place} if "cache_position" in inspect.signature(model.forward).parameters else {}
    places["position_ids"] = (place % config.n_positions)[None].expand(batch, 1)

    @torch.no_grad()
    def run() -> Tensors:
        for layer in getattr(cache, "layers", ()):  # newer static caches count their tokens: reset the count
            if isinstance(getattr(layer, "cumulative_length", None), Tensor):
                layer.cumulative_length.fill_(context - 1)
        y = model(inputs_embeds=x, past_key_values=cache, use_cache=True, **places)
        if as_it_comes:
            cache.crop(-1)
        return {"output": y.last_hidden_state}

    reset_peak(device)
    run()
    return Work(run, None, count_parameters(model), peak_over(before, device))


def _static_cache(config: Any, context: int, like: Tensor) -> Any:
    """A static cache for the whole context, with the batch size, dtype and device of a tensor."""
    import transformers

    batch = len(like)
    options = {
        "config": config, "max_batch_size": batch, "batch_size": batch, "max_cache_len": context,
        "device": like.device, "dtype": like.dtype,
    }  # fmt: skip
    known = inspect.signature(transformers.StaticCache.__init__).parameters  # differs between versions
    return transformers.StaticCache(**{name: value for name, value in options.items() if name in known})


def _grown_cache(config: Any, context: int, like: Tensor) -> Any:
    """A dynamic cache with the keys and values of all tokens but the last."""
    import transformers

    cache = transformers.DynamicCache()
    shape = (len(like), config.n_head, context - 1, config.n_embd // config.n_head)
    for layer in range(config.n_layer):
        cache.update(like.new_zeros(shape), like.new_zeros(shape), layer)
    return cache
