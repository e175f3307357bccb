"""Encodes inputs as features: samples by a linear map, tokens by an embedding table.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_int, check_same_dtype, check_tensor
from statespan.nn.initial import Initialised
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.precision import example_of, full_precision
from statespan.ops.register import transformed


class Encoder(Initialised):
    """A linear map of real samples (B, L, d_input), or an embedding of tokens (B, L), to features (B, L, D).

    Features have the precision of the parameters, under autocast too: the difference of two samples may be small beside
    the map's bias, so that 16 bits would round it away before a norm that depends on it.

    Exactly one of ``d_input`` (samples) and ``vocabulary`` (tokens) is given; the other is None.

    Example:
        >>> Encoder(8, d_input=3, vocabulary=None)(torch.zeros(2, 10, 3)).shape
        torch.Size([2, 10, 8])
        >>> Encoder(8, d_input=None, vocabulary=100)(torch.zeros(2, 10, dtype=torch.int64)).shape
        torch.Size([2, 10, 8])
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
        """The features of x, which was checked before."""
        if self.d_input is None:
            return self.map(x)
        with full_precision(x):
            return self.map(x.to(example_of(self).dtype))

    def check(self, x: Any, *leading: str) -> Tensor:
        """Return x if it holds samples or tokens with these leading dimensions."""
        if self.vocabulary is not None:
            return check_tokens("x", x, leading, self.vocabulary)
        check_tensor("x", x, (*leading, self.d_input or 0), kind="float")
        check_same_dtype(x, example_of(self).dtype, "model")
        return x

    def read(self, x: Tensor, lengths: Lengths) -> tuple[Tensor, Padding | None]:
        """Encode whole sequences, checked, with zeros for padding."""
        padding = Padding.of(x, lengths)
        return self.check(fill(x, padding), "batch", "length"), padding


def check_inputs(d_input: int | None, vocabulary: int | None) -> None:
    """Require exactly one of d_input and vocabulary."""
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
    """Return ``x`` if it holds tokens 0 … vocabulary − 1 and has these dimensions.

    Values are checked on the CPU only, outside of tracing, where reading them costs no synchronization. Padding may
    hold anything, so fill it before.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be tokens (torch.int64 or torch.int32), got {x.dtype}")
    if x.ndim != len(leading):
        raise ValueError(f"{name} must have shape ({', '.join(leading)}), got {tuple(x.shape)}")
    if x.device.type == "cpu" and x.numel() and not torch.compiler.is_compiling() and not transformed():
        smallest, largest = int(x.min()), int(x.max())
        if smallest < 0 or largest >= vocabulary:
            raise ValueError(f"{name} must be tokens 0 … {vocabulary - 1}, got {smallest} … {largest}")
    return x
