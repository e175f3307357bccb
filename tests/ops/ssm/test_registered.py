"""The registered operators as torch sees them: schema, gradients, and fake tensors like the real ones."""

from itertools import product

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.library import opcheck

from statespan import S4D
from statespan.ops import use_path
from statespan.ops.ssm.arguments import ChunkOptions, WholeOptions
from tests.ops.make import engine
from tests.ssm.make import make

pytest.importorskip("triton")

pytestmark = pytest.mark.share(5)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPERATORS = torch.ops.statespan
paths = pytest.mark.parametrize("path", ["chunks", "triton"])
kinds = pytest.mark.parametrize("kind", ["diagonal-trained", "dplr-trained"])
LAYOUTS = {
    "length last": lambda H, B, L: torch.randn(H, B, L, device=DEVICE),
    "features last": lambda H, B, L: torch.randn(B, L, H, device=DEVICE).permute(2, 0, 1),
    "batch second": lambda H, B, L: torch.randn(L, B, H, device=DEVICE).permute(2, 1, 0),
    "length last, batch first": lambda H, B, L: torch.randn(B, H, L, device=DEVICE).transpose(0, 1),
    "part of more": lambda H, B, L: torch.randn(B, L + 1, H + 2, device=DEVICE)[:, 1:, :H].permute(2, 0, 1),
}


def operands(kind, both, *, channels=2, requires_grad=False):
    """K, E, G, O and W as the dispatcher hands them over, for float32."""
    ssm = make(kind, 4, "bilinear", channels=channels)
    K, E, G, O, _ = engine(ssm, 16, ahead=1 if both else 0)  # noqa: E741
    operators = (x.to(DEVICE) for x in (K.float(), E.float(), G, O.float()))
    return [*(x.requires_grad_(requires_grad) for x in operators), None]


def options(path, both, dtype=torch.float32):
    return ChunkOptions(path, dtype, both, save=True, last=True)


def first_state(wanted):
    return torch.randn(2, 3, 4, dtype=torch.float64, device=DEVICE) if wanted else None


def assert_alike(real, fake):
    for number, (one, other) in enumerate(zip(real, fake, strict=True)):
        assert other.shape == one.shape, number
        assert other.dtype == one.dtype, number
        assert other.device == one.device, number
        significant = [i for i, size in enumerate(one.shape) if size > 1]  # the stride of a single entry means nothing
        assert [other.stride(i) for i in significant] == [one.stride(i) for i in significant], number


def on_fake(operator, arguments):
    with FakeTensorMode() as mode:
        return operator(*(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in arguments))


SETTINGS = [s for s in product([False, True], repeat=5) if not (s[0] and s[4])]  # both goes without a first state


@paths
@pytest.mark.parametrize(("both", "gelu", "save", "last", "first"), SETTINGS)
def test_fake_chunks(both, gelu, save, last, first, path):
    arguments = [
        LAYOUTS["features last"](2, 3, 20), first_state(first), *operands("diagonal-trained", both),
        *ChunkOptions(path, torch.float32, both, gelu, save, last, keep_preactivation=both),
    ]  # fmt: skip
    real = OPERATORS.chunks(*arguments)
    assert real[0].shape == (1 if both else 2, 2, 3, 20)
    assert [x.numel() > 0 for x in real[1:]] == [last, save, save and both, save and both and gelu and path == "triton"]
    assert_alike(real, on_fake(OPERATORS.chunks, arguments))


@paths
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("kind", "both"), [("diagonal-trained", False), ("dplr-trained", True)])
def test_fake_gradients(kind, both, layout, dtype, path):
    """Of every order in memory in which an input may come, also where it is cast on the way."""
    u, first = LAYOUTS[layout](2, 3, 20), first_state(not both)
    given = operands(kind, both, channels=2 if both else 1)
    y, _, states, ahead, pre = OPERATORS.chunks(u, first, *given, *options(path, both, dtype))
    dy, dlast = torch.randn_like(y), None if both else first_state(True)
    arguments = [dy, dlast, u, states, ahead, pre, *given, *ChunkOptions(path, dtype, both, has_first=not both)]
    real = OPERATORS.chunks_backward(*arguments)
    assert_alike(given[:4], real[1:5])
    assert_alike(real, on_fake(OPERATORS.chunks_backward, arguments))


@pytest.mark.parametrize(("both", "first"), [(False, False), (False, True), (True, False)])
@kinds
def test_chunks_keep_the_rules_of_torch(kind, both, first):
    """The schema tells the truth, the gradient is registered, tracing with unknown sizes gives the same numbers."""
    u = LAYOUTS["features last"](2, 3, 20).requires_grad_()
    given, state = operands(kind, both, requires_grad=True), first_state(first)
    opcheck(OPERATORS.chunks.default, (u, state, *given, *options("chunks", both)))
    with torch.no_grad():
        _, _, states, ahead, pre = OPERATORS.chunks(u, state, *given, *options("chunks", both)._replace(last=False))
        dy = torch.randn(1 if both else 2, 2, 3, 20, device=DEVICE)
        saved = (u.detach(), states, ahead, pre, *[x.detach() for x in given[:4]], None)
        rest = ChunkOptions("chunks", torch.float32, both, has_first=first)
        opcheck(OPERATORS.chunks_backward.default, (dy, None, *saved, *rest))


def modes(rank, skip):
    """dt, decay, freq, B, C, D and P."""

    def randn(*shape):
        return torch.randn(*shape, device=DEVICE)

    values = [randn(2) - 3, randn(1, 3), 10 * randn(1, 3), randn(1, 3, 2), randn(2, 2, 3, 2)]
    return [*values, randn(1, 2) if skip else None, randn(rank, 1, 3, 2) if rank else None]


SCHEMA = ("test_schema", "test_autograd_registration", "test_faketensor")  # the interpreter cannot be traced


KINDS_OF_G = [(0, False), (1, False), (1, True), (2, False)]
EACH = [(*kind, skip, skip == (i % 2 == 0)) for i, kind in enumerate(KINDS_OF_G) for skip in (False, True)]  # all pairs


@pytest.mark.parametrize(("rank", "factored", "skip", "precise"), EACH)
def test_modes(rank, factored, skip, precise):
    rounded = precise and not rank and not skip
    values, settings = modes(rank, skip), (4, 1, "bilinear", "exp", True, precise, factored, rounded)
    leaves = [None if x is None else x.clone().requires_grad_() for x in values]
    opcheck(OPERATORS.modes.default, (*leaves, *settings), test_utils=SCHEMA)
    real = OPERATORS.modes(*values, *settings)
    assert_alike(real, on_fake(OPERATORS.modes, [*values, *settings]))
    wide, lists = (torch.float64 if each else torch.float32 for each in (precise, precise and not rounded))
    assert [x.dtype for x in real[:4]] == [lists, lists, wide, lists]
    *values, _skip, P = values
    K, E, G, O, W = real  # noqa: E741
    dW = torch.randn_like(W) if factored else None
    arriving = [*(torch.randn_like(x) for x in (K, E, G, O)), dW]
    arguments = [*arriving, *values, None, P, E, O, W, *settings]
    opcheck(OPERATORS.modes_backward.default, arguments, test_utils=SCHEMA)
    real = OPERATORS.modes_backward(*arguments)
    assert_alike(values, real[:5])
    assert_alike(real, on_fake(OPERATORS.modes_backward, arguments))


WHOLE = [
    WholeOptions(16, ahead, "bilinear", "exp", True, True, factored, False, dtype, *flags)
    for ahead, factored, dtype, flags in [
        (0, False, torch.float16, (True, False, True)),  # full precision saves the slope of the activation
        (1, False, torch.float32, (True, True, True)),
        (0, True, torch.float32, (False, False, True)),
        (0, False, torch.float32, (False, False, False)),
    ]
]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("settings", WHOLE, ids=lambda o: f"ahead {o.ahead}, factored {o.factored}, save {o.save}")
def test_whole(settings, rank):
    """In one step, with what is kept in one tensor, or apart for compilers: the same numbers."""
    settings = settings._replace(factored=settings.factored and rank == 1)
    u = LAYOUTS["features last"](2, 3, 20).permute(1, 2, 0).requires_grad_()
    values = modes(rank, skip=True)
    values[5] = torch.randn(2 - settings.ahead, 2, device=DEVICE)
    arguments = (u, *values, *settings)
    found = []
    for name in ("ssm", "ssm_in_parts") if not settings.factored else ("ssm",):
        operator, backward = getattr(OPERATORS, name), getattr(OPERATORS, f"{name}_backward")
        opcheck(operator.default, arguments, test_utils=SCHEMA)
        real = operator(u.detach(), *values, *settings)
        assert_alike(real, on_fake(operator, [u.detach(), *values, *settings]))
        found.append([real[0]])
        if settings.save:
            dy = torch.ones_like(real[0])
            given = [dy, u.detach(), *real[1:], *values, *settings]
            gradients = backward(*given)
            assert_alike(gradients, on_fake(backward, given))
            opcheck(backward.default, given, test_utils=SCHEMA)
            found[-1] += gradients
    for one, other in zip(found[0], found[-1], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_order_in_memory(layout, dtype):
    """A copy in the order of the kernels, and the gradient in the order of the input."""
    u = LAYOUTS[layout](2, 3, 20)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    opcheck(OPERATORS.lengthwise.default, (u.clone().requires_grad_(), dtype), test_utils=tests)
    x = OPERATORS.lengthwise(u, dtype)
    assert x.is_contiguous()
    assert x.data_ptr() != u.data_ptr()
    assert torch.equal(x, u.to(dtype))
    assert_alike([x], [on_fake(OPERATORS.lengthwise, [u, dtype])])
    for features_last in (False, True):
        arguments = [x, features_last, torch.float32]
        back = OPERATORS.lengthwise_backward(*arguments)
        assert torch.equal(back, x.float())
        assert back.stride(0) == (1 if features_last else 60)
        assert_alike([back], [on_fake(OPERATORS.lengthwise_backward, arguments)])


def test_a_graph_that_is_kept_is_not_overwritten():
    """The gradient takes the place of the kernels' own copy of the input only where nobody reads it again."""
    layer, x = S4D(2, 4, device=DEVICE), torch.randn(3, 20, 2, device=DEVICE, requires_grad=True)
    with use_path("triton"):
        loss = layer(x).square().sum()
    first = torch.autograd.grad(loss, x, retain_graph=True)[0]
    again = torch.autograd.grad(loss, x)[0]
    assert torch.equal(first, again)


def test_the_plain_engine_has_no_gradient_of_the_activation():
    u, given = LAYOUTS["length last"](2, 3, 20).requires_grad_(), operands("diagonal-trained", False)
    y, *_ = OPERATORS.chunks(u, None, *given, *ChunkOptions("chunks", torch.float32, gelu=True, save=True))
    with pytest.raises(AssertionError, match="part of the kernels only"):
        y.sum().backward()


@pytest.mark.parametrize("use", ["forward", "prefill"])
def test_second_derivatives_are_refused_rather_than_wrong(use):
    """The engine's saved states have no history; the convolution is differentiable as often as one likes."""
    layer = S4D(2, 4, dtype=torch.float64)
    x = torch.randn(1, 70, 2, dtype=torch.float64, requires_grad=True)
    with use_path("chunks"):
        y = layer(x) if use == "forward" else layer.prefill(x)[0]
    slope = torch.autograd.grad(y.square().sum(), layer.ssm.C, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(slope.square().sum(), x)


def test_first_derivatives_by_torch_func():
    """Which asks for a graph of the gradient, and does not use it."""
    layer, x = S4D(2, 4, dtype=torch.float64), torch.randn(1, 70, 2, dtype=torch.float64)

    def loss(parameters):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    parameters = dict(layer.named_parameters())
    wanted = torch.func.grad(loss)(parameters)
    with use_path("chunks"):
        got = torch.func.grad(loss)(parameters)
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=1e-10, atol=1e-10)
