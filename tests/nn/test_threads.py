"""Small models train, predict and generate on one thread, unless the user chose a number, which returns."""

import numpy as np
import pytest
import torch

from statespan.estimators import S4Classifier, S4Forecaster
from statespan.generation import Stream, generate
from statespan.models import LanguageConfig, LanguageModel, build
from statespan.nn import threads
from statespan.nn.threads import SMALL, activation_size, few_threads, threads_for
from statespan.train import fit
from tests.train.make import dataset, recipe

CORES = 4
OPTIONS = {"d_input": 2, "d_output": 3, "d_model": 8, "d_state": 4, "n_layers": 1, "layer": "s4d"}


@pytest.fixture
def count(monkeypatch):
    """A machine with four idle cores where nobody chose a number: its number of threads, as a list of changes."""
    changes = [CORES]
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: CORES)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(CORES)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: changes[-1])
    monkeypatch.setattr(torch, "set_num_threads", changes.append)
    return changes


def model():
    return build("classifier", options=OPTIONS)


def test_the_size_is_that_of_an_activation():
    assert activation_size(model(), 3, 50) == 3 * 50 * 8
    assert activation_size(torch.nn.Linear(2, 2), 3, 50) is None


@pytest.mark.parametrize(("rows", "expected"), [(SMALL // 800 - 1, 1), (SMALL // 800 + 1, CORES)])
def test_one_thread_below_the_limit(rows, expected, count):
    with few_threads(model(), rows, 100):
        assert count[-1] == expected
    assert count[-1] == CORES


@pytest.mark.parametrize("name", threads.VARIABLES)
def test_a_variable_is_respected(name, count, monkeypatch):
    monkeypatch.setenv(name, "4")
    with few_threads(model(), 1, 1):
        assert count == [CORES]


def test_a_number_that_the_user_set_is_respected(count):
    count.append(3)
    with few_threads(model(), 1, 1):
        assert count[-1] == 3
    with few_threads(model(), 10**6, 100, given=2):
        assert count[-1] == 2
    assert count[-1] == 3


def test_the_number_returns_after_an_error(count):
    with pytest.raises(KeyError), few_threads(model(), 1, 1):
        raise KeyError
    assert count == [CORES, 1, CORES]


@pytest.mark.parametrize(("size", "expected"), [(None, CORES), (SMALL - 1, 1), (SMALL, CORES)])
def test_a_size_that_is_known_otherwise(size, expected, count):
    with threads_for(model(), size):
        assert count[-1] == expected


@torch.no_grad()
def test_generation_and_streams(count):
    """The prompt, and the steps, whose size is that of the states."""
    language = LanguageModel(LanguageConfig(vocabulary=10, d_model=8, d_state=4, n_layers=1)).eval()
    seen = []
    language.backbone.blocks[0].norm.register_forward_hook(lambda *_: seen.append(count[-1]))
    generate(language, torch.zeros(2, 5, dtype=torch.int64), steps=4)
    assert seen == [1] * 4
    assert count[-1] == CORES
    forecaster = build("forecaster", options={"d_input": 1, "d_output": 1, "d_model": 8, "n_layers": 1, "horizon": 3})
    forecaster.eval().backbone.blocks[0].norm.register_forward_hook(lambda *_: seen.append(count[-1]))
    seen.clear()
    generate(forecaster, torch.randn(2, 6, 1), steps=3)
    assert set(seen) == {1}
    stream = Stream(model().eval(), 2)
    stream.model.backbone.blocks[0].norm.register_forward_hook(lambda *_: seen.append(count[-1]))
    seen.clear()
    stream.prefill(torch.randn(2, 7, 2))
    assert seen == [1]
    stream.push(torch.randn(2, 7, 2))
    assert count[-1] == CORES


@pytest.mark.parametrize(("given", "expected"), [(None, 1), (2, 2)])
def test_a_run(given, expected, count, tmp_path):
    seen = []
    network = model()
    network.register_forward_hook(lambda *_: seen.append(count[-1]))
    settings = recipe(epochs=1, threads=given)
    fit(settings, tmp_path, data=dataset(), model=network, progress=False, device="cpu")
    assert set(seen) == {expected}
    assert count[-1] == CORES


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("given", "expected"), [(None, 1), (2, 2)])
def test_estimators(given, expected, count):
    series = np.random.default_rng(0).normal(size=(12, 20))
    small = {"d_model": 4, "n_layers": 1, "verbose": 0, "device": "cpu", "threads": given}
    classifier = S4Classifier(epochs=1, **small).fit(series, np.arange(12) % 2)
    forecaster = S4Forecaster(3, steps=2, context=8, **small).fit(series.ravel()[:90])
    assert set(count) == {CORES, expected}
    for call in (lambda: classifier.predict(series), forecaster.predict, lambda: forecaster.evaluate(series.ravel())):
        count[:] = [CORES]
        call()
        assert count[1:3] == [expected, CORES]
        assert count[-1] == CORES
    with pytest.raises(ValueError, match="threads must be an integer >= 1, got 0"):
        S4Classifier(threads=0).fit(series, np.arange(12) % 2)


def test_a_small_run_gives_the_bits_of_one_thread_on_any_number_of_cores(tmp_path, monkeypatch):
    """With two threads sums have another order."""
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    before, weights = torch.get_num_threads(), []
    try:
        torch.set_num_threads(2)
        for number in (1, None):
            torch.manual_seed(0)
            network = model()
            settings = recipe(epochs=2, threads=number)
            fit(settings, tmp_path / str(number), data=dataset(), model=network, progress=False, device="cpu")
            weights.append(network.state_dict())
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
