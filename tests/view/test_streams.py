"""Streams of clients: right numbers, apart from each other, bounded, and forgotten when idle."""

import random
import threading
import wave
from dataclasses import fields

import numpy as np
import pytest
import torch

from statespan import Stream, models
from statespan.models import ClassifierConfig, Regressor
from statespan.models.registry import _find as find_model
from statespan.view import Api, signals
from statespan.view.fields import RefusedError
from statespan.view.signals import generated, uploaded
from statespan.view.streams import ClientStreams
from tests.cli.test_models import invoke, said
from tests.view.serve import post, served, trained


@pytest.fixture(scope="module")
def model():
    return trained("digits-s4d")


def pixels(seed, length=40):
    return np.random.default_rng(seed).integers(0, 17, (length, 1)).astype(float).tolist()


def test_outputs_are_those_of_a_stream(model):
    samples = pixels(0)
    own = Stream(model, dt_scale=2.0)
    wanted = [own.push(model.inputs(np.array([row]))[0])[0].double().softmax(-1) for row in samples]
    streams = ClientStreams(model)
    name = streams.open(2.0)
    count, outputs = streams.push(name, samples)
    assert count == len(samples)
    np.testing.assert_array_equal(outputs, torch.stack(wanted))
    again = streams.open(2.0)
    assert streams.push(again, samples[:13], every=5)[0] == 13
    np.testing.assert_allclose(streams.push(again, samples[13:], every=27)[1][-1], outputs[-1], atol=1e-5)


def test_the_command_line_gives_the_same(model):
    samples = pixels(1, 12)
    text = said(invoke("stream", "digits-s4d", stdin="".join(f"{row[0]}\n" for row in samples)))
    streams = ClientStreams(model)
    _, outputs = streams.push(streams.open(), samples)
    lines = [line.split(",") for line in text.splitlines()[1:]]
    assert [int(line[1]) for line in lines] == [int(np.argmax(row)) for row in outputs]
    np.testing.assert_allclose([float(line[2]) for line in lines], np.max(outputs, 1), atol=5e-5)


def test_values_have_their_own_units():
    model = Regressor(ClassifierConfig(d_input=2, d_output=1, d_model=8, n_layers=1, layer="s4d")).eval()
    api = Api(model, "own")
    about = api.setup({})["model"]
    assert (about["features"], about["names"], about["scaled"]) == (2, ["value 0"], False)
    _, outputs = api.streams.push(api.streams.open(), [[0.5, -1.0]] * 3)
    own = Stream(model)
    wanted = [own.push(torch.tensor([[0.5, -1.0]]))[0].tolist() for _ in range(3)]
    np.testing.assert_array_equal(outputs, wanted)


def test_interleaved_streams_have_the_bits_of_solo_ones(model):
    """Over HTTP, from threads, in blocks cut at random."""
    signals = {seed: pixels(seed) for seed in range(6)}

    def push_all(server, seed, results):
        cuts, at, outputs = random.Random(seed), 0, []
        name = post(server, "/api/streams/open", {"dt_scale": 1.0 + seed / 10})[1]["stream"]
        while at < len(signals[seed]):
            block = signals[seed][at : at + cuts.randint(1, 9)]
            at += len(block)
            status, answer = post(server, "/api/streams/push", {"stream": name, "samples": block})
            assert (status, answer["samples"]) == (200, at)
            outputs += answer["outputs"]
        assert post(server, "/api/streams/close", {"stream": name}) == (200, {})
        results[seed] = outputs

    with served(Api(model, "digits-s4d")) as server:
        alone, together = {}, {}
        for seed in signals:
            push_all(server, seed, alone)
        threads = [threading.Thread(target=push_all, args=(server, seed, together)) for seed in signals]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert together == alone
        assert len(alone) == 6
        assert server.api.streams.running == {}


def test_ids_cannot_be_guessed_and_streams_expire(model):
    now = [0.0]
    streams = ClientStreams(model, most=3, idle=10.0, clock=lambda: now[0])
    names = [streams.open() for _ in range(3)]
    assert len({*names}) == 3
    assert all(len(name) == 22 for name in names)  # 128 bits
    with pytest.raises(RefusedError, match="there are 3 streams already") as caught:
        streams.open()
    assert caught.value.status == 429
    now[0] = 8.0
    streams.push(names[0], [[1.0]])
    now[0] = 11.0
    assert streams.push(names[0], [[1.0]])[0] == 2
    for name in (names[1], "", "x" * 22):
        with pytest.raises(RefusedError, match="there is no such stream") as caught:
            streams.push(name, [[1.0]])
        assert caught.value.status == 404
    assert [*streams.running] == [names[0]]
    streams.close(names[0])
    assert streams.running == {}


def test_samples_that_would_spoil_a_state_change_nothing(model, monkeypatch):
    checked = Stream._checked
    streams = ClientStreams(model)
    name, other = streams.open(), streams.open()
    for each in (name, other):
        streams.push(each, [[3.0]])
    monkeypatch.setattr(Stream, "_checked", staticmethod(lambda y, x: checked(y * float("inf"), x)))
    with pytest.raises(RefusedError, match="sample 1: x must be samples whose outputs fit"):
        streams.push(name, [[4.0]])
    monkeypatch.undo()
    assert streams.push(name, [[5.0]]) == streams.push(other, [[5.0]])


def test_models_that_cannot_stream_say_why():
    for name, reason in {
        "lra-listops-s4d-shuffled": "reads tokens",
        "pmnist-s4d": "in an order of its own",
        "smnist-s4": "it looks ahead",
    }.items():
        api = Api(trained(name), name)
        assert reason in api.setup({})["model"]["reason"]
        with pytest.raises(RefusedError, match=reason) as caught:
            api.open({})
        assert caught.value.status == 409
    with pytest.raises(RefusedError, match="there is no model"):
        Api().open({})


SIZES = {"d_input": 2, "d_output": 3, "d_model": 8, "n_layers": 1, "layer": "s4d", "vocabulary": 7, "horizon": 4}
KINDS = {
    "classifier": None, "regressor": None, "transducer": None, "retrieval": "compares pairs", "forecaster": "forecasts",
    "language": "reads tokens", "masked": "reads tokens", "pixels": "reads tokens",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_streams_or_says_why_not(kind):
    names = {field.name for field in fields(find_model(kind).config_class)}
    series = {"vocabulary"} if "d_input" in names else set()
    options = {name: value for name, value in SIZES.items() if name in names - series}
    api = Api(models.build(kind, options=options).eval(), kind)
    reason = api.setup({})["model"]["reason"]
    assert (KINDS[kind] in reason) if KINDS[kind] else reason is None
    assert len(api.curves({"part": 0, "length": 9})["kernels"]) == 4
    if reason is None:
        name = api.open({})["stream"]
        answer = api.push({"stream": name, "samples": [[0.1, 0.2]] * 5, "every": 2})
        assert (answer["samples"], len(answer["outputs"]), len(answer["outputs"][0])) == (5, 3, 3)


def test_a_model_without_ssm_layers_is_refused():
    with pytest.raises(ValueError, match="module must have SSM layers"):
        Api(torch.nn.Linear(2, 2), "linear")


def test_generated_signals():
    sine = generated({"kind": "sine", "length": 9, "frequency": 0.125, "amplitude": 2.0, "offset": 1.0}, 2)
    np.testing.assert_allclose(sine[:, 1], 1 + 2 * np.sin(np.pi / 4 * np.arange(9)), atol=1e-12)
    assert generated({"kind": "step", "length": 10}, 1)[:, 0].tolist() == [0.0] * 8 + [1.0] * 2
    noise = generated({"kind": "noise", "length": 4000, "amplitude": 3.0}, 2)
    assert abs(noise.std() - 3) < 0.1
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.1
    chirp = generated({"kind": "chirp", "length": 1000, "frequency": 0.1}, 1)[:, 0]
    crossings = np.diff(np.sign(chirp[1:])) != 0
    assert crossings[:500].sum() * 3 == pytest.approx(crossings[500:].sum(), abs=3)  # the frequency grows with time


def test_files(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "MOST_VALUES", 50)
    with wave.open(str(tmp_path / "a.wav"), "wb") as writer:
        writer.setparams((1, 2, 8000, 0, "NONE", ""))
        writer.writeframes(np.array([0, -32768, 16384], "<i2").tobytes())
    content = (tmp_path / "a.wav").read_bytes()
    samples, rate = uploaded("audio/wav", content, 1)
    assert (samples[:, 0].tolist(), rate) == ([0.0, -1.0, 0.5], 8000)
    assert uploaded("text/csv", b"a,b\n1,2\n3,4\n", 2)[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    for kind, text, features, message in (
        ("audio/wav", content[:-1], 1, "the WAV file cannot be read"),
        ("audio/wav", content, 2, "must have 2 channels, as the model reads, got 1"),
        ("text/csv", b"1,2\n3\n", 2, "the CSV file, line 2: must have 2 fields, got 1"),
        ("text/csv", b"1\nx\n", 1, "line 2: must have numbers only, got 'x'"),
        ("text/csv", b"1\ninf\n", 1, "must have finite numbers"),
        ("text/csv", b"", 1, "must have at least one line"),
        ("text/csv", b"\xff\xfe1", 1, "must be UTF-8"),
        ("text/csv", b"1\n" * 51, 1, "must have at most 50 values, got 51"),
        ("text/csv", b"\n" * 101, 1, "must have at most 50 values, got about 101"),
    ):
        with pytest.raises(RefusedError, match=message):
            uploaded(kind, text, features)
