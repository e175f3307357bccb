"""Argument checks: one typed error that names the argument, what came and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


def check_choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is one of the allowed names."""
    options = tuple(allowed)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {options}, got {type(value).__name__} {value!r}")
    if value not in options:
        raise ValueError(f"{name} must be one of {options}, got {value!r}")
    return value


def check_int(name: str, value: Any, *, minimum: int, even: bool = False) -> int:
    """Return ``value`` if it is an integer of at least ``minimum`` (and even, where asked)."""
    allowed = f"{'an even' if even else 'an'} integer >= {minimum}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be {allowed}, got {type(value).__name__} {value!r}")
    number = int(value)
    if number < minimum or (even and number % 2):
        raise ValueError(f"{name} must be {allowed}, got {number}")
    return number


def check_number(name: str, value: Any, *, above: float, below: float = math.inf, closed: bool = False) -> float:
    """Return ``value`` if it is a finite real number in (above, below), or [above, below) where ``closed``."""
    allowed = f"a number {'>=' if closed else '>'} {above:g}" + (f" and < {below:g}" if below < math.inf else "")
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be {allowed}, got {type(value).__name__} {value!r}")
    number = float(value)
    inside = number >= above if closed else number > above
    if not (math.isfinite(number) and inside and number < below):
        raise ValueError(f"{name} must be {allowed}, got {number!r}")
    return number


def check_bool(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__} {value!r}")
    return value


def check_tensor(name: str, value: Any, shape: Sequence[int | str], *, kind: str) -> Tensor:
    """Return ``value`` if it is a tensor of this kind and shape.

    Args:
        name: The argument's name.
        value: What the caller gave.
        shape: One entry a dimension: a number that must match, or a word for any size.
        kind: "real" (float32 or float64), "complex" (complex64 or complex128) or "float" (any floating type).
    """
    kinds = {
        "real": (torch.float32, torch.float64),
        "complex": (torch.complex64, torch.complex128),
        "float": (torch.float16, torch.bfloat16, torch.float32, torch.float64),
    }
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.dtype not in kinds[kind]:
        raise TypeError(f"{name} must have one of the dtypes {kinds[kind]}, got {value.dtype}")
    wanted = "(" + ", ".join(str(s) for s in shape) + ("," if len(shape) == 1 else "") + ")"
    fits = value.ndim == len(shape) and all(s in (n, str(s)) for s, n in zip(shape, value.shape, strict=True))
    if not fits:
        raise ValueError(f"{name} must have shape {wanted}, got {tuple(value.shape)}")
    return value
