"""``statespan.load``: one function for published names and for folders of models, runs and estimators."""

import numpy as np
import pytest
import torch

import statespan
from statespan.estimators import S4Classifier
from statespan.models import LoadError
from statespan.models.find import UnknownModelError
from statespan.train import fit, read_recipe
from tests.cli.make import write_own
from tests.models.make import inputs, make


def test_the_folder_of_a_model(tmp_path):
    model = make("classifier", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    x, _ = inputs(model, 2, 20)
    loaded = statespan.load(str(tmp_path))
    assert not loaded.training
    assert torch.equal(loaded(x), model(x))


def test_the_folder_of_a_run_and_of_one_that_has_only_checkpoints(tmp_path):
    run = tmp_path / "run"
    fit(read_recipe(write_own(tmp_path)), run, progress=False)
    finished = statespan.load(run).state_dict()
    (run / "model").rename(tmp_path / "elsewhere")
    from_checkpoint = statespan.load(run, device="cpu").state_dict()
    assert finished.keys() == from_checkpoint.keys()
    assert all(torch.equal(value, from_checkpoint[name]) for name, value in finished.items())


def test_the_folder_of_an_estimator(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(12, 10)), np.arange(12) % 2
    fitted = S4Classifier(epochs=1, d_model=4, n_layers=1, verbose=0, device="cpu").fit(X, y)
    fitted.save(tmp_path)
    loaded = statespan.load(tmp_path, device="cpu")
    assert isinstance(loaded, S4Classifier)
    assert (loaded.predict_proba(X) == fitted.predict_proba(X)).all()


def test_mistakes(tmp_path):
    with pytest.raises(TypeError, match="name must be the name of a model or a folder, got int 3"):
        statespan.load(3)
    with pytest.raises(UnknownModelError, match="must be a folder with a model or a run"):
        statespan.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match="must have the keys"):
        statespan.load(tmp_path)
