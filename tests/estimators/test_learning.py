"""Estimators learn what can be known, stop when they should, and keep what they learnt."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from statespan.estimators import LoadError, S4Classifier, S4Regressor, load
from statespan.estimators.network import Network, NetworkConfig, Stem
from tests.estimators.make import TINY, classifier, forecaster, regressor, waves

GOOD = {**TINY, "d_model": 16, "d_state": 8, "batch_size": 8, "learning_rate": 0.01}


def test_classes_are_learnt_and_hold_at_other_rates():
    X, y = waves(32, 80)
    names = np.array(["low", "high"])[y]
    new, wanted = waves(16, 80, seed=1)
    wanted = np.array(["low", "high"])[wanted]
    for stride in (1, 4):
        model = S4Classifier(**{**GOOD, "epochs": 8, "stride": stride}).fit(X, names)
        assert model.score(new, wanted) == 1.0
        assert model.score(new[:, ::2], wanted, dt_scale=2.0) == 1.0  # half the samples a second
        assert model.score(np.repeat(new, 2, 1), wanted, dt_scale=0.5) > 0.9
        assert model.score(new[:, ::2], wanted) < 1.0  # as if time ran twice as fast
    np.testing.assert_allclose(model.predict_proba(new).sum(1), 1.0)


def test_values_are_learnt():
    rng = np.random.default_rng(0)
    level = rng.normal(size=64)
    X = level[:, None] + 0.1 * rng.normal(size=(64, 20))
    model = S4Regressor(**{**GOOD, "epochs": 8}).fit(X[:48], 50 + 3 * level[:48])
    assert model.score(X[48:], 50 + 3 * level[48:]) > 0.9


def test_a_held_out_part_ends_training():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 10)), rng.integers(0, 2, 60)  # nothing to learn
    model = classifier(epochs=60, patience=2, validation_fraction=0.3, learning_rate=0.05, batch_size=8).fit(X, y)
    history = model.history_
    assert history.steps < 60 * (42 // 8)
    assert history.best == min(value for _, value in history.valid)
    assert history.best_step == next(step for step, value in history.valid if value == history.best)
    assert "18 held out for early stopping" in model.chosen_line_


def test_class_weights_move_the_answer():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 8)), np.repeat([0, 1], [45, 15])  # nothing to learn but how frequent a class is
    common = {"epochs": 10, "batch_size": 20, "learning_rate": 0.05}
    shares = [
        classifier(class_weight=w, **common).fit(X, y).predict_proba(X)[:, 1].mean()
        for w in (None, "balanced", {0: 0.01, 1: 1.0})
    ]
    assert shares[0] < 0.4 < shares[1] < 0.65 < 0.75 < shares[2]


def test_one_line_says_what_was_chosen(capsys):
    X, y = waves(6, 1000)
    model = S4Classifier(epochs=1, d_model=4, n_layers=1).fit(X[:, :, 0], y)
    said = capsys.readouterr().err
    assert model.chosen_line_ in said
    wanted = ("6 series of 1000 samples, 1 channel, 2 classes", "1 layers of 4 features", "4 samples a position", "cpu")
    for words in wanted:
        assert words in model.chosen_line_
    assert model.chosen_["stride"] == 4


def test_the_stem_is_a_convolution_with_impulse_responses():
    torch.manual_seed(0)
    stem = Stem(2, 3, stride=4).double()
    x = torch.randn(1, 10, 2, dtype=torch.float64)
    K = stem.ssm.structure().kernel(8).double()  # (2C, S, 8): real parts, then imaginary parts
    padded = torch.cat([torch.zeros(1, 4, 2), x, torch.zeros(1, 2, 2)], 1)
    windows = torch.stack([padded[:, 4 * w : 4 * w + 8].flip(1) for w in range(3)], 1)  # (1, 3, 8, C)
    real, imaginary = (torch.einsum("bwlc,csl->bws", windows, part) for part in K.chunk(2))
    energy = torch.log(real[..., 2:] ** 2 + imaginary[..., 2:] ** 2 + 1e-3) / 2
    real = real[..., :2]
    found = stem(x)[0]
    torch.testing.assert_close(found[..., :2], torch.nn.functional.gelu(real), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found[..., 2:], energy, atol=1e-6, rtol=1e-6)
    many, windows = stem(torch.cat([x, x]), lengths=torch.tensor([10, 5]))
    assert windows.tolist() == [3, 2]
    torch.testing.assert_close(many[1, :2], stem(x[:, :5])[0][0])


def test_the_stem_sees_the_same_windows_at_every_rate():
    torch.manual_seed(0)
    options = {"d_output": 2, "d_model": 8, "n_layers": 1, "d_state": 8, "layer": "s4d", "bidirectional": True}
    network = Network(NetworkConfig("classifier", 1, 8, 8, options)).eval()
    t = torch.linspace(0, 1, 4096, dtype=torch.float32)
    slow = torch.sin(2 * torch.pi * 3 * t)[None, :, None]
    with torch.no_grad():
        full = network(slow)
        for dt_scale in (2, 3, 4, 8, 16):
            assert (network(slow[:, ::dt_scale], dt_scale=float(dt_scale)) - full).abs().max() < 0.05 * full.abs().max()


PROGRAM = """
import sys, numpy as np, torch
torch.set_num_threads(1)
from statespan.estimators import load
X = np.load("X.npy")
np.savez("found.npz", **{name: np.asarray(getattr(load(name), name)(X)) for name in sys.argv[1:]})
"""


def test_saved_and_loaded_in_a_new_process_gives_the_same_bits(tmp_path):
    X, y = waves(12, 40)
    models = {"predict_proba": classifier(stride=4), "predict": regressor(), "predict_quantiles": forecaster()}
    for name, model in models.items():
        (model.fit(X) if name == "predict_quantiles" else model.fit(X, y)).save(tmp_path / name)
        assert {path.suffix for path in (tmp_path / name).iterdir()} == {".json", ".safetensors"}
        assert load(tmp_path / name).get_params() == model.get_params()
    np.save(tmp_path / "X.npy", X)
    subprocess.run([sys.executable, "-c", PROGRAM, *models], check=True, cwd=tmp_path)
    found = np.load(tmp_path / "found.npz")
    for name, model in models.items():
        assert np.array_equal(found[name], np.asarray(getattr(model, name)(X))), name


def test_a_damaged_or_foreign_folder_is_refused(tmp_path):
    X, y = waves(8, 10)
    classifier(class_weight={0: 1.0, 1: 2.0}).fit(X, y).save(tmp_path / "model")
    assert load(tmp_path / "model").class_weight == {0: 1.0, 1: 2.0}
    with pytest.raises(LoadError, match="holds S4Classifier, not S4Regressor"):
        S4Regressor.load(tmp_path / "model")
    with pytest.raises(LoadError, match="cannot be read"):
        load(tmp_path)
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace('"masked": false', '"masked": true'))
    with pytest.raises(LoadError, match="damaged"):
        load(tmp_path / "model")


def test_fitting_imports_no_lightning():
    """It takes seconds to import, and one process does without."""
    program = (
        "import sys, numpy as np; from statespan.estimators import S4Classifier;"
        "S4Classifier(d_model=4, n_layers=1, epochs=1, verbose=0).fit(np.eye(6), [0, 1] * 3);"
        "print({'lightning', 'rich'} & {m.partition('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
