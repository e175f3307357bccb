"""Registers functions as torch operators and calls them with the least overhead.

torch.compile, torch.export and fake tensors need a registered operator. Calling one costs tens of microseconds on the
CPU, as long as a small kernel runs, so plain eager code calls the same function and gradient directly.

In Python an operator takes at most four arguments, some of which are named tuples of tensors and flags. A schema of
torch is flat. :class:`Signature` is the only place that converts between the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

Axes = Sequence[int]
ABSENT = (0,)
"""Shape of the empty tensor that stands for an output that was not requested, or for its gradient."""
VERSION = "version"
"""An argument of every operator, which it ignores: compilers keep their results on disk by the arguments."""
_LIBRARY = torch.library.Library("statespan", "FRAGMENT")
_KNOWN = {Tensor, nn.Parameter, FakeTensor, FunctionalTensor}
_SCHEMA_TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    bool: "bool",
    int: "SymInt",
    float: "float",
    str: "str",
    torch.dtype: "ScalarType",
}


def traced(x: Tensor) -> bool:
    """Whether a compiler or fake tensors are tracing this call."""
    return torch.compiler.is_compiling() or type(x) not in (Tensor, nn.Parameter)


def transformed() -> bool:
    """Whether ``torch.func`` transforms this call: no in-place operations, and everything must support vmap."""
    return torch._C._are_functorch_transforms_active()


def exporting() -> bool:
    """Whether a graph without a backward pass is being exported."""
    # torch's own is_exporting() answers True inside torch.compile in some versions
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


def is_known(size: int) -> bool:
    """Whether a size is a number, rather than a tracer's symbol that stands for any."""
    if not torch.compiler.is_compiling():
        return not isinstance(size, torch.SymInt)
    from torch.fx.experimental.symbolic_shapes import has_static_value  # in a traced function symbols look like numbers

    return bool(has_static_value(size))


def version() -> str:
    """By what this code is known: a compiler may have compiled another version's kernels for the same arguments."""
    if not _versions:
        digest = hashlib.sha256()
        for path in sorted(Path(__file__).parent.rglob("*.py")):
            digest.update(path.read_bytes())
        _versions.append(digest.hexdigest()[:16])
    return _versions[0]


version._dynamo_marked_constant = True  # type: ignore[attr-defined]
_versions: list[str] = []


def graph_is_kept() -> bool:
    """Whether the graph may be traversed backward again, so that nothing it saved may be overwritten."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Runs a backward pass in the precision of its forward pass, whatever the caller's autocast state."""
    if x.is_meta or not (torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type)):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


class Signature:
    """The arguments of a Python function, and the flat arguments of the torch operator that calls it.

    Args:
        function: Its annotations are tensors, optional tensors, flags, or named tuples of them.

    Example:
        >>> def scaled(x: Tensor, factor: float) -> Tensor:
        ...     return factor * x
        >>> Signature(scaled).schema
        "(Tensor x, float factor, str version='') -> Tensor"
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function)
        results = _schema_results(hints.pop("return"))
        self.groups: list[tuple[Any, int]] = []  # the class of a named tuple, or None, and how many values it takes
        parameters = []
        self.tensors: list[bool] = []
        for name, hint in hints.items():
            fields = get_type_hints(hint) if hasattr(hint, "_fields") else None
            self.groups.append((None, 1) if fields is None else (hint, len(fields)))
            flat = {name: hint} if fields is None else {f"{name}_{field}": kind for field, kind in fields.items()}
            parameters += [f"{_SCHEMA_TYPES[kind]} {field}" for field, kind in flat.items()]
            self.tensors.append(any(kind in (Tensor, Tensor | None) for kind in flat.values()))
        self.size = len(parameters)
        self.direct_size = sum(size if has else 1 for (_, size), has in zip(self.groups, self.tensors))
        self.schema = f"({', '.join(parameters)}, str {VERSION}='') -> {results}"

    def flatten(self, arguments: Iterable[Any]) -> list[Any]:
        """The flat values that torch receives."""
        flat: list[Any] = []
        for (group, _), argument in zip(self.groups, arguments):
            flat.extend((argument,) if group is None else argument)
        return flat

    def direct(self, arguments: Iterable[Any]) -> list[Any]:
        """The flat values of all groups with tensors; the others as they are, for autograd looks at each value."""
        flat: list[Any] = []
        for (group, _), has_tensors, argument in zip(self.groups, self.tensors, arguments):
            if group is None or not has_tensors:
                flat.append(argument)
            else:
                flat.extend(argument)
        return flat

    def from_direct(self, flat: Sequence[Any]) -> list[Any]:
        """The arguments of the Python function from those of :meth:`direct`."""
        arguments, start = [], 0
        for (group, size), has_tensors in zip(self.groups, self.tensors):
            if group is None or not has_tensors:
                arguments.append(flat[start])
                start += 1
            else:
                arguments.append(group._make(flat[start : start + size]))
                start += size
        return arguments

    def unflatten(self, flat: Sequence[Any]) -> list[Any]:
        """The arguments of the Python function."""
        arguments, start = [], 0
        for group, size in self.groups:
            arguments.append(flat[start] if group is None else group._make(flat[start : start + size]))
            start += size
        return arguments


def _schema_results(hint: Any) -> str:
    """Of a tensor, or of a (named) tuple of them."""
    if hint is Tensor:
        return "Tensor"
    count = len(hint._fields if hasattr(hint, "_fields") else hint.__args__)
    return f"({', '.join(['Tensor'] * count)})"


def operator(
    name: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    heads: tuple[Axes, Axes] | None = None,
    *,
    visible: bool = False,
) -> Callable[..., Any]:
    """Register ``function`` without a gradient; ``fake`` returns empty results of the right shapes."""

    def refuse(_ctx: Any, *_gradients: Any) -> Any:
        raise RuntimeError(f"{name} cannot be differentiated: second derivatives need use_path('fft')")

    return differentiable(name, function, fake, save=lambda *_: None, gradient=refuse, heads=heads, visible=visible)


def differentiable(
    name: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    save: Callable[..., None],
    gradient: Callable[..., Sequence[Tensor | None]],
    heads: tuple[Axes, Axes] | None = None,
    visible: bool = False,
) -> Callable[..., Any]:
    """The same with a gradient.

    Args:
        name: ``namespace::name``.
        function: Computes on real tensors.
        fake: Makes the results' shapes and dtypes from the same arguments.
        save: ``save(ctx, arguments, output)`` saves the tensors that the gradient needs.
        gradient: ``gradient(ctx, *output_gradients)`` gives one for each flat argument; trailing None may be left out.
        heads: The axes of the heads in inputs and outputs, for vmap; None for an operator that vmap never meets.
        visible: Whether a compiler may take over the kernels that ``function`` launches by ``launcher.launch``.
    """
    signature = Signature(function)
    unflatten, size = signature.unflatten, signature.size

    def flat_function(*flat: Any) -> Any:
        return function(*unflatten(flat))

    def flat_save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        save(ctx, unflatten(inputs), output)

    def flat_gradient(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        found = gradient(ctx, *gradients)
        return (*found, *[None] * (size - len(found)))

    registered = _registered(name, signature, flat_function, lambda *flat: fake(*unflatten(flat)))
    _record_gradient(registered, flat_function, flat_save, flat_gradient)
    if visible:
        _show(name, flat_function)
    rule = None if heads is None else _vmap_rule(lambda *flat: call(*unflatten(flat)), *heads)
    if rule is not None:
        torch.library.register_vmap(name, rule, lib=_LIBRARY)
    methods = {"forward": flat_function, "setup_context": flat_save, "backward": flat_gradient, "vmap": rule}
    given = {key: staticmethod(method) for key, method in methods.items() if method is not None}
    transformable: Any = type("Transformable", (torch.autograd.Function,), given)
    direct = _direct(signature, function, save, gradient)

    def call(*arguments: Any) -> Any:
        flat = signature.direct(arguments)
        if traced(flat[0]):
            known_by = (version(),) if torch.compiler.is_dynamo_compiling() else ()
            return registered(*signature.flatten(arguments), *known_by)
        if transformed():
            return transformable.apply(*signature.flatten(arguments))
        return direct(*flat) if torch.is_grad_enabled() and _requires_grad(flat) else function(*arguments)

    return call


def _requires_grad(values: list[Any]) -> bool:
    return any(isinstance(x, Tensor) and x.requires_grad for x in values)


def _registered(name: str, signature: Signature, function: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """A torch operator with flat arguments; ``torch.library.custom_op`` would check its results at every call."""
    namespace, _, short = name.partition("::")
    assert namespace == _LIBRARY.ns
    _LIBRARY.define(short + signature.schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(short, function, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake, lib=_LIBRARY)
    return getattr(getattr(torch.ops, namespace), short).default


def _record_gradient(
    registered: Any, function: Callable[..., Any], save: Callable[..., None], gradient: Callable[..., Any]
) -> None:
    """What autograd does when the operator is called; all take flat arguments."""
    below, python = torch._C._after_autograd_keyset, torch._C.DispatchKey.Python
    devices = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CPU)

    def run(keys: Any, flat: tuple[Any, ...]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return registered.redispatch(keys & below, *flat)

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keys: Any, *flat: Any) -> Any:
            output, ctx.count = run(keys, flat), len(flat)
            with torch._C._AutoDispatchBelowAutograd():
                save(ctx, flat, output)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
            found = gradient(ctx, *gradients)
            return None, *found, *[None] * (ctx.count - len(found))

    def call(keys: Any, *flat: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*flat):
            return Recorded.apply(keys, *flat)
        # what compiled code calls: through torch again only for tracers, fake and meta tensors
        if keys.has(python) or not any(keys.has(device) for device in devices):
            return run(keys, flat)
        return function(*flat)

    _LIBRARY.impl(registered._schema.name.partition("::")[2], call, "Autograd", with_keyset=True)


def _show(name: str, function: Callable[..., Any]) -> None:
    """Let compilers see the kernels that the function (of flat arguments) launches, where they can take them over.

    They plan its memory and launch its kernels in their own code, without a call of the operator.
    """

    def rule(mode: Any, operator: Any, types: Any, *given: Any) -> Any:
        flat, kwargs = given
        if not _KNOWN.issuperset(types) or not _can_show(flat):
            return mode.__torch_dispatch__(operator, types, flat, kwargs)
        from statespan.ops._triton.launcher import tracing

        with mode, tracing():
            return function(*flat)

    torch.library.register_torch_dispatch(name, FunctionalTensorMode, rule, lib=_LIBRARY)


def _can_show(arguments: Iterable[Any]) -> bool:
    """Whether a compiler may take over the kernels: on a GPU, where all sizes are known, unless it exports."""
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    known = all(is_known(size) for x in tensors for size in (*x.shape, *x.stride()))
    return known and all(x.is_cuda for x in tensors) and not _keeps_operators()


def _keeps_operators() -> bool:
    """Whether an export wants the operators themselves."""
    try:
        from torch.export._trace import custom_triton_ops_decomposition_disabled
    except ImportError:
        return False
    return bool(custom_triton_ops_decomposition_disabled())


def _direct(
    signature: Signature, function: Callable[..., Any], save: Callable[..., None], gradient: Callable[..., Any]
) -> Callable[..., Any]:
    """The same for eager code, without a declared signature, which torch would bind on every call."""
    size = signature.direct_size

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *flat: Any) -> Any:
            arguments = signature.from_direct(flat)
            output = function(*arguments)
            save(ctx, arguments, output)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
            found = gradient(ctx, *gradients)
            return (*found, *[None] * (size - len(found)))

    return Direct.apply


def _vmap_rule(call: Callable[..., Any], inputs: Axes, outputs: Axes) -> Callable[..., tuple[Any, Any]]:
    """How ``torch.func.vmap`` maps an operator whose heads are independent: the mapped axis becomes more heads.

    Heads come first and the mapped axis second, so that head h still uses set h mod S of S sets of modes.

    Args:
        call: The operator, with flat arguments.
        inputs: The axis of the heads in each of its tensors, in the order of its arguments; None counts as a tensor.
        outputs: The same of its results.
    """

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        count, axes, folded = info.batch_size, iter(inputs), []
        for x, dim in zip(args, in_dims):
            if x is None or isinstance(x, Tensor):
                axis = next(axes)
                folded.append(x if x is None or x.shape == ABSENT else _fold(x, dim, axis, count))
            else:
                folded.append(x)
        result = call(*folded)
        if isinstance(result, Tensor):
            return _unfold(result, outputs[0], count), outputs[0] + 1
        pairs = [
            (x, None) if x.shape == ABSENT else (_unfold(x, axis, count), axis + 1) for x, axis in zip(result, outputs)
        ]
        return tuple(x for x, _ in pairs), tuple(dim for _, dim in pairs)

    return rule


def _fold(x: Tensor, dim: int | None, axis: int, count: int) -> Tensor:
    if dim is None:
        x, dim = x.expand(count, *x.shape), 0
    # contiguous, as kernels read it: an expanded axis has only one copy in memory
    return x.movedim(dim, axis + 1).flatten(axis, axis + 1).contiguous()


def _unfold(x: Tensor, axis: int, count: int) -> Tensor:
    return x.unflatten(axis, (-1, count))
