"""forward == prefill == step, for every layer and option, cut anywhere."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statespan import S4
from tests.nn.make import COMBINATIONS, IDS, LAYER_IDS, LAYERS, peak_error, perturb, run_steps, takes

pytestmark = pytest.mark.share(3)

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-6}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("cls", "options"), COMBINATIONS, ids=IDS)
def test_every_combination(cls, options, dtype):
    layer = cls(4, 16, dtype=dtype, **options)
    x = torch.randn(2, 70, 4, dtype=dtype)
    with torch.no_grad():
        wanted, end = run_steps(layer, x)
        y, state = layer.prefill(x)
        for got in (layer(x), y):
            assert peak_error(got, wanted) <= TOLERANCE[dtype]
        assert peak_error(state, end) <= TOLERANCE[dtype]


@st.composite
def cases(draw, longest=200):
    cls, options = draw(st.sampled_from(COMBINATIONS))
    d_model = draw(st.sampled_from([2, 4, 6]))
    length = draw(st.integers(1, longest))
    options = {"init": "legs", **options} if takes(cls, "init") else dict(options)
    options["dtype"] = draw(st.sampled_from([torch.float64, torch.float32]))
    options["channels"] = draw(st.integers(1, 2))
    if takes(cls, "n_ssm"):
        options["n_ssm"] = draw(st.sampled_from([None, 2] if "/" in options["init"] else [None, 1, 2]))
    options["mix"] = draw(st.sampled_from(["linear", "glu", None]))
    options["activation"] = draw(st.sampled_from(["gelu", None]))
    return {
        "build": (cls, d_model, draw(st.sampled_from([2, 8, 64])), options),
        "seed": draw(st.integers(0, 2**31)),
        "trained": draw(st.sampled_from([0.0, 0.02, 0.2])),
        "batch": max(draw(st.integers(1, 3)), -(-64 // (d_model * length))),  # enough outputs for a fair peak
        "length": length,
        "cuts": sorted(draw(st.lists(st.integers(0, length), max_size=3))),
        "dt_scale": draw(st.sampled_from([0.5, 1.0, 2.0, 1.7])),
    }


def check_case(case):
    """Forward, prefill in pieces and steps from a random state of one drawn case."""
    torch.manual_seed(case["seed"])
    cls, d_model, d_state, options = case["build"]
    layer = perturb(cls(d_model, d_state, **options), case["trained"])
    dtype, dt_scale = options["dtype"], case["dt_scale"]
    x = torch.randn(case["batch"], case["length"], d_model, dtype=dtype)
    # GELU can turn a signal of size 5 that happens to be negative into one of size 0.1, and its rounding with it: the
    # yardstick is the larger of the peaks before and behind it.
    bare = copy.deepcopy(layer)
    bare.activation, bare.mix = None, torch.nn.Identity()

    def error(got, wanted, start):
        inside = bare.prefill(x, start, dt_scale=dt_scale)[0].abs().max()
        return ((got - wanted).abs().max() / torch.maximum(wanted.abs().max(), inside)).item()

    with torch.no_grad():
        wanted, _ = run_steps(layer, x, dt_scale=dt_scale)
        assert error(layer(x, dt_scale=dt_scale), wanted, None) <= TOLERANCE[dtype]
        start = torch.randn_like(layer.initial_state(case["batch"]))
        wanted, end = run_steps(layer, x, start, dt_scale)
        pieces, state = [], start
        for low, high in zip([0, *case["cuts"]], [*case["cuts"], case["length"]], strict=True):
            y, state = layer.prefill(x[:, low:high], state, dt_scale=dt_scale)
            pieces.append(y)
        assert error(torch.cat(pieces, 1), wanted, start) <= TOLERANCE[dtype]
        assert peak_error(state, end) <= TOLERANCE[dtype]


@settings(max_examples=60)
@given(cases(longest=150))
def test_any_case(case):
    check_case(case)


@pytest.mark.soak
@settings(max_examples=20_000)
@given(cases())
def test_any_case_soak(case):
    check_case(case)


@pytest.mark.parametrize(("cls", "options"), LAYERS, ids=LAYER_IDS)
def test_every_length_up_to_two_chunks_and_some_more(cls, options):
    """A causal layer's output at t depends on x up to t only, so one long run of steps is the truth for all lengths."""
    layer = cls(2, 8, dtype=torch.float64, **options)
    x = torch.randn(1, 256, 2, dtype=torch.float64)
    with torch.no_grad():
        wanted, _ = run_steps(layer, x)
        for length in (*range(1, 131), 191, 192, 193, 255, 256):
            assert peak_error(layer(x[:, :length]), wanted[:, :length]) <= 1e-11, length
            y, state = layer.prefill(x[:, :length])
            assert peak_error(y, wanted[:, :length]) <= 1e-11, length
        for length in (1, 64, 100, 255):
            _, state = layer.prefill(x[:, :length])
            y, _ = run_steps(layer, x[:, length:], state)
            assert peak_error(y, wanted[:, length:]) <= 1e-11, length


@pytest.mark.parametrize("d_state", [4, 64, 256])
def test_float32_s4_at_legs_initialization(d_state):
    """Where the reference's diagonal stepping is off by 0.2 and its dense stepping by 3e-4 at 4,096 samples."""
    layer, x = S4(4, d_state), torch.randn(1, 4096, 4)
    with torch.no_grad():
        wanted, _ = run_steps(layer, x)
        assert peak_error(layer(x), wanted) <= 2e-6
        assert peak_error(layer.prefill(x)[0], wanted) <= 2e-6


def test_step_takes_the_rate():
    layer, x = S4(4, 8), torch.randn(2, 4)
    state = torch.randn(2, 4, 8, dtype=torch.float64)
    for got, wanted in zip(layer.step(x, state, dt_scale=2.0), layer.stepper(2.0)(x, state), strict=True):
        assert (got == wanted).all()
    assert (layer.step(x, state, dt_scale=2.0)[1] != layer.step(x, state)[1]).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_state_keeps_its_dtype(dtype):
    layer, x = S4(4, 8), torch.randn(2, 100, 4)
    state = layer.initial_state(2, dtype=dtype)
    assert state.dtype == dtype
    _, state = layer.prefill(x, state)
    assert state.dtype == dtype
    _, state = layer.prefill(x, state, lengths=[3, 100])
    assert state.dtype == dtype
    assert layer.step(x[:, 0], state)[1].dtype == dtype


def test_empty_sequences_and_batches():
    layer = S4(4, 8)
    assert S4(4, 8, mix=None, channels=2)(torch.zeros(2, 0, 4)).shape == (2, 0, 8)
    state = torch.randn(2, 4, 8, dtype=torch.float64)
    y, after = layer.prefill(torch.zeros(2, 0, 4), state, lengths=[0, 0])
    assert (after == state).all()
    y, after = layer.prefill(torch.zeros(2, 0, 4), state)
    assert y.shape == (2, 0, 4)
    assert (after == state).all()
    assert layer(torch.zeros(2, 0, 4)).shape == (2, 0, 4)
    assert layer(torch.zeros(0, 5, 4)).shape == (0, 5, 4)
    assert layer.prefill(torch.zeros(0, 5, 4))[0].shape == (0, 5, 4)
    assert layer.step(torch.zeros(0, 4), layer.initial_state(0))[0].shape == (0, 4)


@pytest.mark.parametrize(("cls", "options"), LAYERS, ids=LAYER_IDS)
def test_forward_changes_nothing(cls, options):
    layer = cls(4, 8, **options)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    for length in (5, 300):
        layer(torch.randn(1, length, 4)).sum().backward()
    after = layer.state_dict()
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)


def test_causal():
    """The recurrent views cannot see the future at all; the FFT only through rounding."""
    layer = S4(4, 8)
    x = torch.randn(1, 100, 4)
    changed = torch.cat([x[:, :60], 1000 * torch.randn(1, 40, 4)], 1)
    with torch.no_grad():
        assert (layer.prefill(x)[0][:, :60] == layer.prefill(changed)[0][:, :60]).all()
        assert (layer(x)[:, :60] - layer(changed)[:, :60]).abs().max() <= 4 * 1.2e-7 * 1000 * layer(x).abs().max()
