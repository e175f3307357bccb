"""One function, two ways to call it: through torch's registry where somebody traces, directly where nobody does.

A registered operator is what torch.compile, torch.export and fake tensors need. Calling one costs tens of microseconds
on the CPU, as long as a small kernel runs; so plain eager code takes a shorter way to the same function and gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from statespan.ops.fold import Axes, fold


def traced(x: Tensor) -> bool:
    """Whether a compiler or a fake tensor is looking on."""
    return torch.compiler.is_compiling() or type(x) not in (Tensor, nn.Parameter)


def transformed() -> bool:
    """Whether ``torch.func`` looks on: then nothing is changed in place, and nothing runs that vmap does not know."""
    return torch._C._are_functorch_transforms_active()


def exporting() -> bool:
    """Whether a graph without a backward pass is being made."""
    # not asked by torch's is_exporting(), which some versions answer with yes inside compile
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


def graph_is_kept() -> bool:
    """Whether somebody may go backward through the same graph again, so that nothing of it may be overwritten."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A backward pass runs in the precision of its forward pass, whoever calls it."""
    if x.is_meta or not (torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type)):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def operator(
    name: str, function: Callable[..., Any], fake: Callable[..., Any], heads: tuple[Axes, Axes] | None = None
) -> Callable[..., Any]:
    """Register ``function``, which computes on real tensors; ``fake`` makes its results' shapes. No gradient."""

    def refuse(_ctx: Any, *_gradients: Any) -> Any:
        raise RuntimeError(f"{name} cannot be differentiated: second derivatives need use_path('fft')")

    return differentiable(name, function, fake, lambda _ctx, _inputs, _output: None, refuse, heads)


def differentiable(
    name: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None],
    gradient: Callable[..., Any],
    heads: tuple[Axes, Axes] | None = None,
) -> Callable[..., Any]:
    """The same with a gradient.

    Args:
        name: ``namespace::name``.
        function: Computes on real tensors.
        fake: Makes the results' shapes and dtypes.
        save: ``save(ctx, inputs, output)`` keeps what the gradient needs.
        gradient: ``gradient(ctx, *output_gradients)`` gives one for each input.
        heads: The axes of the heads in the tensors that go in and come out, for vmap (see :mod:`statespan.ops.fold`);
            None for an operator that vmap never meets.
    """
    registered = torch.library.custom_op(name, function, mutates_args=())
    registered.register_fake(fake)
    registered.register_autograd(gradient, setup_context=save)

    defaults = tuple(parameter.default for parameter in inspect.signature(function).parameters.values())

    rule = None if heads is None else fold(lambda *args: call(*args), *heads)
    if rule is not None:
        registered.register_vmap(rule)

    class Transformable(torch.autograd.Function):
        if rule is not None:
            vmap = staticmethod(rule)
        forward = staticmethod(function)
        setup_context = staticmethod(save)
        backward = staticmethod(gradient)

    class Direct(torch.autograd.Function):
        """The same, without the signature that torch binds anew to the arguments of every call."""

        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            output = function(*args)
            save(ctx, args + defaults[len(args) :], output)
            return output

        backward = staticmethod(gradient)

    def call(*args: Any) -> Any:
        if traced(args[0]):
            return registered(*args)
        if transformed():
            return Transformable.apply(*args)
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
            return Direct.apply(*args)
        return function(*args)

    return call
