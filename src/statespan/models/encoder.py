"""From what a model is given to features: samples through a linear map, tokens through a table.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_int, check_tensor
from statespan.nn.initial import Initialised
from statespan.nn.padding import Padding
from statespan.nn.precision import full_precision
from statespan.nn.untouched import example_of
from statespan.ops.register import transformed


class Encoder(Initialised):
    """A linear map of real samples (B, L, d_input), or a table of tokens (B, L), to features (B, L, D).

    Features have the precision of the parameters, under autocast too: what distinguishes one sample from the next may
    be small beside the map's bias, and 16 bits of the sum would round it away. A norm that follows sees it.

    Args:
        d_model: Number of features D.
        d_input: Features of a sample; None for tokens.
        vocabulary: Number of tokens; None for samples.
        device: Where the parameters live.
        dtype: Their dtype.
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_input: int | None,
        vocabulary: int | None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_inputs(d_input, vocabulary)
        self.d_input, self.vocabulary = d_input, vocabulary
        self.map: nn.Module
        if d_input is not None:
            self.map = nn.Linear(d_input, d_model, device=device, dtype=dtype)
        else:
            self.map = nn.Embedding(vocabulary or 0, d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The features of x, which ``check`` has seen."""
        if self.d_input is None:
            return self.map(x)
        with full_precision(x):
            return self.map(x.to(example_of(self).dtype))

    def check(self, x: Any, *leading: str) -> Tensor:
        """Return x if it is samples or tokens with these leading dimensions."""
        if self.vocabulary is not None:
            return check_tokens("x", x, leading, self.vocabulary)
        check_tensor("x", x, (*leading, self.d_input or 0), kind="float")
        dtype = example_of(self).dtype
        mixed = not x.is_meta and torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
        if x.dtype != dtype and not mixed:
            raise TypeError(f"x must have the dtype of the model, {dtype}, got {x.dtype}; cast one or use autocast")
        return x


def check_inputs(d_input: int | None, vocabulary: int | None) -> None:
    """Refuse anything but one of the two."""
    if (d_input is None) == (vocabulary is None):
        raise ValueError(
            f"one of d_input (samples) and vocabulary (tokens) must be given, got d_input={d_input} and "
            f"vocabulary={vocabulary}"
        )
    if d_input is not None:
        check_int("d_input", d_input, minimum=1)
    else:
        check_int("vocabulary", vocabulary, minimum=1)


def check_tokens(name: str, x: Any, leading: tuple[str, ...], vocabulary: int) -> Tensor:
    """Return ``x`` if it is tokens 0 … vocabulary − 1 with these dimensions.

    Values are looked at where that is free of waiting: on the CPU, outside of tracing. Padding may hold anything, so
    this comes after :func:`fill_input`.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be tokens (torch.int64 or torch.int32), got {x.dtype}")
    if x.ndim != len(leading):
        raise ValueError(f"{name} must have shape ({', '.join(leading)}), got {tuple(x.shape)}")
    if x.device.type == "cpu" and x.numel() and not torch.compiler.is_compiling() and not transformed():
        low, high = int(x.min()), int(x.max())
        if low < 0 or high >= vocabulary:
            raise ValueError(f"{name} must be tokens 0 … {vocabulary - 1}, got {low} … {high}")
    return x


def fill_input(x: Tensor, padding: Padding | None) -> Tensor:
    """X (B, L) or (B, L, d_input) with zeros for padding."""
    if padding is None:
        return x
    return x.masked_fill(~padding.mask[..., 0] if x.ndim == 2 else ~padding.mask, 0)
