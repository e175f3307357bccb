"""S4's kernel by Cauchy sums: the Triton kernels against dense powers and autograd in float64, and as an operator.

Interpreted where there is no GPU.
"""

from typing import NamedTuple

import pytest
import torch
from torch.library import opcheck

from statespan import S4
from statespan.ops import dispatch, use_path
from statespan.ops.cauchy.arguments import CauchyOptions, SavedSums
from statespan.ops.ssm.arguments import ModeTensors
from statespan.ops.ssm.source import source_of
from tests.ops.make import NAMES, assert_near, poison, random_modes, structure_of
from tests.ssm import brute
from tests.ssm.make import krylov, make

pytest.importorskip("triton")

from statespan.ops.cauchy._triton import launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUNDS = {torch.float64: (1e-11, 1e-10), torch.float32: (2e-6, 2e-6)}
pytestmark = [pytest.mark.share(3), pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")]


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


class Case(NamedTuple):
    heads: int
    sets: int
    modes: int
    channels: int
    length: int
    real: str = "exp"

    def __str__(self):
        return "-".join(map(str, self))


CASES = [
    Case(1, 1, 1, 1, 1),
    Case(2, 1, 3, 1, 2),
    Case(2, 2, 5, 2, 3, "softplus"),
    Case(4, 2, 3, 2, 17, "none"),
    Case(1, 1, 32, 1, 64, "relu"),
    Case(3, 1, 2, 4, 9),
    Case(1, 1, 33, 1, 100),
]


def given(case):
    """Parameters, P without its rank, and a gradient that arrives at the kernel."""
    *parameters, P = random_modes(case, 1, DEVICE)
    arriving = torch.randn(case.channels, case.heads, case.length, dtype=torch.float64, device=DEVICE)
    return [*parameters, P[0]], arriving


def structure(case, parameters):
    *parameters, P = parameters
    return structure_of([*parameters, P[None]], case.real)


def by_krylov(case, parameters, arriving):
    """The kernel by powers of the dense matrix, and its gradients by autograd."""
    leaves = [x.clone().requires_grad_() for x in parameters]
    kernel = krylov(structure(case, leaves)).kernel(case.length)
    return kernel, torch.autograd.grad(kernel, leaves, arriving)


def tensors(parameters):
    return ModeTensors(*parameters[:5], None, parameters[5])


# in float32 only some: what rounding does, where float64 has shown that there is no other error
EACH = [(case, torch.float64) for case in CASES] + [(case, torch.float32) for case in CASES[1::2]]


@pytest.mark.parametrize(("case", "dtype"), EACH, ids=str)
def test_the_kernel_and_every_gradient(case, dtype):
    parameters, arriving = given(case)
    modes, options = tensors(parameters), CauchyOptions(case.length, case.real, True, dtype, save=True)
    arriving = arriving.to(dtype)
    saved = SavedSums(*launch.forward(modes, options))
    found = launch.backward(arriving, modes, saved, options)
    wanted = brute.structure_kernel(structure(case, [x.cpu() for x in parameters]), case.length)
    assert saved.kernel.dtype == dtype
    assert_near(saved.kernel, torch.as_tensor(wanted), BOUNDS[dtype][0], "kernel")
    _, gradients = by_krylov(case, parameters, arriving.double())
    for name, one, other in zip(NAMES, [x for x in found if x is not None], gradients, strict=True):
        assert_near(one, other, BOUNDS[dtype][1], f"gradient of {name}")


@pytest.mark.parametrize("kind", ["dplr-legs", "dplr-fout", "dplr-trained"])
def test_initial_systems(kind):
    """HiPPO's own numbers, undamped modes among them, given as Re A and Δ themselves."""
    ssm = make(kind, 64, "bilinear", H=1, channels=1)
    modal = source_of(ssm).modal()
    for length in (64, 255):
        modes = modal.modes(None)
        options = CauchyOptions(length, modal.real_part, modal.log_dt, torch.float64)
        kernel, e1, e2 = launch.forward(ModeTensors(*(x if x is None else x.to(DEVICE) for x in modes)), options)
        assert_near(kernel, torch.as_tensor(brute.structure_kernel(ssm, length)), 1e-11)
        assert e1 is e2 is None


def test_float32_is_exact_to_its_own_rounding():
    """What twice as many nodes as samples leave is less than rounding C to float32 does."""
    case = CASES[6]
    parameters, _ = given(case)
    options = CauchyOptions(case.length, case.real, True, torch.float32)
    wanted = torch.as_tensor(brute.structure_kernel(structure(case, [x.cpu() for x in parameters]), case.length))
    assert_near(launch.forward(tensors(parameters), options)[0], wanted, 6e-8)


@pytest.mark.parametrize("growth", [0.01, 0.3])
def test_growing_modes(growth):
    """Every value is right relative to the largest one so far, and so is every gradient."""
    case = Case(2, 2, 4, 1, 100, "none")
    parameters, arriving = given(case)
    parameters[0] = torch.full_like(parameters[0], -2.3)
    parameters[1] = parameters[1].abs().clamp(max=growth)
    parameters[5] = 0.01 * parameters[5]
    modes, options = tensors(parameters), CauchyOptions(100, "none", True, torch.float64, save=True)
    saved = SavedSums(*launch.forward(modes, options))
    wanted, gradients = by_krylov(case, parameters, arriving)
    error = (saved.kernel - wanted).abs() / wanted.abs().cummax(-1).values
    assert error.max().item() <= 1e-10
    found = launch.backward(arriving, modes, saved, options)
    for name, one, other in zip(NAMES, [x for x in found if x is not None], gradients, strict=True):
        assert_near(one, other, 1e-10, name)


def test_growth_beyond_all_numbers_is_cut_off():
    case = Case(1, 1, 2, 1, 150, "none")
    parameters, _ = given(case)
    parameters[0], parameters[1] = torch.zeros_like(parameters[0]), torch.full_like(parameters[1], 0.5)
    parameters[2] = 0.01 * parameters[2]
    parameters[5] = 0.01 * parameters[5]
    modes, options = tensors(parameters), CauchyOptions(150, "none", True, torch.float64, save=True)
    saved = SavedSums(*launch.forward(modes, options))
    assert saved.kernel.abs().max().item() == pytest.approx(torch.tensor(60.0).double().exp().item())
    wanted = brute.structure_kernel(structure(case, [x.cpu() for x in parameters]), 100)
    assert_near(saved.kernel[..., :100], torch.as_tensor(wanted), 1e-10)
    arriving = torch.zeros_like(saved.kernel)
    arriving[..., -1] = 1.0  # a value that was cut off
    assert saved.kernel[..., -1].abs().item() == saved.kernel.abs().max().item()
    for gradient in launch.backward(arriving, modes, saved, options):
        assert gradient is None or (gradient == 0).all()


def test_parameters_far_outside_what_training_visits():
    """Right in every head, with finite gradients."""
    heads = 40
    case = Case(heads, heads, 2, 1, 7)
    parameters, arriving = given(case)
    parameters[0] = torch.linspace(-30, 10, heads, dtype=torch.float64, device=DEVICE)
    parameters[1] = torch.tensor([-110.0, 90.0, 3.0, 0.0], dtype=torch.float64, device=DEVICE).repeat(20).view(heads, 2)
    parameters[2] = 10.0 ** parameters[2].clamp(-6, 6)
    modes, options = tensors(parameters), CauchyOptions(case.length, "exp", True, torch.float64, save=True)
    saved = SavedSums(*launch.forward(modes, options))
    wanted = krylov(structure(case, parameters)).kernel(case.length)
    error = (saved.kernel - wanted).abs().amax(-1) / wanted.abs().amax(-1)
    assert error.max().item() <= 1e-10
    for gradient in launch.backward(arriving, modes, saved, options):
        assert gradient is None or torch.isfinite(gradient).all()


def test_same_bits_every_time():
    case = CASES[3]
    parameters, arriving = given(case)
    modes, options = tensors(parameters), CauchyOptions(case.length, case.real, True, torch.float64, save=True)
    runs = []
    for _ in range(2):
        saved = SavedSums(*launch.forward(modes, options))
        runs.append((saved.kernel, *launch.backward(arriving, modes, saved, options)))
    for one, other in zip(*runs, strict=True):
        assert one is other is None or (one == other).all()


@pytest.mark.parametrize("segments", [1, 3])
def test_nodes_in_any_number_of_segments(segments, monkeypatch):
    case = CASES[3]
    parameters, arriving = given(case)
    monkeypatch.setattr(launch, "WARPS", segments * case.heads * case.channels)
    modes, options = tensors(parameters), CauchyOptions(case.length, case.real, True, torch.float64, save=True)
    found = launch.backward(arriving, modes, SavedSums(*launch.forward(modes, options)), options)
    _, gradients = by_krylov(case, parameters, arriving)
    for name, one, other in zip(NAMES, [x for x in found if x is not None], gradients, strict=True):
        assert_near(one, other, 1e-11, name)


@pytest.mark.parametrize("case", [CASES[1], CASES[2]], ids=str)
def test_as_an_operator(case):
    """Registered right, its fake has the shapes, and autograd gets every gradient to its tensor."""
    parameters, arriving = given(case)
    leaves = [x.clone().requires_grad_() for x in parameters]
    arguments = (*leaves[:5], None, leaves[5], case.length, case.real, True, torch.float64, True)
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")  # the interpreter cannot be traced
    opcheck(torch.ops.statespan.cauchy.default, arguments, test_utils=utilities)
    kernel, e1, e2 = torch.ops.statespan.cauchy(*arguments)
    modes = [x if x is None or not isinstance(x, torch.Tensor) else x.detach() for x in arguments]
    saved = [x.detach() for x in (kernel, e1, e2)]
    backward = (arriving, *modes[:7], *saved, *modes[7:])
    opcheck(torch.ops.statespan.cauchy_backward.default, backward, test_utils=utilities)
    got = torch.autograd.grad(kernel, leaves, arriving)
    for one, other in zip(got, by_krylov(case, parameters, arriving)[1], strict=True):
        assert_near(one, other, 1e-11)


LAYERS = {
    "": {},
    "shared": {"n_ssm": 2},
    "channels": {"channels": 2},
    "both ways": {"bidirectional": True, "channels": 2},
    "mixed": {"init": "legs/fout", "n_ssm": 2, "mix": "linear"},
    "rank two": {"init": "legt"},
    "one feature": {"d_model": 1, "real_part": "none"},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name, dtype):
    """On a GPU's path a layer gives what it gives by autograd on the other, with every gradient."""
    layer = S4(**{"d_model": 4, "d_state": 6, **LAYERS[name]}, kernel="cauchy", dtype=torch.float64).to(DEVICE)
    x, dy = (torch.randn(2, 19, layer.d_model, dtype=torch.float64, device=DEVICE) for _ in range(2))
    x.requires_grad_()
    results = []
    for path, precision in (("triton", dtype), ("fft", torch.float64)):
        layer, leaf = layer.to(precision), x.detach().to(precision).requires_grad_()
        with use_path(path):
            y = layer(leaf)
        results.append([y, *torch.autograd.grad(y, [leaf, *layer.parameters()], dy.to(precision))])
    for one, other in zip(*results, strict=True):
        assert one.dtype == dtype
        assert_near(one, other, 1e-11 if dtype == torch.float64 else 3e-6)


def test_only_layers_with_this_option_and_one_low_rank_term():
    u = torch.zeros(1, 5, 2, device=DEVICE)
    with use_path("triton"):
        for options, expected in (
            ({"kernel": "cauchy"}, True),
            ({}, False),
            ({"kernel": "cauchy", "init": "legt"}, False),
        ):
            assert dispatch.sums_cauchy(S4(2, 4, **options).ssm.source(), u) is expected
    with use_path("fft"):  # plain torch, which has second derivatives
        assert dispatch.sums_cauchy(S4(2, 4, kernel="cauchy").ssm.source(), u) is False
