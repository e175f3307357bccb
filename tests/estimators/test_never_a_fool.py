"""With nothing to learn a forecast is the best simple one; with something, it is better; the line says which."""

import numpy as np
import pytest
import torch

from statespan.estimators import S4Forecaster
from statespan.estimators.forecasting import training
from statespan.estimators.forecasting.blend import NAIVES, Blend, choose_naive, confidence, gain_weights, smooth
from statespan.estimators.forecasting.grid import from_grid, to_grid
from statespan.estimators.forecasting.linear import ridge
from statespan.estimators.forecasting.naive import find_season, naive_forecasts
from statespan.estimators.horizon import Horizon, HorizonConfig
from statespan.estimators.inputs.windows import make_windows
from tests.estimators.make import forecaster

OPTIONS = {"d_model": 8, "n_layers": 1, "d_state": 8, "layer": "s4d"}


def errors(model, series):
    """Squared errors of the forecast and of the simple ones over all windows, by step (H,)."""
    parts = [model._prepare(part) for part in model._read(series)[0]]
    windows = make_windows(parts, [(0, len(series))], model.chosen_["context"], model.horizon)
    found = training.answers(model.network_, windows, model.chosen_["season"])
    simple = {name: ((found.truth - values) ** 2).mean((0, 2)) for name, values in found.naive.items()}
    return ((found.truth - found.of(model.blend_)) ** 2).mean((0, 2)), simple


@pytest.mark.parametrize("seed", range(5))
def test_a_random_walk_is_forecast_by_its_last_value(seed):
    walk = 1 + 0.01 * np.random.default_rng(seed).normal(size=2600).cumsum()
    model = forecaster(24, context=48).fit(walk[:1600])
    mine, simple = errors(model, walk[1552:])
    assert (mine / simple["last value"]).max() < 1.02
    assert model.blend_.choice == (0,) * 24
    assert "weight of the model 0.00" in model.report_
    bands = model.predict_quantiles([walk[start : start + 48] for start in range(1600, 2550, 50)], quantiles=(0.1, 0.9))
    width = np.mean([high - low for low, high in (np.array(band)[:, 0].T for band in bands)], 0)
    assert 0.8 < width[0] / (2 * 1.2816 * 0.01) < 1.2  # of one step
    assert 3.0 < width[-1] / width[0] < 7.0  # √24 is 4.9


@pytest.mark.parametrize(
    ("name", "trend", "wave"), [("trend", 0.05, 0.0), ("season", 0.0, 3.0), ("trend and season", 0.02, 3.0)]
)
def test_what_can_be_learnt_is(name, trend, wave):
    t = np.arange(1500)
    series = trend * t + wave * np.sin(2 * np.pi * t / 12) + 0.3 * np.random.default_rng(0).normal(size=1500)
    model = forecaster(12, context=36).fit(series[:1000])
    mine, simple = errors(model, series[964:])
    best = min(values.mean() for values in simple.values())
    assert mine.mean() < 0.8 * best
    assert (mine / np.min(list(simple.values()), 0)).max() < 1.05
    assert model.held_out_["forecast"] < 0.9 * min(model.held_out_[name] for name in simple)
    assert model.chosen_["season"] == (12 if wave else 1)


def test_the_line_has_the_errors_in_the_units_of_the_data(capsys):
    t = np.arange(600)
    series = 1000 * np.sin(2 * np.pi * t / 12)
    model = forecaster(12, context=36, verbose=1).fit(series)
    said = capsys.readouterr().err
    assert "; takes at most about a second\n" in said
    assert model.report_ in said
    starts = np.arange(540, 589)  # of windows in the last tenth
    naive = np.mean([np.abs(series[start : start + 12] - series[start - 1]).mean() for start in starts])
    assert model.held_out_["last value"] == pytest.approx(naive, rel=1e-4)
    assert model.held_out_["seasonal naive"] == pytest.approx(0, abs=1e-2)
    assert "on 49 held-back windows" in said
    assert f"last value {naive:.4g}" in said
    assert "seasonal naive (12 rows)" in said


def test_simple_forecasts_are_those_of_a_loop():
    rows = torch.randn(3, 20, 2, dtype=torch.float64)
    found = naive_forecasts(rows, 9, 4)
    for step in range(9):
        torch.testing.assert_close(found["last value"][:, step], rows[:, -1])
        torch.testing.assert_close(found["seasonal naive"][:, step], rows[:, 16 + step % 4])
        drift = rows[:, -1] + (step + 1) * (rows[:, -1] - rows[:, 0]) / 19
        torch.testing.assert_close(found["drift"][:, step], drift)
    assert "seasonal naive" not in naive_forecasts(rows, 9, 21)
    assert set(naive_forecasts(rows[:, :1], 9, 1)) == {"last value"}
    assert find_season(np.zeros((5, 1)), 3) == 1
    assert find_season(np.random.default_rng(0).normal(size=(500, 1)), 200, 3600) == 24  # an hour's usual season
    assert find_season(np.random.default_rng(0).normal(size=(500, 1)), 200, 1, "M") == 12
    assert find_season(np.random.default_rng(0).normal(size=(500, 1)), 20, 3600) == 1  # too long for the context


def test_the_linear_path_is_least_squares():
    rng = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(300, 7, generator=rng, dtype=torch.float64) for _ in range(2))
    y = x @ torch.randn(7, 5, generator=rng, dtype=torch.float64) + 0.01 * noise[:, :5]
    wanted = torch.linalg.lstsq(x, y).solution
    torch.testing.assert_close(ridge(x, y, x, y), wanted, atol=1e-4, rtol=1e-4)
    assert (ridge(x, noise[:, :5], x, -noise[:, :5]) == 0).all()  # nothing to learn: no weights at all
    assert (ridge(0 * x, y, x, y) == 0).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_network_starts_as_its_linear_path(joint, masked, scaled):
    torch.manual_seed(0)
    config = HorizonConfig(2, 10, 4, 3, 1, "last", joint, masked, OPTIONS, linear=True, scaled=scaled, past=1, static=1)
    network = Horizon(config).eval().double()
    network.straight.copy_(torch.randn(config.features, 4))
    x, marks = torch.randn(3, 14, 4 if masked else 2).double(), torch.randn(3, 14, 3).double()
    with torch.no_grad():
        found = network(x, marks=marks)
    for batch in range(3):
        for column in range(2):
            window = x[batch, :10, column] - x[batch, 9, column]
            scale = window.square().mean().sqrt() + 1e-6 if scaled else 1.0
            features = torch.cat([window / scale, marks[batch, :10, 0], marks[batch, 0, 1:2], torch.ones(1)])
            wanted = features @ network.straight.double() * scale + x[batch, 9, column]
            torch.testing.assert_close(found[batch, :, column, 0], wanted, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(found[batch, :, column, 1], wanted, atol=1e-5, rtol=1e-5)


def test_a_blend_is_that_of_its_parts():
    """The forecast of a window is the same one by one and in a table of answers."""
    t = np.arange(400)
    model = forecaster(8, context=24, quantiles=()).fit(np.sin(t / 5) + 0.1 * np.random.default_rng(0).normal(size=400))
    blend = Blend(6, (0, 1, 2, 0, 1, 2, 0, 1), tuple(np.linspace(0, 1, 8)), tuple(np.linspace(1, 0.2, 8)))
    part = model._prepare(model.series_[0])
    windows = make_windows([part], [(0, len(part.values))], 24, 8)
    batch = windows.batch(list(range(len(windows))))
    table = training.answers(model.network_, windows, 6).of(blend)
    with torch.no_grad():
        found, _ = blend.mean(model.network_, batch.x[:, :24], 8, None)
        few, _ = blend.mean(model.network_, batch.x[:, :24], 3, None)
    np.testing.assert_allclose(found.numpy(), table, atol=1e-5)
    np.testing.assert_allclose(few.numpy(), table[:, :3], atol=1e-4)


def test_weights_need_a_clear_gain():
    rng = np.random.default_rng(0)
    error = rng.normal(size=(400, 20, 1))
    assert gain_weights(error, error, 20, 200) == pytest.approx(np.ones(20))
    assert gain_weights(error, 2 * error, 20, 200) == pytest.approx(np.full(20, 0.5))
    assert (gain_weights(error, -error, 20, 200) == 0).all()
    late = error.copy()
    late[200:] = rng.normal(size=(200, 20, 1))  # a gain that the last windows do not have
    assert (gain_weights(error, late, 20, 200) < 0.1).all()
    missing = np.where(rng.random(error.shape) < 0.2, np.nan, error)
    assert gain_weights(missing, error, 20, 200) == pytest.approx(np.ones(20))
    assert confidence(np.ones((1, 3)), 4).tolist() == [0, 0, 0]
    truth = rng.normal(size=(100, 6, 1))
    found = {"last value": truth + 1, "drift": truth + np.r_[2, 2, 2, 0, 0, 0][:, None]}
    assert [NAIVES[number] for number in choose_naive(truth, found, 10)] == ["last value"] * 3 + ["drift"] * 3
    line = np.arange(40.0)
    wanted = [line[i - min(2, i // 4) : i + min(2, i // 4) + 1].mean() for i in range(40)]
    assert smooth(line[None])[0] == pytest.approx(wanted)


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 1.7])
def test_another_grid(scale):
    line = (3.0 * torch.arange(40.0, dtype=torch.float64)).view(1, 40, 1)
    assert to_grid(line, 12, scale)[0, :, 0].numpy() == pytest.approx(117 - 3 * np.arange(11, -1, -1) / scale)
    ahead = 117 + 3.0 * torch.arange(1, 13, dtype=torch.float64).view(1, 12, 1)
    count = int(12 / scale)
    found = from_grid(ahead, line[:, -1:], count, scale)[0, :, 0].numpy()
    assert found == pytest.approx(117 + 3 * scale * np.arange(1, count + 1))


def test_rows_are_divided_in_time():
    assert training.divide([1000], 0.1, 0.1, context=100, horizon=10) == ([800], [900])
    assert training.divide([1000], 0.1, 0.1, context=100, horizon=96) == ([708], [808])  # twice the horizon is held
    assert training.divide([60], 0.0, 0.0, context=10, horizon=5) == ([60], [60])
    assert training.divide([60], 0.1, 0.1, context=40, horizon=8) == ([48], [54])


def test_s4_learns_too(tmp_path):
    y = np.sin(np.arange(200) / 4)
    model = forecaster(layer="s4").fit(y)
    assert type(model.network_.body.backbone.blocks[0].layer).__name__ == "S4"
    model.save(tmp_path)
    assert np.array_equal(S4Forecaster.load(tmp_path).predict(), model.predict())


def test_a_forecaster_saved_before_still_forecasts(tmp_path):
    """Without a linear path, a blend and errors: the network is all there is, and its quantiles are the intervals."""
    from dataclasses import replace

    from statespan.estimators import store

    y = np.sin(np.arange(120) / 3)
    model = forecaster().fit(y)
    torch.manual_seed(0)
    model.network_ = Horizon(replace(model.network_.config, linear=False)).eval()
    config, arrays = model._state()
    new = ("blend", "roles", "held_out", "report", "errors")
    old = {key: value for key, value in config.items() if key not in new}
    for key in ("linear", "scaled", "past", "static"):
        del old["network"][key]
    for key in ("zone", "flat"):
        del old["form"][key]
    names = ("layer", "season", "freq", "holdback_fraction")
    parameters = {key: value for key, value in model.get_params().items() if key not in names}
    chosen = {key: value for key, value in model.chosen_.items() if key != "season"}
    old |= {"parameters": parameters, "sampling_rate": None, "chosen": chosen, "line": ""}
    arrays.pop("errors")
    store.save(tmp_path, "S4Forecaster", old, network=model.network_, arrays=arrays)
    loaded = S4Forecaster.load(tmp_path)
    part = model._prepare(model.series_[0])
    with torch.no_grad():
        wanted = model.network_.after(torch.from_numpy(part.values[-16:])[None], 4, None)[0, :, 0].double().numpy()
    wanted = wanted * model.std_ + model.mean_
    np.testing.assert_allclose(loaded.predict(), wanted[:, 0], rtol=1e-5)
    np.testing.assert_allclose(loaded.predict_quantiles(), np.sort(wanted[:, 1:]), rtol=1e-5)
    assert loaded.predict(horizon=10).shape == (10,)
    with pytest.raises(ValueError, match="those of fit in a forecaster of an older version"):
        loaded.predict_quantiles(quantiles=(0.025,))
    with pytest.raises(ValueError, match="fit again"):
        loaded.sample_paths()
