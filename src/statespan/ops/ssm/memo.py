"""Keeps the last set-up of a layer in evaluation mode on a CPU, where the same parameters are used again and again.

What is kept is compared by the bits of the values that it was made from, which are copied. So every change counts,
however it was made: by an optimizer, ``load_state_dict``, through ``.data`` or in memory that another program shares.
A set-up costs hundreds of microseconds; comparing the few numbers of an SSM costs some tens.

Entries belong to a module but are not part of it: they are neither saved nor pickled nor copied with it, and go with
it. There is at most one for each module, of at most ``LARGEST`` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from statespan.ops.register import transformed
from statespan.ssm import DPLR, Dense, Diagonal

if TYPE_CHECKING:
    from statespan.ops.ssm.apply import Request

T = TypeVar("T")

LARGEST = 1 << 25
"""Bytes of the largest set-up that is kept."""
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


class _Entry(NamedTuple):
    key: tuple[Any, ...]
    values: tuple[Tensor | None, ...]
    result: Any


class Memo:
    """The last set-up of one SSM.

    Example:
        >>> memo, log_dt = Memo(), torch.tensor([-2.0])
        >>> dt = memo.get(("exp",), [log_dt], log_dt.exp)
        >>> memo.get(("exp",), [log_dt], log_dt.exp) is dt  # log_dt is the same
        True
        >>> _ = log_dt.add_(0.1)
        >>> memo.get(("exp",), [log_dt], log_dt.exp) is dt  # it has changed
        False
    """

    def __init__(self) -> None:
        self._entry: _Entry | None = None  # replaced as a whole, so that threads see an old or a new one

    def get(self, key: tuple[Any, ...], values: Iterable[Tensor | None], make: Callable[[], T]) -> T:
        """The result of ``make``, from memory if the key and the values are those of the last call.

        Args:
            key: Everything that the result depends on besides the values.
            values: Tensors that the result depends on.
            make: Makes the result, a tensor or a tuple of tensors, which nothing may change.
        """
        bits = _bits(values)
        if bits is None:
            return make()
        key = (*key, torch.get_num_threads(), torch.is_inference_mode_enabled())
        entry = self._entry
        if entry is not None and entry.key == key and _same(entry.values, bits):
            return entry.result
        before = tuple(x if x is None else x.clone() for x in bits)
        result = make()
        fits = _size(result) <= LARGEST and _same(before, bits)  # another thread may train meanwhile
        self._entry = _Entry(key, before, result) if fits else None
        return result


_memos: WeakKeyDictionary[nn.Module, Memo] = WeakKeyDictionary()


def memo_of(module: nn.Module) -> Memo | None:
    """The memory of a module in evaluation mode without gradients; None otherwise, and where a graph is traced."""
    if module.training:
        _memos.pop(module, None)
        return None
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed():
        return None
    if torch._C._get_tracing_state() is not None or torch._C._len_torch_dispatch_stack():
        return None
    memo = _memos.get(module)
    if memo is None:
        memo = _memos.setdefault(module, Memo())
    return memo


def _bits(values: Iterable[Tensor | None]) -> tuple[Tensor | None, ...] | None:
    """The values as whole numbers, so that a NaN is equal to itself and -0 is not 0; None if they cannot be read."""
    bits: list[Tensor | None] = []
    for x in values:
        if x is not None:
            if type(x) not in (Tensor, nn.Parameter) or not x.is_cpu:
                return None
            if x.is_complex():
                x = torch.view_as_real(x.resolve_conj())
            if x.dtype not in _BITS:
                return None
            x = x.detach().view(_BITS[x.dtype])
        bits.append(x)
    return tuple(bits)


def _same(old: tuple[Tensor | None, ...], new: tuple[Tensor | None, ...]) -> bool:
    if len(old) != len(new):
        return False
    for a, b in zip(old, new):
        if a is None or b is None:
            if a is not b:
                return False
        elif a.dtype != b.dtype or not torch.equal(a, b):
            return False
    return True


def _size(result: Any) -> int:
    if isinstance(result, Tensor):
        return result.numel() * result.element_size()
    return sum(_size(x) for x in result if x is not None)


def remembered(request: Request, key: tuple[Any, ...], make: Callable[[], T]) -> T:
    """The set-up of a request, from memory where it is the last one of its layer; see :meth:`Memo.get`.

    Args:
        request: Its source has the memory.
        key: What the set-up depends on besides the SSM and the skip.
        make: Makes it.
    """
    source = request.source
    if source.memo is None:
        return make()
    modal, values = source.modal(), [request.D]
    if modal is not None:
        parameters, *rest = modal
        values += parameters
    else:
        ssm = source.structure()
        if type(ssm) not in (Diagonal, DPLR, Dense):
            return make()  # one that a user wrote may depend on more
        names = ("algorithm", "softmax_length")
        rest = [type(ssm), ssm.discretization, *(getattr(ssm, name, None) for name in names)]
        values += [ssm.A, ssm.B, ssm.C, ssm.dt, getattr(ssm, "P", None), getattr(ssm, "Q", None)]
    return source.memo.get((*key, *rest, request.bidirectional, request.working), values, make)
