"""Configs and the registry: what is refused, and what is built from what the data says."""

import json
from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import pytest
import torch

from statespan import models
from statespan.models.config import parse, ssm_options
from tests.models.make import ALL, SMALL

IMAGES = {"d_input": 1, "d_output": 10}
INFO = {"d_input": None, "vocabulary": None, "horizon": 0, "d_marks": 0}


@pytest.mark.parametrize("case", ALL)
def test_round_trip(case):
    name, options = ALL[case]
    config = models.build(name, None, {**SMALL, **options}).config
    again = parse(type(config), json.loads(json.dumps(config.to_dict())))
    assert again == config
    with pytest.raises(FrozenInstanceError):
        config.d_model = 3


def test_options_are_copied():
    ssm = {"n_ssm": 2}
    config = models.ClassifierConfig(**IMAGES, ssm=ssm)
    ssm["n_ssm"] = 3
    assert config.ssm == {"n_ssm": 2}


@pytest.mark.parametrize(
    ("task", "info", "name", "fields"),
    [
        ("classification", {"d_input": 3, "d_output": 10}, "classifier", {"d_input": 3, "d_output": 10}),
        ("regression", {"vocabulary": 9, "d_output": 1}, "regressor", {"vocabulary": 9, "d_output": 1}),
        ("retrieval", {"vocabulary": 98, "d_output": 2}, "retrieval", {"vocabulary": 98}),
        ("language", {"vocabulary": 50, "d_output": 50}, "language", {"vocabulary": 50}),
        ("density", {"vocabulary": 769, "d_output": 256}, "pixels", {"vocabulary": 769, "d_output": 256}),
        ("forecast", {"d_input": 2, "d_output": 1, "horizon": 24, "d_marks": 4}, "forecaster", {"horizon": 24}),
    ],
)
def test_what_the_data_says(task, info, name, fields):
    model = models.build(name, SimpleNamespace(task=task, length=100, **{**INFO, **info}), {**SMALL, "n_layers": 1})
    assert {key: getattr(model.config, key) for key in fields} == fields
    assert model.config.d_model == 6
    with pytest.raises(ValueError, match=f"model '{name}' is for .*, got data for sorting"):
        models.build(name, SimpleNamespace(task="sorting", **{**INFO, **info}), {})


def test_layer_options_reach_the_layer():
    ssm = {"init": "inv", "n_ssm": 3, "real_part": "relu", "train_B": False, "dt_min": 0.5, "dt_max": 0.5}
    model = models.build("classifier", None, {**IMAGES, **SMALL, "ssm": ssm, "mix": "linear", "dropout": 0.25})
    layer = model.backbone.blocks[0].layer
    assert layer.ssm.options.n_ssm == 3
    assert layer.ssm.real_part == "relu"
    assert "B" in dict(layer.ssm.named_buffers())
    assert layer.ssm.log_dt.exp().allclose(torch.tensor(0.5))
    assert layer.dropout.p == 0.25
    assert layer.mix.weight.shape == (6, 6)
    assert "softmax_length" in ssm_options("dss")
    assert "dt_min" in ssm_options("dss")
    assert "init_options" not in ssm_options("s4")


MISTAKES = {
    "misspelt": ("classifier", {**IMAGES, "n_layer": 4}, ValueError, "no 'n_layer'; did you mean n_layers"),
    "unknown": ("classifier", {**IMAGES, "zzz": 4}, ValueError, "no 'zzz' \\(allowed: sampling_rate, d_model, "),
    "misspelt in ssm": (
        "classifier",
        {**IMAGES, "ssm": {"n_ssms": 4}},
        ValueError,
        "ssm has no 'n_ssms'; did you mean",
    ),
    "width in ssm": ("classifier", {**IMAGES, "ssm": {"d_model": 4}}, ValueError, "ssm has no 'd_model'"),
    "not of this layer": ("classifier", {**IMAGES, "ssm": {"init_options": {}}}, ValueError, "no 'init_options'"),
    "number as key": ("classifier", {**IMAGES, 3: 4}, ValueError, "no 3"),
    "ssm is a list": ("classifier", {**IMAGES, "ssm": [1]}, TypeError, "ssm must be a mapping"),
    "value in ssm": ("classifier", {**IMAGES, "ssm": {"n_ssm": "2"}}, TypeError, "n_ssm must be an integer"),
    "layer": ("classifier", {**IMAGES, "layer": "os.system"}, ValueError, "layer must be one of"),
    "text for a number": ("classifier", {**IMAGES, "d_model": "64"}, TypeError, "d_model must be an integer"),
    "bool for a number": ("classifier", {**IMAGES, "n_layers": True}, TypeError, "n_layers must be an integer"),
    "number for a bool": ("classifier", {**IMAGES, "prenorm": 1}, TypeError, "prenorm must be True or False"),
    "dropout": ("classifier", {**IMAGES, "dropout": 1.0}, ValueError, "dropout must be a number >= 0 and < 1"),
    "pool": ("classifier", {**IMAGES, "pool": "max"}, ValueError, "pool must be one of"),
    "no output": ("classifier", {"d_input": 1}, ValueError, "options must have d_output"),
    "no input": ("classifier", {"d_output": 1}, ValueError, "one of d_input .samples. and vocabulary"),
    "two inputs": ("classifier", {**IMAGES, "vocabulary": 9}, ValueError, "one of d_input .samples. and vocabulary"),
    "causal by nature": ("language", {"vocabulary": 9, "bidirectional": True}, ValueError, "no 'bidirectional'"),
    "cutoffs": ("language", {"vocabulary": 9, "cutoffs": [20]}, ValueError, "cutoffs must increase and stay below"),
    "cutoffs text": ("language", {"vocabulary": 9, "cutoffs": "20"}, TypeError, "cutoffs must be a sequence"),
    "pools": ("pixels", {"vocabulary": 9, "d_output": 9, "pools": [4, 0]}, ValueError, "pools must be an integer >= 1"),
    "many pools": ("pixels", {"vocabulary": 9, "d_output": 9, "pools": [2] * 17}, ValueError, "pools must be at most"),
    "horizon": ("forecaster", {**IMAGES, "horizon": 0}, ValueError, "horizon must be an integer >= 1"),
    "options": ("classifier", 3, TypeError, "options must be a mapping"),
    "name": ("clasifier", {}, ValueError, "name must be one of .* did you mean classifier"),
    "no name": (None, {}, TypeError, "name must be one of"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake):
    name, options, error, words = MISTAKES[mistake]
    with pytest.raises(error, match=words):
        models.build(name, None, options)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_seen_without_data(mistake):
    name, options, error, words = MISTAKES[mistake]
    if mistake in ("no output", "no input"):  # the data says them
        models.check(name, options, values=True)
        return
    with pytest.raises(error, match=words):
        models.check(name, options, values=True)


@pytest.mark.parametrize("case", ALL)
def test_what_can_be_built_passes_without_data(case):
    name, options = ALL[case]
    models.check(name, {**SMALL, **options}, values=True)
    from_data = ("d_input", "vocabulary", "d_output", "horizon", "d_marks")
    models.check(name, {k: v for k, v in {**SMALL, **options}.items() if k not in from_data}, values=True)


def test_what_is_too_large_to_be_tried_passes():
    """Within a moment: whether it fits into memory is seen when it is trained."""
    models.check("classifier", {"d_model": 2**40}, values=True)
    models.check("classifier", {"d_state": 2**20}, values=True)


def test_data_and_options_that_disagree():
    info = SimpleNamespace(task="classification", **{**INFO, **IMAGES})
    with pytest.raises(ValueError, match="d_output must be that of the data, 10, got 11"):
        models.build("classifier", info, {"d_output": 11})
    with pytest.raises(ValueError, match="predicts the 9 tokens it reads, got data with d_output=10"):
        models.build("language", SimpleNamespace(task="language", vocabulary=9, d_output=10), {})
    with pytest.raises(TypeError, match="config must be a LanguageConfig, got ClassifierConfig"):
        models.LanguageModel(models.ClassifierConfig(**IMAGES))
