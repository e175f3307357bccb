"""Recurrence, chunks, all states and convolution are the same map."""

import pytest
import torch

from statespan.ops import chunked, fftconv, state_after
from statespan.ops.ssm.naive import naive
from tests.ssm.make import KINDS, RULES, make, peak_error

pytestmark = pytest.mark.share(3)

TIGHT = 1e-11


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_scan_is_the_convolution(kind, rule):
    ssm = make(kind, 8, rule, H=3)
    u = torch.randn(2, 100, 3, dtype=torch.float64)
    y, _ = ssm.scan(u)
    assert peak_error(fftconv(u, ssm.kernel(100)), y) <= TIGHT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_the_recurrence(kind, rule):
    ssm = make(kind, 8, rule, H=3)
    u, start = torch.randn(2, 50, 3, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    wanted, end = ssm.scan(u, start)
    for chunk in (1, 7, 10, 50, 64):
        y, state = chunked(ssm, u, start, chunk=chunk)
        assert peak_error(y, wanted) <= TIGHT
        assert peak_error(state, end) <= TIGHT


@pytest.mark.parametrize("rule", ["bilinear", "foh"])
@pytest.mark.parametrize("kind", ["diagonal-legs", "dplr-legs", "dplr-legt", "dense-fout"])
def test_operators_by_their_definition(kind, rule):
    """T, E, G, O from single steps: columns of E and G from unit inputs and states, rows of T and O from outputs."""
    c, N = 5, 8
    ssm = make(kind, N, rule, H=2, channels=2)
    operators = ssm.operators(c)
    T, E, G, O = operators.T, operators.E, operators.G, operators.O  # noqa: E741
    for j in range(c):
        u = torch.zeros(1, c, 2, dtype=torch.float64)
        u[:, j] = 1
        y, state = ssm.scan(u)
        torch.testing.assert_close(T[..., j], y[0].permute(1, 2, 0), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(E[..., j], state[0], rtol=1e-12, atol=1e-14)
    if G.ndim == 2:
        real, imag = (torch.diag_embed(half) for half in G.chunk(2, -1))
        G = torch.cat([torch.cat([real, -imag], -1), torch.cat([imag, real], -1)], -2)
    for n in range(N):
        start = torch.zeros(1, 2, N, dtype=torch.float64)
        start[..., n] = 1
        y, state = ssm.scan(torch.zeros(1, c, 2, dtype=torch.float64), start)
        torch.testing.assert_close(O[..., n], y[0].permute(1, 2, 0), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(G[..., n], state[0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_states(kind, rule):
    ssm = make(kind, 8, rule)
    u, start = torch.randn(2, 37, 2, dtype=torch.float64), torch.randn(2, 2, 8, dtype=torch.float64)
    for state in (None, start):
        got = ssm.states(u, state)
        x = ssm.initial_state(2) if state is None else state
        wanted = []
        for t in range(37):
            _, x = ssm.step(u[:, t], x)
            wanted.append(x)
        assert peak_error(got, torch.stack(wanted, 1)) <= TIGHT


@pytest.mark.parametrize("kind", ["diagonal-inv", "dplr-legs", "dense-legs"])
def test_states_of_an_empty_sequence(kind):
    ssm = make(kind, 8, "zoh")
    u, start = torch.zeros(2, 0, 2, dtype=torch.float64), torch.randn(2, 2, 8, dtype=torch.float64)
    assert ssm.states(u, start).shape == (2, 0, 2, 8)
    y, state = ssm.scan(u, start)
    assert y.shape == (2, 0, 2, 2)
    assert (state == start).all()


@pytest.mark.parametrize("kind", KINDS)
def test_advance(kind):
    ssm = make(kind, 8, "bilinear")
    start, steps = torch.randn(4, 2, 8, dtype=torch.float64), torch.tensor([0, 1, 6, 21])
    got = ssm.advance(start, steps)
    for b, count in enumerate(steps.tolist()):
        _, wanted = ssm.scan(torch.zeros(1, count, 2, dtype=torch.float64), start[b : b + 1])
        torch.testing.assert_close(got[b : b + 1], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["diagonal-legs", "dplr-legs", "dense-legs"])
@pytest.mark.parametrize("with_state", [False, True])
def test_state_after_each_length(kind, with_state):
    ssm = make(kind, 8, "bilinear")
    lengths = torch.tensor([0, 1, 40, 13])
    start = torch.randn(4, 2, 8, dtype=torch.float64) if with_state else None
    u = torch.randn(4, 40, 2, dtype=torch.float64) * (torch.arange(40) < lengths[:, None])[..., None]
    got = state_after(ssm, u, lengths, start)
    for b, length in enumerate(lengths.tolist()):
        _, wanted = ssm.scan(u[b : b + 1, :length], None if start is None else start[b : b + 1])
        torch.testing.assert_close(got[b : b + 1], wanted, rtol=1e-11, atol=1e-12)


def test_advance_by_a_number():
    for kind in ("diagonal-inv", "dplr-legs", "dense-fout"):
        ssm = make(kind, 8, "bilinear")
        start = torch.randn(3, 2, 8, dtype=torch.float64)
        for count in (0, 1, 5, 1000):
            assert (ssm.advance(start, count) == ssm.advance(start, torch.full((3,), count))).all()


def test_chunks_of_growing_modes():
    """Half a unit of growth per sample: a chunk of 64 multiplies the state by e^32, exactly."""
    ssm = make("diagonal-lin", 8, "zoh", dt_min=1.0, dt_max=1.0)
    ssm.A = torch.complex(torch.full_like(ssm.A.real, 0.5), ssm.A.imag)
    u = torch.randn(1, 110, 2, dtype=torch.float64)
    wanted, end = ssm.scan(u)
    y, state = chunked(ssm, u)
    assert peak_error(y, wanted) <= TIGHT
    assert peak_error(state, end) <= TIGHT
    assert peak_error(fftconv(u, ssm.kernel(110)), wanted) <= TIGHT


def test_many_chunks_in_float32():
    """2,000 chunks of a mode that hardly decays: the states in between must not be rounded to float32."""
    ssm = make("diagonal-lin", 8, "zoh", dtype=torch.float32, dt_min=0.01, dt_max=0.01)
    ssm.A = torch.complex(torch.full_like(ssm.A.real, -1e-4), ssm.A.imag)
    u = 1 + torch.randn(1, 128_000, 2)
    double = make("diagonal-lin", 8, "zoh")
    double.A, double.dt, double.C = ssm.A, ssm.dt, ssm.C.to(torch.complex128)
    wanted, end = chunked(double, u.double())
    y, state = chunked(ssm, u)
    assert peak_error(y, wanted) <= 5e-7
    assert peak_error(state, end) <= 5e-8
    start = ssm.initial_state(1, dtype=torch.float32)
    assert chunked(ssm, u[:, :100], start)[1].dtype == torch.float32
    assert state_after(ssm, u[:, :100], torch.tensor([70]), start).dtype == torch.float32


def test_step_does_not_change_its_state():
    for kind in ("diagonal-legs", "dplr-legs", "dense-legs"):
        ssm = make(kind, 8, "bilinear")
        state = torch.randn(3, 2, 8, dtype=torch.float64)
        before = state.clone()
        _, after = ssm.step(torch.randn(3, 2), state)
        assert (state == before).all()
        assert (after != before).any()


@pytest.mark.parametrize("kind", ["diagonal-lin", "dplr-legs", "dense-legs"])
def test_the_state_keeps_its_precision(kind):
    ssm = make(kind, 8, "bilinear", dtype=torch.float32)
    u = torch.randn(3, 2)
    for dtype in (torch.float32, torch.float64):
        y, state = ssm.step(u, ssm.initial_state(3, dtype=dtype))
        assert (y.dtype, state.dtype) == (torch.float32, dtype)


@pytest.mark.parametrize("kind", ["diagonal-lin", "dplr-fout", "dense-legt"])
def test_rate_is_a_longer_step(kind):
    """A held input seen at half the rate with twice the step: exact for the zero-order hold."""
    ssm = make(kind, 8, "zoh")
    held = torch.randn(1, 20, 2, dtype=torch.float64)
    slow, end_slow = ssm.with_dt_scale(2.0).scan(held)
    fast, end_fast = ssm.scan(held.repeat_interleave(2, 1))
    torch.testing.assert_close(slow, fast[:, 1::2], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(end_slow, end_fast, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["diagonal-inv", "dplr-legs", "dense-legs"])
def test_looking_ahead(kind, rule):
    """An anti-causal kernel is C Ā^l B̄ from the next sample on, in chunks, by convolution and by its definition."""
    ssm, L = make(kind, 8, rule, H=2, channels=2), 23
    u = torch.randn(2, L, 2, dtype=torch.float64)
    kernels = ssm.kernel(L, ahead=1)
    Abar, Bbar, C = (ssm.recurrence().transition.matrix(), *ssm.recurrence()[1:3])
    power = torch.eye(8, dtype=torch.float64)
    for value in kernels[1].unbind(-1):
        torch.testing.assert_close(
            value, torch.einsum("hn,hnm,hm->h", C[1], power.expand_as(Abar), Bbar), atol=1e-12, rtol=1e-10
        )
        power = Abar @ power
    wanted = torch.zeros_like(u)
    for t in range(L):
        for j in range(L):
            wanted[:, t] += kernels[0, :, t - j] * u[:, j] if j <= t else kernels[1, :, j - t - 1] * u[:, j]
    assert peak_error(fftconv(u, kernels[:1], kernels[1:])[:, :, 0], wanted) <= TIGHT
    assert peak_error(naive(ssm, u, bidirectional=True)[:, :, 0], wanted) <= TIGHT
    for chunk in (1, 5, 64):
        assert peak_error(chunked(ssm, u, chunk=chunk, bidirectional=True)[0][:, :, 0], wanted) <= TIGHT
