"""Generation steps of Hugging Face's GPT-2, a baseline of `s4_table8`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from statespan.papers.bench.case import BenchOptions, Tensors, Work, count_parameters
from statespan.papers.bench.kv_cache import StackSizes
from statespan.papers.bench.measure import allocated, peak_over

STATIC = "Hugging Face GPT-2"
AS_IT_COMES = f"{STATIC} as it comes"
LEARNED_PLACES = 1024
"""Positions of GPT-2 that have a vector of their own; those beyond share them in turn."""


def hugging_face_work(options: BenchOptions, sizes: StackSizes, batch: int, context: int, *, as_it_comes: bool) -> Work:
    """A step of transformers' GPT-2, which reads the last of ``context`` tokens; the blocks alone.

    Embedding and softmax are left out as in appendix D.3.3 of the S4 paper, in favour of this baseline. It runs as its
    users run it, without a graph: ``as_it_comes`` in float32 with the cache that it makes by itself, to which each step
    appends by copying all of it; else in the precision of the options with a static cache.
    """
    import transformers

    device, dtype = options.device, torch.float32 if as_it_comes else options.dtype
    before = allocated(device)
    attention = {} if as_it_comes else {"attn_implementation": "sdpa"}
    # some versions keep a mask of all pairs of positions in each block, so there are no more of them than it has
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
        for layer in getattr(cache, "layers", ()):  # newer static caches count for themselves: back to the last place
            if isinstance(getattr(layer, "cumulative_length", None), Tensor):
                layer.cumulative_length.fill_(context - 1)
        y = model(inputs_embeds=x, past_key_values=cache, use_cache=True, **places)
        if as_it_comes:
            cache.crop(-1)
        return {"output": y.last_hidden_state}

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
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
    known = inspect.signature(transformers.StaticCache.__init__).parameters  # which differ between its versions
    return transformers.StaticCache(**{name: value for name, value in options.items() if name in known})


def _grown_cache(config: Any, context: int, like: Tensor) -> Any:
    """A dynamic cache with the keys and values of all tokens but the last."""
    import transformers

    cache = transformers.DynamicCache()
    shape = (len(like), config.n_head, context - 1, config.n_embd // config.n_head)
    for layer in range(config.n_layer):
        cache.update(like.new_zeros(shape), like.new_zeros(shape), layer)
    return cache
