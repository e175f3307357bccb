"""Linear attention and the Performer: the sums in chunks, their memory, and the random features."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from statespan.papers.baselines import linear_attention
from statespan.papers.baselines.linear_attention import Features, LinearState, Performer, chunked_sums, one_sum
from tests.nn.make import peak_error
from tests.papers.baselines.make_attention import Sizes, build, heads_of, run_steps

pytestmark = pytest.mark.share(3)


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_the_sums_of_the_state(kind):
    """Against the O(L) recurrence S += φ(k) vᵀ, z += φ(k)."""
    layer = build(kind)
    x = torch.randn(2, 100, 8, dtype=torch.float64)
    q, k, v = heads_of(layer, x)
    if kind == "linear":
        phi_q, phi_k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    else:
        phi = []
        for z in (q / math.sqrt(2), k / math.sqrt(2)):  # E = 4
            exact = (z @ layer.projection.T - (z * z).sum(-1, keepdim=True) / 2).exp()
            phi.append(exact + 1e-6 * exact.max(-1, keepdim=True).values)
        phi_q, phi_k = phi
    S = torch.zeros(2, 2, layer.n_features, 4, dtype=torch.float64)
    z = torch.zeros(2, 2, layer.n_features, dtype=torch.float64)
    heads = []
    for t in range(100):
        S = S + phi_k[:, :, t, :, None] * v[:, :, t, None, :]
        z = z + phi_k[:, :, t]
        heads.append((phi_q[:, :, t, :, None] * S).sum(2) / (phi_q[:, :, t] * z).sum(2, keepdim=True))
    wanted = torch.stack(heads, 1).flatten(2) @ layer.out.weight.T + layer.out.bias
    for y, state in (layer.prefill(x), run_steps(layer, x, layer.initial_state(2))):
        assert peak_error(y, wanted) <= 1e-12
        sums = state.sums * state.log_scale.exp()[..., None, None]
        assert peak_error(sums[..., :-1], S) <= 1e-12
        assert peak_error(sums[..., -1], z) <= 1e-12


def explicit_sums(q, k, log_k, v, state):
    """Σ_{s ≤ t} (q_t·k_s) exp(log_k_s) v_s, over nothing."""
    k = k if log_k is None else k * log_k.exp()[..., None]
    weights = torch.einsum("bhtf,bhsf->bhts", q, k).tril()
    carried = state.sums * state.log_scale.exp()[..., None, None]
    return weights @ v + q @ carried, carried + k.mT @ v


def drawn_sums(length, scaled, requires_grad=False):
    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=requires_grad)

    log_k = draw(2, 2, length) if scaled else None
    log_scale = draw(2, 2) if scaled else torch.zeros(2, 2, dtype=torch.float64)
    return draw(2, 2, length, 3), draw(2, 2, length, 3), log_k, draw(2, 2, length, 4), draw(2, 2, 3, 4), log_scale


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("group", [1, 2, 64])
def test_chunks_of_any_length(scaled, group, monkeypatch):
    monkeypatch.setattr(linear_attention, "GROUP", group)
    for length in (1, 5, 14):
        q, k, log_k, v, sums, log_scale = drawn_sums(length, scaled)
        state = LinearState(sums, log_scale)
        wanted, end = explicit_sums(q, k, log_k, v, state)
        if scaled:  # each position is relative to the largest scale so far
            top = torch.maximum(log_k.cummax(-1).values, log_scale[..., None])
            wanted = wanted * (-top).exp()[..., None]
        for chunk in (1, 2, 3, 7, 64):
            y, after = chunked_sums(Features(q, k, v, log_k), state, chunk=chunk)
            assert peak_error(y, wanted) <= 1e-13
            assert peak_error(after.sums * after.log_scale.exp()[..., None, None], end) <= 1e-13
        if length == 1:
            y, after = one_sum(Features(q, k, v, log_k), state)
            assert peak_error(y, wanted) <= 1e-13
            assert peak_error(after.sums * after.log_scale.exp()[..., None, None], end) <= 1e-13


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("chunk", [1, 2])
def test_gradients_across_chunks_and_groups(scaled, chunk, monkeypatch):
    """Finite differences with respect to everything, the state before and what is done with the one after included."""
    monkeypatch.setattr(linear_attention, "GROUP", 2)
    q, k, log_k, v, sums, log_scale = drawn_sums(5, scaled, requires_grad=True)

    def function(q, k, v, sums, *scales):
        log_k, log_scale = scales if scaled else (None, torch.zeros(2, 2, dtype=torch.float64))
        y, after = chunked_sums(Features(q, k, v, log_k), LinearState(sums, log_scale), chunk=chunk)
        if log_k is None:
            return y, after.sums
        # A scale is chosen without a gradient, so what is compared is free of it.
        top = torch.maximum(log_k.detach().cummax(-1).values, log_scale.detach()[..., None])
        first = Features(q[:, :, :1], k[:, :, :1], v[:, :, :1], log_k[..., :1])
        more, _ = one_sum(first, after)
        last = torch.maximum(after.log_scale, log_k[..., 0]).detach()
        return y * top.exp()[..., None], more * last.exp()[..., None, None]

    scales = (log_k, log_scale) if scaled else ()
    assert gradcheck(function, (q, k, v, sums, *scales), atol=1e-7, rtol=1e-6)


def kept_for_backward(function):
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = function()
    return y, sum(kept.values())


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-way"])
@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_memory_is_linear(kind, causal):
    """What is kept for the backward pass grows as L; no tensor, there or backward, is near L × E × E or L × L."""
    layer = build(kind, 64, 2, torch.float32, bidirectional=not causal)
    layer.qkv.weight.requires_grad_(False)  # the activations, not the weights
    kept = {}
    for length in (512, 2048):
        x = torch.randn(1, length, 64, requires_grad=True)
        with Sizes() as sizes:
            y, kept[length] = kept_for_backward(lambda x=x: layer(x))
            y.square().sum().backward()
        assert 2 * length * 32 <= sizes.largest <= 2 * length * 96  # of 2 · L · 1,024 and 2 · L · L
    assert 3.5 <= kept[2048] / kept[512] <= 4.1


def softmax_error(n_features):
    """How far a Performer is from softmax attention, relative to how far that is from a plain mean of the values."""
    layer = Performer(16, 4, n_features=n_features, dtype=torch.float64, bidirectional=True)
    with torch.no_grad():
        q, k, v = heads_of(layer, 0.7 * torch.randn(1, 30, 16, dtype=torch.float64))
        wanted = (q @ k.mT / math.sqrt(4)).softmax(-1) @ v
        return ((layer._whole(q, k, v, None) - wanted).norm() / (wanted - v.mean(2, keepdim=True)).norm()).item()


def test_performer_converges_to_softmax_attention():
    """The error falls as 1/√F, by 8 from 256 to 16,384 features, and so to about 4 % (mean of 8 draws)."""
    few = sum(softmax_error(256) for _ in range(8)) / 8
    many = sum(softmax_error(16_384) for _ in range(8)) / 8
    assert many < 0.08
    assert 5 < few / many < 11


def test_performer_features_are_unbiased():
    """The mean of φ(q)·φ(k) over draws is exp(q·k/√E), within 4 standard errors of at most 4 %."""
    layer = Performer(8, 1, n_features=8, dtype=torch.float64)
    q, k = 0.4 * torch.randn(2, 1, 1, 6, 8, dtype=torch.float64)
    draws = []
    for _ in range(2000):
        layer.redraw()
        x = q / 8**0.25
        exponent = x @ layer.projection.T
        phi_q, phi_k, log_k = layer._features(q, k)
        phi_q = phi_q * (exponent.amax(-1, keepdim=True) - (x * x).sum(-1, keepdim=True) / 2).exp()
        draws.append((phi_q * phi_k).sum(-1) * log_k.exp() / 8)
    draws = torch.stack(draws)[:, 0, 0]
    wanted = ((q * k).sum(-1) / math.sqrt(8)).exp()[0, 0]
    error = draws.std(0) / math.sqrt(2000)
    assert (error / wanted < 0.04).all()
    assert ((draws.mean(0) - wanted).abs() < 4 * error).all()


def test_projection():
    """Orthogonal in blocks of E, Gaussian each: lengths like those of Gaussian vectors, no direction preferred."""
    layer = Performer(32, 2, n_features=40, dtype=torch.float64)
    for first, last in ((0, 16), (16, 32), (32, 40)):
        block = layer.projection[first:last]
        gram = block @ block.T
        assert (gram - gram.diagonal().diag()).abs().max() < 1e-12
    assert (layer.projection[:16] @ layer.projection[16:32].T).abs().max() > 1
    many = Performer(8, 1, n_features=40_000, dtype=torch.float64).projection
    assert many.mean(0).abs().max() < 0.02
    assert (many.T @ many / 40_000 - torch.eye(8, dtype=torch.float64)).abs().max() < 0.03
    assert abs(many.norm(dim=1).square().var().item() - 16) < 0.8  # of χ² with 8 degrees of freedom


def test_projection_comes_from_torchs_generator_and_is_saved():
    torch.manual_seed(3)
    first = Performer(64, 2)
    torch.manual_seed(3)
    second = Performer(64, 2)
    assert first.projection.shape == (111, 32)  # 32 ln 32 = 110.9
    assert (first.projection == second.projection).all()
    assert "projection" in first.state_dict()
    assert not first.projection.requires_grad
    second.redraw()
    assert (first.projection != second.projection).all()


@pytest.mark.parametrize(("d_head", "n_features"), [(1, 1), (2, 1), (8, 17), (64, 266)])
def test_number_of_features(d_head, n_features):
    assert Performer(4, 2, d_head=d_head).n_features == n_features


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_sums_do_not_stall_in_bfloat16(kind):
    """Summed up in bfloat16, 600 like samples would come to 256 at most."""
    layer = build(kind, dtype=torch.bfloat16)
    x = torch.randn(1, 1, 8, dtype=torch.bfloat16)
    with torch.no_grad():
        _, once = layer.prefill(x)
        _, many = run_steps(layer, x.expand(1, 600, 8), layer.initial_state(1))
        _, chunks = layer.prefill(x.expand(1, 600, 8))
    assert peak_error(many.sums, 600 * once.sums) < 1e-6
    assert peak_error(chunks.sums, 600 * once.sums) < 0.02  # the projections of many rows are rounded otherwise


@pytest.mark.parametrize("kind", ["linear", "performer"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-way"])
def test_autocast_leaves_the_sums_alone(kind, causal):
    layer = build(kind, dtype=torch.float32, bidirectional=not causal)
    q, k, v = torch.randn(3, 2, 2, 70, 4)
    with torch.autocast("cpu", torch.bfloat16):
        got = layer._whole(q, k, v, None)
    assert got.dtype == torch.float32
    assert (got == layer._whole(q, k, v, None)).all()
