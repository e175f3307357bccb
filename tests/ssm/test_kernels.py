"""Every structure's kernel against dense powers in float64, and float32 against float64."""

import mpmath
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from statespan.ssm import DPLR, Diagonal, hippo, inits
from statespan.ssm.dplr import _nodes
from tests.ssm import brute
from tests.ssm.make import KINDS, RANK_1, RANK_2, RULES, krylov, make, peak_error

pytestmark = pytest.mark.share(5)

LENGTHS = (1, 2, 3, 17, 255, 256, 1024, 4096)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("N", [2, 8, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_equals_dense_powers(kind, N, rule):
    for dt_scale in (0.5, 1.0, 2.0) if N < 64 else (1.0,):
        ssm = make(kind, N, rule, seed=N).with_dt_scale(dt_scale)
        wanted = brute.structure_kernel(ssm, max(LENGTHS))
        for length in LENGTHS:
            assert peak_error(ssm.kernel(length), wanted[..., :length]) <= 1e-11, (length, dt_scale)


@pytest.mark.parametrize("N", [2, 8, 64])
@pytest.mark.parametrize("kind", [*RANK_1, *RANK_2])
def test_krylov_and_cauchy_agree(kind, N):
    ssm = make(kind, N, "bilinear")
    for length in LENGTHS:
        assert peak_error(krylov(ssm).kernel(length), ssm.kernel(length)) <= 1e-12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_float32_kernel_is_the_rounded_float64_kernel(kind, rule):
    single, double = (make(kind, 64, rule, dtype=dtype) for dtype in (torch.float32, torch.float64))
    double.C = single.C.to(double.C.dtype)
    kernel = single.kernel(4096)
    assert kernel.dtype == torch.float32
    assert peak_error(kernel, double.kernel(4096)) <= 6e-8


@pytest.mark.parametrize("damping", [0.5, None])
def test_million_samples(damping):
    """2^20 samples of lightly damped modes (Re A = -1/(Δ L)), where phases in float32 are off by a quarter radian."""
    length, dt = 1 << 20, torch.tensor([0.01])
    real = -damping if damping else -1 / (0.01 * length)
    A = torch.complex(torch.full((1, 32), real), 40 * torch.rand(1, 32, generator=torch.Generator().manual_seed(0)))
    C = torch.randn(1, 1, 32, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    kernel = Diagonal(A, torch.ones_like(A), C, dt, discretization="zoh").kernel(length)[0, 0].numpy()
    z = (dt.double()[:, None] * A.to(torch.complex128)).numpy().astype(np.clongdouble)
    weights = C.numpy()[0].astype(np.clongdouble) * np.expm1(z) / A.numpy().astype(np.clongdouble)
    places = np.unique(np.geomspace(1, length, 200).astype(np.int64)) - 1
    wanted = 2 * (weights[0] * np.exp(places[:, None] * z[0])).sum(-1).real
    assert np.abs(kernel[places] - wanted).max() <= 2e-7 * np.abs(wanted).max()


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_dplr_without_its_low_rank_term_is_diagonal(rank, rule):
    """S4 with P = 0 is S4D."""
    A, B = inits.mix_diagonal("inv", 2, 16)
    C, dt = torch.randn(2, 2, 8, dtype=torch.complex128), torch.tensor([0.01, 0.1], dtype=torch.float64)
    dplr = DPLR(A, torch.zeros(rank, 2, 8, dtype=torch.complex128), B, C, dt=dt, discretization=rule)
    for length in (1, 64, 1000):
        assert peak_error(dplr.kernel(length), Diagonal(A, B, C, dt, discretization=rule).kernel(length)) <= 1e-13


@pytest.mark.parametrize("measure", hippo.MEASURES)
def test_dplr_is_the_dense_hippo_system(measure):
    """With C = Bᴴ the kernel Bᴴ Ā^l B̄ is the same in every orthonormal basis, so both forms must give it."""
    dense = make(f"dense-{measure}", 64, "bilinear", channels=1)
    dplr = make(f"dplr-{measure}", 64, "bilinear", channels=1)
    dense.C, dplr.C = dense.B[None], dplr.B.conj()[None].resolve_conj()
    assert peak_error(dplr.kernel(1024), dense.kernel(1024)) <= 1e-11


@pytest.mark.parametrize("growth", [0.01, 0.3, 0.5])
@pytest.mark.parametrize("length", [100, 1000])
def test_growing_modes(growth, length):
    """Re Λ > 0: every value of the kernel is right, not only the large ones at the end."""
    ssm = make("dplr-trained", 8, "bilinear", dt_min=0.1, dt_max=0.1)
    ssm.A = torch.complex(ssm.A.real.abs().clamp(max=growth), ssm.A.imag)
    ssm.P = 0.01 * ssm.P
    wanted = brute.structure_kernel(ssm, length)
    assert np.abs(wanted[..., -1]).max() > np.abs(wanted[..., 0]).max() or growth * length < 20
    for kernel in (ssm.kernel(length), krylov(ssm).kernel(length)):
        error = np.abs(kernel.numpy() - wanted) / np.maximum.accumulate(np.abs(wanted), -1)
        assert error.max() <= 1e-9


def test_growing_mode_on_a_node():
    """|Ā| = exp(1/L) would put the pole of a growing mode on a node of a circle of fixed radius."""
    length = 100
    Abar = np.exp(1 / length)
    A = torch.tensor([[2 * (Abar - 1) / (Abar + 1), -0.5 + 3j]], dtype=torch.complex128)
    one = torch.ones(1, 1, 2, dtype=torch.complex128)
    ssm = DPLR(A, 0 * one, one[0], one, dt=torch.ones(1))
    assert peak_error(ssm.kernel(length), brute.structure_kernel(ssm, length)) <= 1e-12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["diagonal-lin", "dplr-legs", "dense-legs"])
def test_growth_beyond_all_numbers_is_cut_off(kind, rule):
    """16,384 samples of modes that grow by e^0.1 per step: finite kernel and gradients, exact while it is small."""
    ssm = make(kind, 8, rule, channels=1, dt_min=0.1, dt_max=0.1)
    if kind == "dense-legs":
        ssm.A = torch.eye(8, dtype=torch.float64).repeat(2, 1, 1)
    else:
        ssm.A = torch.complex(torch.ones_like(ssm.A.real), ssm.A.imag.clamp(max=3))
    if kind == "dplr-legs":
        ssm.P = 0.01 * ssm.P
    ssm.A.requires_grad_()
    kernel = ssm.kernel(16384)
    assert torch.isfinite(kernel).all()
    assert kernel.detach().abs().max().item() == pytest.approx(np.exp(60))
    (gradient,) = torch.autograd.grad(kernel[..., ::1000].sum(), ssm.A)
    assert torch.isfinite(gradient).all()
    assert peak_error(kernel[..., :200].detach(), brute.structure_kernel(ssm, 200)) <= 1e-11


def test_nodes():
    """1-ω and 1+ω to full relative accuracy, also where they nearly vanish."""
    for length in (2, 1000, 2**20):
        minus, plus = _nodes(length, torch.tensor([[-1.0 / length]], dtype=torch.float64))
        for k in (0, 1, length // 4, length // 2):
            with mpmath.workdps(40):
                omega = mpmath.exp(-1 / mpmath.mpf(length)) * mpmath.expjpi(-2 * mpmath.mpf(k) / length)
                for got, wanted in ((minus[0, k], 1 - omega), (plus[0, k], 1 + omega)):
                    assert abs(mpmath.mpc(got.item()) - wanted) <= 1e-15 * abs(wanted)


@pytest.mark.parametrize("length", [2, 4, 64, 1024, 65536])
def test_node_at_minus_one(length):
    """Even lengths have a node where 1 + ω is all but 0; the sum of alternating kernel values shows an error there."""
    ssm = make("dplr-fout", 8, "bilinear")
    kernel, wanted = ssm.kernel(length), krylov(ssm).kernel(length)
    signs = 1.0 - 2.0 * (torch.arange(length) % 2)
    torch.testing.assert_close((kernel * signs).sum(-1), (wanted * signs).sum(-1), rtol=1e-11, atol=1e-12)


def test_undamped_mode_on_a_node():
    """A mode with Re Λ = 0 whose pole lies exactly on a root of unity."""
    length, dt = 64, 0.1
    frequency = 2 / dt * np.tan(np.pi * np.arange(4) / length)
    A = torch.as_tensor(1j * frequency)[None]
    P = torch.tensor([[[0.5, 1, 0.2, 0.0]]], dtype=torch.complex128)
    C = torch.randn(1, 1, 4, dtype=torch.complex128)
    ssm = DPLR(A, P, torch.ones_like(A), C, dt=torch.tensor([dt], dtype=torch.float64))
    assert peak_error(ssm.kernel(length), brute.structure_kernel(ssm, length)) <= 1e-12


class Largest(TorchDispatchMode):
    """The sizes of all tensors made inside."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.sizes.append(out.numel())
        return out


def test_cauchy_matrix_is_made_in_blocks(monkeypatch):
    """It is never held whole, neither forward nor backward, and the result does not depend on the blocks."""
    length, results, largest = 4000, [], []
    for block in (1 << 25, 1 << 16):
        monkeypatch.setattr("statespan.ssm.dplr._BLOCK_BYTES", block)
        ssm = make("dplr-trained2", 64, "bilinear", H=1, channels=1)
        ssm.A.requires_grad_()
        with Largest() as seen:
            kernel = ssm.kernel(length)
            (gradient,) = torch.autograd.grad((kernel * torch.arange(length)).sum(), ssm.A)
        results.append((kernel.detach(), gradient))
        largest.append(max(seen.sizes))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    nodes, entries = length // 2 + 1, 64
    assert largest[0] >= nodes * entries  # one block holds all
    assert largest[1] <= 2 * nodes * 9  # of that length are only the nine products of rank 2, real and imaginary


def test_kernel_memory_grows_with_the_root_of_the_length():
    """The largest tensor made on the way to a diagonal kernel, beside the kernel itself, is O(N √L) a head."""
    ssm, length = make("diagonal-lin", 64, "zoh", H=1, channels=1), 1 << 16
    with Largest() as seen:
        ssm.kernel(length)
    assert max(s for s in seen.sizes if s < length) <= 64 * 256  # N √L
    assert max(seen.sizes) == length
