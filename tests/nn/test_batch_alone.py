"""A sequence alone and the same sequence in a batch: equal to rounding, which is what the README promises."""

import pytest
import torch

from statespan import DSS, LRU, LSSL, S4, S4D, S5, generate
from statespan.models import Classifier, ClassifierConfig, Regressor
from statespan.ops import use_path
from tests.models.make import make
from tests.nn.make import peak_error

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-11}
LAYERS = {
    "S4D": lambda: S4D(24, 16, mix="glu"),
    "S4D both ways": lambda: S4D(24, 16, bidirectional=True),
    "S4": lambda: S4(24, 16, channels=2),
    "S4, Cauchy": lambda: S4(24, 16, kernel="cauchy"),
    "DSS": lambda: DSS(24, 16, softmax_length=100),
    "LSSL": lambda: LSSL(24, 8),
    "S5": lambda: S5(24, 16),
    "S5 both ways": lambda: S5(24, 16, bidirectional=True),
    "LRU": lambda: LRU(24, 16),
}


def assert_alone_is_the_same(call, x):
    """The greatest difference over the peak; each row by itself, and some of them together."""
    whole = call(x)
    for rows in (slice(0, 1), slice(6, 7), slice(2, 5)):
        assert peak_error(call(x[rows]), whole[rows]) <= TOLERANCE[x.dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("path", ["chunks", "fft"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, path, dtype):
    torch.manual_seed(0)
    layer, x = LAYERS[name]().to(dtype), torch.randn(7, 130, 24, dtype=dtype)
    with use_path(path), torch.no_grad():
        assert_alone_is_the_same(layer, x)
        if not layer.bidirectional:
            assert_alone_is_the_same(lambda x: layer.prefill(x)[0], x)
            assert_alone_is_the_same(lambda x: layer.prefill(x)[1], x)
            assert_alone_is_the_same(lambda x: layer.step(x[:, 0], layer.initial_state(len(x)))[0], x)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_models(kind, dtype):
    torch.manual_seed(0)
    config = ClassifierConfig(d_input=3, d_output=4, d_model=24, n_layers=3, layer="s4d", norm="batch", dropout=0.1)
    model = kind(config).to(dtype).eval()
    with torch.no_grad():
        assert_alone_is_the_same(model, torch.randn(7, 130, 3, dtype=dtype))


def test_generated_samples_and_log_probabilities():
    torch.manual_seed(0)
    model = make("regressor", dtype=torch.float32, d_output=3)
    assert_alone_is_the_same(lambda x: generate(model, x, 1).values, torch.randn(7, 90, 3))  # before it is read again
    language = make("language", dtype=torch.float32)
    prompt = torch.randint(language.config.vocabulary, (7, 40))
    whole = generate(language, prompt, 20, seed=1)
    alone = generate(language, prompt[5:6], 20, seed=1, rows=[5])
    assert torch.equal(alone.values[0], whole.values[5])
    assert peak_error(alone.log_probs[0], whole.log_probs[5]) <= 2e-6
