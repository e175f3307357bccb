"""The recurrence kernels against the structures in float64: interpreted where there is no GPU."""

from typing import NamedTuple

import pytest
import torch
from torch.library import opcheck

from statespan.ops import chunked
from statespan.ops.ssm.arguments import ModeTensors, OutputGradients, RecurrenceOptions, Sequences
from tests.ops.make import NAMES, assert_near, poison, random_modes, structure_of

pytest.importorskip("triton")

from statespan.ops.ssm._triton import recurrence

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
BOUNDS = {torch.float64: (1e-11, 1e-11), torch.float32: (1e-6, 2e-6)}
# of the first product in the backward pass's own thread; it sets the context and all is well
pytestmark = [pytest.mark.share(3), pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")]


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


class Case(NamedTuple):
    heads: int
    sets: int
    modes: int
    channels: int
    ahead: int
    batch: int
    length: int
    first: bool = False
    skip: bool = False
    real: str = "exp"
    rank: int = 1

    def __str__(self):
        return "-".join(map(str, self))


CASES = [
    Case(1, 1, 1, 1, 0, 1, 1, first=True),
    Case(2, 1, 3, 1, 0, 2, 9),
    Case(2, 2, 5, 2, 0, 3, 10, first=True, skip=True, real="softplus"),
    Case(2, 1, 3, 2, 1, 2, 11, skip=True, real="none"),
    Case(1, 1, 17, 4, 2, 3, 5, real="relu"),
    Case(4, 2, 3, 2, 1, 2, 7, skip=True, rank=2),
    Case(2, 1, 5, 1, 0, 3, 10, first=True, real="softplus", rank=2),
]
# for what no length changes
SHORT = [case._replace(batch=1, length=min(case.length, 3)) for case in (*CASES[:4], CASES[5])]


class Given(NamedTuple):
    parameters: list[torch.Tensor]
    D: torch.Tensor | None
    u: torch.Tensor
    first: torch.Tensor | None
    dy: torch.Tensor
    dlast: torch.Tensor


def given(case):
    def randn(*shape):
        return torch.randn(*shape, dtype=torch.float64, device=DEVICE)

    H, _sets, M, K, ahead, B, L, first, skip, _real, rank = case
    parameters = random_modes(case, rank, DEVICE)
    return Given(
        parameters, randn(K - ahead, H) if skip else None, randn(B, L, H).permute(2, 0, 1),
        randn(B, H, 2 * M).transpose(0, 1) if first else None, randn((K - ahead) * H, B, L), randn(H, B, 2 * M),
    )  # fmt: skip


def by_autograd(case, x):
    """y, the last state, and the gradients of u, the parameters and, where given, of D and the first state."""
    leaves = [t.clone().requires_grad_() for t in (x.u, *x.parameters, x.D, x.first) if t is not None]
    u, parameters, rest = leaves[0], leaves[1:7], leaves[7:]
    ssm = structure_of(parameters, case.real)
    first = rest[-1].transpose(0, 1) if case.first else None
    y, last = chunked(ssm, u.permute(1, 2, 0), first, chunk=8, bidirectional=case.ahead > 0)
    y, last = y.permute(2, 3, 0, 1), last.transpose(0, 1)
    if case.skip:
        y = y + rest[0][:, :, None, None] * u
    outputs, arriving = [y.flatten(0, 1)], [x.dy]
    if not case.ahead:
        outputs, arriving = [*outputs, last], [*arriving, x.dlast]
    return y, last, torch.autograd.grad(outputs, leaves, arriving)


# in float32 only one of each way: what rounding does, where float64 has shown that there is no other error
EACH = [(case, torch.float64) for case in CASES]
EACH += [(case, torch.float32) for case in (CASES if CUDA else CASES[1::2])]


@pytest.mark.parametrize(("case", "dtype"), EACH, ids=str)
def test_every_result_and_gradient(case, dtype):
    x = given(case)
    modes = ModeTensors(*x.parameters[:5], x.D, x.parameters[5])
    options = RecurrenceOptions(case.ahead, case.real, True, not case.ahead, dtype)
    x = x._replace(u=x.u.to(dtype).contiguous(), dy=x.dy.to(dtype))
    inputs, arriving = Sequences(x.u, x.first), OutputGradients(x.dy, None if case.ahead else x.dlast)
    y, last = recurrence.forward(inputs, modes, options)
    du, dfirst, found = recurrence.backward(arriving, inputs, modes, options)
    x = x._replace(u=x.u.double(), dy=x.dy.double())
    wanted_y, wanted_last, gradients = by_autograd(case, x)
    assert y.dtype == dtype
    assert_near(y, wanted_y, BOUNDS[dtype][0], "y")
    if not case.ahead:
        assert_near(last, wanted_last, BOUNDS[dtype][0], "last")
    got = [du, found.dt, found.decay, found.freq, found.B, found.C, found.P, found.D, dfirst]
    for name, one, other in zip(("u", *NAMES, "D or first", "first"), [t for t in got if t is not None], gradients):
        assert_near(one, other, BOUNDS[dtype][1], f"gradient of {name}")


def test_same_bits_every_time():
    x, case = given(SHORT[2]), SHORT[2]
    modes = ModeTensors(*x.parameters[:5], x.D, x.parameters[5])
    options = RecurrenceOptions(0, case.real, True, True, torch.float64)
    inputs, arriving = Sequences(x.u.contiguous(), x.first), OutputGradients(x.dy, x.dlast)
    runs = [recurrence.backward(arriving, inputs, modes, options) for _ in range(2)]
    for one, other in zip(*((du, dfirst, *found) for du, dfirst, found in runs), strict=True):
        assert (one == other).all()


@pytest.mark.parametrize("case", SHORT, ids=str)
def test_as_an_operator(case):
    """Registered right, its fake has the shapes, and autograd gets every gradient to its tensor."""
    x = given(case)
    tensors = (x.u, x.first, *x.parameters[:5], x.D, x.parameters[5])
    leaves = [None if t is None else t.clone().requires_grad_() for t in tensors]
    arguments = (*leaves, case.ahead, case.real, True, not case.ahead, torch.float64)
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")  # the interpreter cannot be traced
    opcheck(torch.ops.statespan.recurrence.default, arguments, test_utils=utilities)
    backward = [None if t is None else t.detach() for t in leaves]
    arriving = (x.dy.view(-1, *x.u.shape), None)
    backward_arguments = (*arriving, *backward, case.ahead, case.real, True, not case.ahead, torch.float64)
    opcheck(torch.ops.statespan.recurrence_backward.default, backward_arguments, test_utils=utilities)
    y, last = torch.ops.statespan.recurrence(*arguments)
    outputs, arriving = [y.flatten(0, 1)], [x.dy]
    if not case.ahead:
        outputs, arriving = [*outputs, last], [*arriving, x.dlast]
    u, first, *rest, D, P = leaves
    given_leaves = [t for t in (u, *rest, P, D, first) if t is not None]
    got = torch.autograd.grad(outputs, given_leaves, arriving)
    for one, other in zip(got, by_autograd(case, x)[2], strict=True):
        assert_near(one, other, 1e-11)
