"""Generation against the parallel model: choices, likelihoods, batches, graphs."""

import pytest
import torch

from statespan import models
from statespan.generation import Sampling, generate, loop, uniforms
from statespan.generation.capture import Captured
from statespan.generation.tree import leaves
from tests.mistakes import assert_one_clear_line
from tests.models.make import make

CASES = {
    "language": {"layer": "s4"},
    "plain language": {},
    "pixels": {},
    "mixture": {"mixture": 3},
}


def model_of(case):
    return make("pixels" if case == "mixture" else case, dtype=torch.float32, **CASES[case])


def prompt_of(model, batch, length):
    config = model.config
    return torch.randint(getattr(config, "d_output", config.vocabulary), (batch, length))


def parallel(model, values):
    """The log-probabilities (B, L, V) that the parallel model gives each of a whole sequence of values."""
    if isinstance(model, models.PixelModel):
        tokens = 1 + values + 4 * (torch.arange(values.shape[1]) % 3)
        values = torch.nn.functional.pad(tokens, (1, 0))
    return model(values[:, :-1]).log_softmax(-1)


@pytest.mark.parametrize("case", CASES)
def test_samples_are_those_of_the_parallel_model(case):
    """What is chosen is what its probabilities and the noise of the place say, and so is its log-likelihood."""
    model = model_of(case)
    sampling = {"temperature": 0.8} if case == "language" else {"temperature": 0.8, "top_p": 0.9}
    prompt = prompt_of(model, 3, 7)
    found = generate(model, prompt, 40, seed=5, rows=[4, 0, 9], **sampling)
    assert found.values.shape == found.log_probs.shape == (3, 40)
    with torch.no_grad():
        scores = parallel(model, torch.cat([prompt, found.values], 1))[:, -40:]
    wanted = scores.gather(-1, found.values[..., None])[..., 0]
    assert (found.log_probs - wanted).abs().max() < 1e-5
    noise = uniforms(5, torch.tensor([4, 0, 9])[:, None], torch.arange(7, 47))
    for t in range(40):
        assert (Sampling(**sampling)(scores[:, t], noise[:, t]) == found.values[:, t]).all()


@pytest.mark.parametrize("case", CASES)
def test_any_batch_and_any_cut(case):
    model = model_of(case)
    prompt = prompt_of(model, 4, 9)
    whole = generate(model, prompt, 30, seed=2)
    alone = generate(model, prompt[2:3], 30, seed=2, rows=[2])
    assert (alone.values[0] == whole.values[2]).all()
    more = generate(model, torch.cat([prompt, whole.values[:, :11]], 1), 19, seed=2)
    assert (more.values == whole.values[:, 11:]).all()
    ragged = generate(model, prompt, 30, seed=2, lengths=[9, 3, 6, 1])
    assert (ragged.values[0] == whole.values[0]).all()
    for row, length in ((1, 3), (3, 1)):
        other = generate(model, prompt[row : row + 1, :length], 30, seed=2, rows=[row])
        assert (ragged.values[row] == other.values[0]).all()


class Recorder:
    """Stands in for a GPU's: a recording changes nothing but the CPU's tensors; replaying it does not look at them."""

    def __init__(self, walk):
        self.walk, self.warmed, self.recorded, self.replayed = walk, 0, 0, 0

    def warm(self, function):
        self.warmed += 1
        function()

    def record(self, function):
        self.recorded += 1
        host = loop._counters(self.walk.state)
        device = [leaf for leaf in leaves(self.walk.state) if leaf.dtype != torch.int64]
        device += [getattr(self.walk, name) for name in ("index", "position", "values", "scores", "last")]
        start, before = [tensor.clone() for tensor in host], [tensor.clone() for tensor in device]
        function()
        for tensor, value in zip(device, before, strict=True):
            tensor.copy_(value)

        def replay():
            self.replayed += 1
            now = [tensor.clone() for tensor in host]
            for tensor, value in zip(host, start, strict=True):
                tensor.copy_(value)
            function()
            for tensor, value in zip(host, now, strict=True):
                tensor.copy_(value)

        return replay, None


@pytest.mark.parametrize(("case", "kinds"), [("language", 1), ("pixels", 6)])
def test_captured(case, kinds, monkeypatch):
    """Recording and replaying gives the same samples: one recording for each place in the frames of a U-Net."""
    model = model_of(case)
    prompt = prompt_of(model, 3, 5)
    wanted = generate(model, prompt, 40, seed=1)
    advance, captured = loop.Decoding.advance, {}

    def stepped(walk):
        if walk not in captured:
            captured[walk] = Captured(lambda: advance(walk), loop._counters(walk.state), Recorder(walk))
        captured[walk]()

    monkeypatch.setattr(loop.Decoding, "advance", stepped)
    found = generate(model, prompt, 40, seed=1)
    recorder = next(iter(captured.values())).recorder
    assert (found.values == wanted.values).all()
    assert (found.log_probs == wanted.log_probs).all()
    assert (recorder.warmed, recorder.recorded, recorder.replayed) == (kinds, kinds, 39 - kinds)


def test_series():
    """A regressor of its own input goes on with its own outputs."""
    model = make("regressor", dtype=torch.float32, d_output=3)
    x = torch.randn(2, 12, 3)
    seen = []
    found = generate(model, x, 5, callback=lambda i, value: seen.append((i, value.clone())))
    whole = x
    for t in range(5):
        y = model(whole)
        assert (found.values[:, t] - y).abs().max() < 1e-5 * y.abs().max()
        whole = torch.cat([whole, y[:, None]], 1)
    assert [i for i, _ in seen] == [0, 1, 2, 3, 4]
    assert all((value == found.values[:, i]).all() for i, value in seen)


def test_forecast():
    model = make("forecaster", dtype=torch.float32)
    x, marks = torch.randn(2, 14, 3), torch.randn(2, 19, 4)
    found = generate(model, x, 5, marks=marks)
    wanted = model(torch.cat([x, torch.zeros(2, 5, 3)], 1), marks=marks)
    assert (found.values - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert generate(model, x, 5, marks=marks, callback=lambda i, y: i == 2).values.shape == (2, 3, 2)


def test_greedy_and_an_early_end():
    model = model_of("language")
    prompt = prompt_of(model, 2, 4)
    whole = generate(model, prompt, 12, temperature=0)
    with torch.no_grad():
        best = parallel(model, torch.cat([prompt, whole.values], 1))[:, -12:].argmax(-1)
    assert (whole.values == best).all()
    short = generate(model, prompt, 12, temperature=0, callback=lambda i, token: i == 4)
    assert (short.values == whole.values[:, :5]).all()
    assert generate(model, prompt, 1, seed=3).values.shape == (2, 1)


def test_many_steps_have_noise_of_their_own(monkeypatch):
    """Beyond one table of random numbers."""
    model = model_of("plain language")
    prompt = prompt_of(model, 2, 4)
    wanted = generate(model, prompt, 50, seed=3)
    monkeypatch.setattr(loop, "RANDOM_STEPS", 7)
    assert (generate(model, prompt, 50, seed=3).values == wanted.values).all()


MISTAKES = {
    "another module": (lambda: generate(torch.nn.Linear(2, 2).eval(), None, 3), TypeError, ["LanguageModel"]),
    "no module": (lambda: generate("x", None, 3), TypeError, ["model", "str"]),
    "training mode": (lambda: generate(model_of("language").train(), None, 3), ValueError, ["eval()"]),
    "no steps": (lambda: generate(model_of("language"), None, 0), ValueError, ["steps", "got 0"]),
    "no prompt": (lambda: generate(model_of("language"), None, 3), ValueError, ["prompt", "None"]),
    "an empty prompt": (
        lambda: generate(model_of("language"), torch.zeros(2, 0, dtype=torch.int64), 3), ValueError, ["at least one"],
    ),
    "large tokens": (lambda: generate(model_of("language"), torch.full((1, 2), 30), 3), ValueError, ["0 … 29"]),
    "large values": (lambda: generate(model_of("pixels"), torch.full((1, 2), 4), 3), ValueError, ["0 … 3"]),
    "rows": (lambda: generate(model_of("pixels"), None, 3, batch=2, rows=[1]), ValueError, ["rows", "2"]),
    "large rows": (lambda: generate(model_of("pixels"), None, 3, rows=[2**32]), ValueError, ["rows", "2**32"]),
    "marks": (lambda: generate(model_of("pixels"), None, 3, marks=torch.zeros(1)), ValueError, ["marks"]),
    "other outputs": (
        lambda: generate(make("regressor"), torch.zeros(1, 2, 3), 3), ValueError, ["d_input=3", "d_output=2"],
    ),
    "bfloat16 states": (
        lambda: generate(model_of("pixels"), None, 3, state_dtype=torch.bfloat16), ValueError, ["float32", "bfloat16"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    assert_one_clear_line(*MISTAKES[name])


@pytest.mark.parametrize("case", ["regressor", "forecaster"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_prompts_must_be_finite_as_far_as_they_are_read(case, bad):
    """1e300 is not finite in the model's float32."""
    options = {"d_output": 3} if case == "regressor" else {"d_marks": 0}
    model = make(case, dtype=torch.float32, d_input=3, **options)
    prompt = torch.randn(2, 6, 3, dtype=torch.float64)
    short = generate(model, prompt, 2, lengths=[6, 4]).values
    prompt[1, 4, 2] = bad
    assert_one_clear_line(lambda: generate(model, prompt, 2), ValueError, ["prompt must be finite", "(1, 4, 2)"])
    assert torch.equal(generate(model, prompt, 2, lengths=[6, 4]).values, short)
