"""Argument checks: one typed error that names the argument, its value and what is allowed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

MOST_TOKENS = 1 << 15
LARGEST_VOCABULARY = 1 << 19  # bytes of the tokens' texts as JSON, in which a model's config stores them
UNKNOWN = "\ufffd"  # token 0 of a text in characters stands for each that is not in the vocabulary
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is one of the allowed names."""
    options = tuple(allowed)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {options}, got {type(value).__name__} {value!r}")
    if value not in options:
        raise ValueError(f"{name} must be one of {options}, got {value!r}")
    return value


def check_int(name: str, value: Any, *, minimum: int, even: bool = False) -> int:
    """Return ``value`` if it is an integer of at least ``minimum`` (and even, if required)."""
    allowed = f"{'an even' if even else 'an'} integer >= {minimum}"
    if isinstance(value, bool) or not isinstance(value, (Integral, torch.SymInt)):
        raise TypeError(f"{name} must be {allowed}, got {type(value).__name__} {value!r}")
    number: int = value if isinstance(value, torch.SymInt) else int(value)  # type: ignore[assignment]
    if number < minimum or (even and number % 2):
        raise ValueError(f"{name} must be {allowed}, got {number}")
    return number


def check_integers(name: str, values: Any, *, minimum: int, most: int) -> tuple[int, ...]:
    """Return ``values`` as a tuple of at most ``most`` integers, each at least ``minimum``."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be a sequence of integers, got {type(values).__name__} {values!r}")
    if len(values) > most:
        raise ValueError(f"{name} must be at most {most} integers, got {len(values)}")
    return tuple(check_int(name, value, minimum=minimum) for value in values)


def check_texts(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of tokens as a tuple if they are distinct, not empty, and fit into the config of a model."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise TypeError(f"{name} must be a sequence of texts, got {type(texts).__name__} {texts!r}")
    if len(texts) > MOST_TOKENS:
        raise ValueError(f"{name} must be at most {MOST_TOKENS} texts, got {len(texts)}")
    seen = set()
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a sequence of texts, got {type(text).__name__} {text!r} in it")
        if not text or text in seen:
            raise ValueError(f"{name} must be distinct texts that are not empty, got {text!r}{' twice' * bool(text)}")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"{name} must be Unicode text, got {text!r}, which has half of a surrogate pair")
        seen.add(text)
    if (size := len(json.dumps(list(texts)))) > LARGEST_VOCABULARY:
        raise ValueError(f"{name} must have at most {LARGEST_VOCABULARY} bytes as JSON, got {size}")
    return tuple(texts)


def check_number(name: str, value: Any, *, above: float, below: float = math.inf, closed: bool = False) -> float:
    """Return ``value`` if it is a finite real number in (above, below), or [above, below) where ``closed``."""
    allowed = f"a number {'>=' if closed else '>'} {above:g}" + (f" and < {below:g}" if below < math.inf else "")
    is_scalar = isinstance(value, Tensor) and value.numel() == 1 and not value.requires_grad
    if isinstance(value, bool) or not (isinstance(value, Real) or is_scalar):
        raise TypeError(f"{name} must be {allowed}, got {type(value).__name__} {value!r}")
    number = float(value)
    inside = number >= above if closed else number > above
    if not (inside and number < below):  # rejects NaN and infinity
        raise ValueError(f"{name} must be {allowed}, got {number!r}")
    return number


def check_dtype(name: str, value: Any) -> torch.dtype:
    """Return ``value`` if it is a floating dtype that a layer supports; None means torch's default."""
    if value is None:
        return torch.get_default_dtype()
    if not isinstance(value, torch.dtype):
        raise TypeError(f"{name} must be one of {FLOATS}, got {type(value).__name__} {value!r}")
    if value not in FLOATS:
        raise ValueError(f"{name} must be one of {FLOATS}, got {value}")
    return value


def check_same_dtype(x: Tensor, dtype: torch.dtype, owner: str) -> None:
    """Reject an input whose dtype differs from its module's, unless autocast converts both."""
    if x.dtype == dtype:
        return
    if x.is_meta or not torch.is_autocast_enabled(x.device.type) or x.dtype == torch.float64:
        raise TypeError(
            f"x must have the dtype of the {owner}, {dtype}, got {x.dtype}; cast one of them or use autocast"
        )


def check_device(name: str, value: Any) -> torch.device:
    """Return ``value`` as a device of a kind that works here: the CPU, CUDA or MPS."""
    kinds = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    allowed = f"allowed here: {', '.join(kind for kind, works in kinds.items() if works)}"
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError):
        device = torch.device("meta")
    if device.type not in kinds:
        raise ValueError(f"{name} is {value}; {allowed}")
    if not kinds[device.type]:
        is_built = {"cuda": torch.version.cuda or torch.version.hip, "mps": torch.backends.mps.is_built()}
        kind = device.type.upper()
        reason = f"there is no {kind} device here" if is_built[device.type] else f"torch was built without {kind}"
        raise ValueError(f"{name} is {value}, but {reason}; {allowed}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"{name} is {value}, but there are {torch.cuda.device_count()} CUDA devices here; {allowed}")
    return device


def check_bool(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__} {value!r}")
    return value


def check_tensor(name: str, value: Any, shape: Sequence[int | str], *, kind: str) -> Tensor:
    """Return ``value`` if it is a tensor of this kind and shape; a word in the shape stands for any size.

    Args:
        name: The argument's name.
        value: Its value.
        shape: One entry per dimension: a number that must match, or a word for any size.
        kind: "real" (float32 or float64), "complex" (complex64 or complex128) or "float" (any floating type).
    """
    kinds = {"real": FLOATS[2:], "complex": (torch.complex64, torch.complex128), "float": FLOATS}
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.dtype not in kinds[kind]:
        raise TypeError(f"{name} must have one of the dtypes {kinds[kind]}, got {value.dtype}")
    wanted = "(" + ", ".join(str(s) for s in shape) + ("," if len(shape) == 1 else "") + ")"
    fits = value.ndim == len(shape) and all(isinstance(s, str) or s == n for s, n in zip(shape, value.shape))
    if not fits:
        raise ValueError(f"{name} must have shape {wanted}, got {tuple(value.shape)}")
    return value


def check_lengths(lengths: Any, batch: int, longest: int) -> Tensor:
    """Return the true length of each sequence as an integer tensor (batch,) in 0 … longest."""
    if not isinstance(lengths, Tensor):
        values = list(lengths) if isinstance(lengths, Iterable) else [lengths]
        if isinstance(lengths, str) or not all(isinstance(n, Integral) for n in values):
            raise TypeError(f"lengths must be whole numbers, one per sequence, got {lengths!r}")
        lengths = torch.tensor(values, dtype=torch.int64)
    if lengths.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"lengths must be whole numbers (torch.int64 or torch.int32), got {lengths.dtype}")
    if lengths.shape != (batch,):
        raise ValueError(f"lengths must have shape ({batch},), one per sequence, got {tuple(lengths.shape)}")
    # values in a graph or on a GPU are checked there, so that nothing has to wait for them
    if torch.compiler.is_compiling() or lengths.is_cuda:
        inside = ((lengths >= 0) & (lengths <= longest)).all()
        torch._assert_async(inside, "lengths must be between 0 and the length of x")
    elif batch and not (lengths.min() >= 0 and lengths.max() <= longest):
        raise ValueError(f"lengths must be between 0 and the length of x, {longest}, got {lengths.tolist()}")
    return lengths


def check_finite(name: str, value: Tensor, inside: Tensor | None = None) -> Tensor:
    """Return ``value`` if it is finite, at least where ``inside`` is True."""
    bad = torch.isfinite(value).logical_not()
    if inside is not None:
        bad &= inside
    if bool(bad.any()):
        place = tuple(bad.nonzero()[0].tolist())
        raise ValueError(f"{name} must be finite, got {value[place].item()} at {place}")
    return value
