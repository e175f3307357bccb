"""What a layer refuses and what its states are, for each of its uses."""

import pytest
import torch

from statespan import DSS, LRU, LSSL, S4, S4D, S5

X = torch.randn(2, 7, 4)


@pytest.mark.parametrize("use", ["prefill", "step", "stepper", "initial_state"])
def test_a_layer_that_looks_ahead_has_no_state(use):
    layer = S4D(4, 8, bidirectional=True)
    calls = {
        "prefill": lambda: layer.prefill(X),
        "step": lambda: layer.step(X[:, 0], torch.zeros(2, 4, 8)),
        "stepper": lambda: layer.stepper(),
        "initial_state": lambda: layer.initial_state(2),
    }
    named = use.removesuffix("per")
    with pytest.raises(ValueError, match=f"{named} needs a causal layer, got bidirectional=True"):
        calls[use]()


@pytest.mark.parametrize(
    ("cls", "short"), [(S4, True), (S4D, False), (DSS, False), (LSSL, False), (S5, False), (LRU, False)]
)
def test_states_are_float64_unless_less_is_enough(cls, short):
    layer = cls(4, 8)
    assert layer.initial_state(3).dtype == torch.float64
    assert layer.initial_state(3, dtype=None).dtype == (torch.float32 if short else torch.float64)
    assert layer.initial_state(3, dtype=torch.float32).dtype == torch.float32
    assert layer.initial_state(3).shape == ((3, 4, 2) if cls in (S5, LRU) else (3, 4, 8))
    assert not layer.initial_state(3).any()


def test_a_step_leaves_its_state_unless_told_to_write_over_it():
    layer = S4D(4, 8).requires_grad_(False)
    state = torch.randn(2, 4, 8, dtype=torch.float64)
    before = state.clone()
    y, new = layer.step(X[:, 0], state)
    assert torch.equal(state, before)
    assert not torch.equal(new, before)
    again, same = layer.stepper(in_place=True)(X[:, 0], state)
    assert same.data_ptr() == state.data_ptr()
    assert torch.equal(state, new)
    assert torch.equal(again, y)


@pytest.mark.parametrize("shape", [(1, 4, 8), (2, 4, 7), (2, 3, 8), (2, 4)])
def test_a_state_of_another_shape_is_refused(shape):
    layer = S4D(4, 8)
    state = torch.zeros(shape)
    for call in (lambda: layer.prefill(X, state), lambda: layer.step(X[:, 0], state)):
        with pytest.raises(ValueError, match="state must have shape"):
            call()


def test_dtypes_that_no_autocast_makes_alike_are_refused():
    layer = S4D(4, 8)
    for x in (X.double(), X.bfloat16()):
        with pytest.raises(TypeError, match="x must have the dtype of the layer"):
            layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(X.bfloat16()).shape == X.shape
        with pytest.raises(TypeError, match="x must have the dtype of the layer"):
            layer(X.double())


def test_padding_needs_a_kernel_that_does_not_depend_on_the_length():
    with pytest.raises(ValueError, match="softmax_length"):
        DSS(4, 8, softmax_length=None)(X, lengths=[3, 7])
    assert not DSS(4, 8, softmax_length=7)(X, lengths=[3, 7])[0, 3:].any()


@pytest.mark.parametrize("dt_scale", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_none_is_refused_by_every_use(dt_scale):
    layer = S4D(4, 8)
    for call in (
        lambda: layer(X, dt_scale=dt_scale),
        lambda: layer.prefill(X, dt_scale=dt_scale),
        lambda: layer.step(X[:, 0], layer.initial_state(2), dt_scale=dt_scale),
    ):
        with pytest.raises(ValueError, match="dt_scale must be"):
            call()


def test_as_many_features_as_it_says():
    for mix, wanted in ((None, 12), ("linear", 4), ("glu", 4)):
        layer = S4D(4, 8, channels=3, mix=mix)
        assert layer(X).shape == (2, 7, layer.d_output) == (2, 7, wanted)
    assert S4D(4, 8, channels=3).D.shape == (3, 4)
    assert S4D(500, 2, channels=2).D.std().item() == pytest.approx(1.0, abs=0.1)  # drawn, not zeros


@pytest.mark.parametrize(
    ("name", "value"), [("mix", "Glu"), ("activation", "relu"), ("dropout", 1.0), ("dropout", -0.1), ("channels", 0)]
)
def test_options_that_are_none_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        S4D(4, 8, **{name: value})
