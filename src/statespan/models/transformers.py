"""The language model with Hugging Face's interface: ``generate``, ``Trainer`` and the Auto classes.

Importing this module registers both classes with ``AutoConfig`` and ``AutoModelForCausalLM``. The cache is the state,
so its size does not depend on the number of tokens. Padding may be on either side of a sequence.

Shapes: B batch, L length, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from statespan._check import check_int
from statespan._suggest import suggest
from statespan.models.config import parse
from statespan.models.encoder import check_tokens
from statespan.models.language import LanguageConfig, LanguageModel
from statespan.models.pretrained import LoadError
from statespan.nn.padding import Padding, fill

IGNORED = -100
"""The label of a position that has no loss."""
_FIELDS = {field.name: field for field in fields(LanguageConfig)}
_BYTES = 256


class StatespanConfig(PretrainedConfig):  # type: ignore[misc]
    """The config of :class:`StatespanForCausalLM`: the fields of :class:`LanguageConfig`, and Hugging Face's own.

    Args:
        options: Fields of either by name. The vocabulary is 256 by default; ``vocab_size``, ``hidden_size`` and
            ``num_hidden_layers`` are aliases of ``vocabulary``, ``d_model`` and ``n_layers``.

    Example:
        >>> StatespanConfig(vocabulary=1000, d_model=64, layer="s4d").vocab_size
        1000
    """

    model_type = "statespan"
    attribute_map = {"vocab_size": "vocabulary", "hidden_size": "d_model", "num_hidden_layers": "n_layers"}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        own = {self.attribute_map.get(name, name): value for name, value in options.items()}
        others = {name: own.pop(name) for name in list(own) if name not in _FIELDS}
        if "transformers_version" not in others:  # a file may have keys of another release of transformers
            known = PretrainedConfig().to_dict().keys() | {"attn_implementation", "name_or_path", "dtype"}
            for name in others.keys() - known:
                if not name.endswith("_token_id"):
                    raise ValueError(f"options has no {name!r}{suggest(name, _FIELDS, 'see LanguageConfig')}")
        super().__init__(**others)
        for name, value in parse(LanguageConfig, {"vocabulary": _BYTES, **own}).to_dict().items():
            setattr(self, name, value)

    def language(self) -> LanguageConfig:
        """The config of the language model itself."""
        return parse(LanguageConfig, {name: getattr(self, name) for name in _FIELDS})


@dataclass
class StatespanCache:
    """The state of a model after ``seen`` tokens, which replaces a cache of keys and values.

    A model returns a new cache and leaves the given one unchanged, so one prefix can be continued many times.

    Example:
        >>> cache = StatespanCache(state=(torch.arange(3.0)[:, None],), seen=7)
        >>> cache.reorder_cache(torch.tensor([2, 2, 0]))
        >>> cache.get_seq_length(), cache.state[0].flatten()
        (7, tensor([2., 2., 0.]))
    """

    state: Any
    """A nested tuple of tensors (B, …)."""
    seen: int
    step: Callable[[Tensor, Any], tuple[Tensor, Any]] | None = None
    """The step function, set up once; None until the first step without gradients."""

    is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens read, including padding."""
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows of the state, as beam search requires."""
        self.state = _select(self.state, beam_idx)


class StatespanForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A :class:`LanguageModel` for Hugging Face's ``generate`` and ``Trainer``; ``model`` is the language model itself.

    Args:
        config: A :class:`StatespanConfig`.

    Example:
        >>> model = StatespanForCausalLM(StatespanConfig(vocabulary=50, d_model=16, n_layers=1)).eval()
        >>> prompt = torch.tensor([[3, 4, 5]])
        >>> model.generate(prompt, max_new_tokens=7, num_beams=3).shape
        torch.Size([1, 10])
    """

    config_class = StatespanConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    accepts_loss_kwargs = True
    _is_stateful = True
    _no_split_modules = ["ResidualBlock"]  # noqa: RUF012
    _keep_in_fp32_modules = _keep_in_fp32_modules_strict = ["ssm"]  # noqa: RUF012

    def __init__(self, config: StatespanConfig) -> None:
        super().__init__(config)
        self.model = LanguageModel(config.language())
        self.post_init()

    @classmethod
    def from_model(cls, model: LanguageModel) -> StatespanForCausalLM:
        """Wrap a model without a copy: both share their weights."""
        if not isinstance(model, LanguageModel):
            raise TypeError(f"model must be a LanguageModel, got {type(model).__name__}")
        with torch.device("meta"):
            wrapped = cls(StatespanConfig(**model.config.to_dict()))
        wrapped.model = model
        return wrapped.train(model.training)

    @classmethod
    def from_pretrained(cls, *arguments: Any, **options: Any) -> Any:
        """Load from a folder or the Hub: safetensors only, and no weight may be missing.

        The arguments are those of :meth:`transformers.PreTrainedModel.from_pretrained`.

        Raises:
            LoadError: Weights are missing or have another shape.
        """
        if options.setdefault("use_safetensors", True) is not True:
            raise ValueError(f"use_safetensors must be True, got {options['use_safetensors']!r}")
        with_info = options.pop("output_loading_info", False)
        model, info = super().from_pretrained(*arguments, output_loading_info=True, **options)
        if wrong := sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]])):
            raise LoadError(f"weights must be those of the config: {wrong[:3]} are missing or have another shape")
        return (model, info) if with_info else model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: StatespanCache | None = None,
        labels: Tensor | None = None,
        *,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Log-probabilities of the next token at each position, and the loss if there are labels.

        Args:
            input_ids: Tokens (B, L).
            attention_mask: (B, L), 0 for padding, which may be on the left or on the right. Columns for earlier tokens
                may precede these.
            past_key_values: The cache of an earlier call; None to start.
            labels: The tokens to predict (B, L), usually ``input_ids``: position t predicts the label at t + 1. Labels
                of −100 and labels of padding do not count.
            use_cache: Whether to return a cache; None to return one in evaluation mode without labels.
            logits_to_keep: Number of positions at the end to return logits for; 0 for all.
            num_items_in_batch: Divisor of the loss; None for the number of labels that count.
            return_dict: False for a tuple.

        Returns:
            ``logits`` (B, L, V), 0 for padding; ``loss``; ``past_key_values``. In training with labels, an adaptive
            softmax returns no logits: the loss needs only those of the labels.
        """
        check_int("logits_to_keep", logits_to_keep, minimum=0)
        if use_cache is None:
            use_cache = not self.training and labels is None
        rows = _Rows.of(input_ids, attention_mask)
        check_tokens("input_ids", rows.tokens, ("batch", "length"), self.config.vocabulary)
        cache = past_key_values
        if cache is not None and input_ids.shape[1] == 1 and rows.padding is None:
            features, after = self._advance(input_ids, cache)
        elif use_cache or cache is not None:
            features, after = self._read_prompt(rows, cache)
        else:
            after = None
            features = self.model.backbone(self.model.encode(rows.tokens), lengths=rows.padding)
        loss = None if labels is None else self._mean_loss(features, rows, labels, num_items_in_batch)
        logits = None
        if loss is None or not (self.training and self.config.cutoffs):
            logits = self._logits(features, rows, logits_to_keep)
        if return_dict is None:
            return_dict = self.config.return_dict
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=after if use_cache else None)
        return output if return_dict else output.to_tuple()

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """The arguments of ``forward`` for one step of ``generate``; only the prompt has a mask."""
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, **kwargs)
        if kwargs.get("use_cache") and not kwargs.get("is_first_iteration", False):
            inputs.pop("attention_mask", None)
        return inputs

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # generate would create a cache of keys and values

    def _init_weights(self, module: Any) -> None:
        """Do nothing: the model initializes itself, and loading rejects missing weights."""

    def _read_prompt(self, rows: _Rows, cache: StatespanCache | None) -> tuple[Tensor, StatespanCache]:
        batch, length = rows.tokens.shape
        state = self.model.initial_state(batch, dtype=None) if cache is None else cache.state
        features, after = self.model.prefill(rows.tokens, state, lengths=rows.padding, decode=False)
        return features, StatespanCache(after, length + (0 if cache is None else cache.seen))

    def _advance(self, input_ids: Tensor, cache: StatespanCache) -> tuple[Tensor, StatespanCache]:
        if torch.is_grad_enabled():  # a step that was set up without gradients has none
            features, after = self.model.stepper(decode=False)(input_ids[:, 0], cache.state)
            return features[:, None], StatespanCache(after, cache.seen + 1)
        step = cache.step or self.model.stepper(decode=False)
        features, after = step(input_ids[:, 0], cache.state)
        return features[:, None], StatespanCache(after, cache.seen + 1, step)

    def _logits(self, features: Tensor, rows: _Rows, keep: int) -> Tensor:
        """The log-probabilities of the last positions, in the order of the input; 0 for padding."""
        logits = self.model.decode(rows.restore(features)[:, -keep:])
        if rows.padding is None:
            return logits
        return logits.masked_fill(~rows.restore(rows.padding.mask)[:, -keep:], 0.0)

    def _mean_loss(self, features: Tensor, rows: _Rows, labels: Tensor, count: Tensor | int | None) -> Tensor:
        if labels.shape != rows.tokens.shape:
            raise ValueError(f"labels must have shape {tuple(rows.tokens.shape)}, got {tuple(labels.shape)}")
        y = rows.shift(labels)[:, 1:]
        counted = y != IGNORED
        if rows.padding is not None:
            counted &= rows.padding.mask[:, 1:, 0]
        y = check_tokens("labels", y.masked_fill(~counted, 0), ("batch", "length"), self.config.vocabulary).long()
        nats = self.model.losses(features[:, :-1], y)
        total = torch.where(counted, nats.to(torch.promote_types(nats.dtype, torch.float32)), 0.0).sum()
        return total / (counted.sum().clamp(min=1) if count is None else count)


@dataclass
class _Rows:
    """Tokens with their padding moved to the right and set to 0."""

    tokens: Tensor
    padding: Padding | None = None
    starts: Tensor | None = None
    """The original position of each row's first token; None without padding."""

    @classmethod
    def of(cls, input_ids: Tensor, mask: Tensor | None) -> _Rows:
        """From a mask (B, ≥ L), whose last L columns belong to the tokens."""
        if mask is None:
            return cls(input_ids)
        batch, length = input_ids.shape
        if mask.ndim != 2 or len(mask) != batch or mask.shape[1] < length:
            raise ValueError(f"attention_mask must have shape {(batch, length)}, got {tuple(mask.shape)}")
        real = mask[:, mask.shape[1] - length :] != 0
        if bool(real.all()):
            return cls(input_ids)
        padding = Padding.to(real.sum(1), length)
        rows = cls(input_ids, padding, real.int().argmax(1))
        if not bool(rows.shift(real).eq(padding.mask[..., 0]).all()):
            raise ValueError("attention_mask must have the ones of each row side by side, got zeros between them")
        rows.tokens = fill(rows.shift(input_ids), padding)
        return rows

    def shift(self, x: Tensor) -> Tensor:
        """Move the first token of each row of x (B, L) to position 0."""
        return x if self.starts is None else x.gather(1, self._places(self.starts, x.shape[1]))

    def restore(self, x: Tensor) -> Tensor:
        """Move features or logits (B, L, …) back to the original positions of their tokens."""
        return x if self.starts is None else x.take_along_dim(self._places(-self.starts, x.shape[1])[..., None], 1)

    @staticmethod
    def _places(shift: Tensor, length: int) -> Tensor:
        return (torch.arange(length, device=shift.device) + shift[:, None]) % length


def _select(state: Any, index: Tensor) -> Any:
    """The state with its rows selected by index."""
    if isinstance(state, Tensor):
        return state.index_select(0, index.to(state.device))
    return None if state is None else tuple(_select(part, index) for part in state)


AutoConfig.register("statespan", StatespanConfig, exist_ok=True)
AutoModelForCausalLM.register(StatespanConfig, StatespanForCausalLM, exist_ok=True)
