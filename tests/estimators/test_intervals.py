"""Intervals cover what they promise at each step, and sample paths have the errors of whole windows."""

import numpy as np
import pytest

from statespan.estimators import S4Forecaster
from statespan.estimators.forecasting.backtest import ALL_LEVELS, LEVELS, scores_of
from statespan.estimators.forecasting.intervals import Errors
from tests.estimators.make import forecaster


def autoregressive(rows, seed, share=0.9):
    noise = np.random.default_rng(seed).normal(size=rows)
    values = np.zeros(rows)
    for row in range(1, rows):
        values[row] = share * values[row - 1] + noise[row]
    return values


def test_both_intervals_cover_at_every_step():
    model = forecaster(20, context=24, batch_size=32, steps=20).fit(autoregressive(6000, 0))
    new = autoregressive(12000, 1)
    starts = range(0, 11900, 20)
    bands = model.predict_quantiles([new[start : start + 24] for start in starts], quantiles=(0.025, 0.1, 0.9, 0.975))
    bands = np.stack(bands)[:, :, 0]
    truth = np.stack([new[start + 24 : start + 44] for start in starts])
    for first, last, wanted in ((1, 2, 0.8), (0, 3, 0.95)):
        inside = (truth >= bands[..., first]) & (truth <= bands[..., last])
        tenths = inside.reshape(len(truth), 10, 2).mean((0, 2))
        np.testing.assert_allclose(tenths, wanted, atol=0.045)  # three standard errors of 600 windows
    width = bands[..., 2] - bands[..., 1]
    wanted = 2 * 1.2816 * np.sqrt(np.cumsum(0.81 ** np.arange(20)))  # of an AR(1) whose share is known
    assert (width.mean(0) > 0.95 * wanted).all()
    assert (width.mean(0) < 1.35 * wanted).all()  # the share must be found, and windows have intervals of their own


def test_errors_follow_the_scale_of_a_window():
    rng = np.random.default_rng(0)
    scale = np.exp(rng.normal(size=(1000, 1, 1)))
    error = scale * rng.normal(size=(1000, 4, 1))
    found = Errors.of(error, {"volatility": scale, "deviation": rng.random((1000, 1, 1))})
    assert (found.kind, found.power) == ("volatility", 1.0)
    assert Errors.of(rng.normal(size=(1000, 4, 1)), {"volatility": scale}).kind == "none"
    width = np.diff(found.quantiles((0.1, 0.9)), axis=0)[0, :, 0] * found.scale(np.array([[[2.0]]]))[0, 0, 0]
    assert width == pytest.approx(np.full(4, 2 * 1.2816 * 2.0), rel=0.15)
    more = found.after(np.full((10, 4, 1), 5.0), np.full((10, 1, 1), 1.0))
    assert len(more.values) == 1000
    assert (more.values[:-10] == found.values[10:]).all()
    assert more.values[-1] == pytest.approx(5.0 / found.scale(np.ones(1))[0])


def test_few_windows_share_the_errors_of_their_columns():
    values = np.random.default_rng(0).normal(size=(30, 3, 2)).astype(np.float32)
    levels = Errors("none", 1.0, np.zeros(2), values).quantiles((0.5,))
    assert levels.shape == (1, 3, 1)
    together = values.transpose(0, 2, 1).reshape(60, 3)
    assert levels[0, :, 0] == pytest.approx(np.quantile(together, 0.5, axis=0, method="weibull"))
    values[:, 1] = np.nan
    assert Errors("none", 1.0, np.zeros(2), values).quantiles((0.1, 0.9))[:, 1].tolist() == [[0.0], [0.0]]


def test_paths_have_the_quantiles_of_the_intervals(tmp_path):
    model = forecaster(10, context=24).fit(autoregressive(3000, 0))
    paths = model.sample_paths(count=4000)
    assert paths.shape == (4000, 10)
    bands = model.predict_quantiles(quantiles=(0.1, 0.9))
    np.testing.assert_allclose(np.quantile(paths, (0.1, 0.9), axis=0).T, bands, atol=0.25)
    steps = np.corrcoef(paths.T)
    assert steps[8, 9] > 0.6  # neighbours stay together
    model.save(tmp_path)
    assert np.array_equal(S4Forecaster.load(tmp_path).sample_paths(count=4000), paths)
    assert not np.array_equal(model.sample_paths(count=5, random_state=1), paths[:5])
    two = forecaster(4).fit(np.stack([autoregressive(200, 0), autoregressive(200, 1)], 1))
    assert two.sample_paths(count=3, horizon=9).shape == (3, 9, 2)
    with pytest.raises(ValueError, match="count must be an integer >= 1, got 0"):
        model.sample_paths(count=0)


def test_beyond_the_trained_horizon_a_walk_goes_on_and_widens():
    walk = np.random.default_rng(0).normal(size=3000).cumsum()
    model = forecaster(8, context=24).fit(walk)
    assert model.predict(horizon=40) == pytest.approx(np.full(40, walk[-1]), abs=1e-3)
    width = np.diff(model.predict_quantiles(horizon=40, quantiles=(0.1, 0.9)), axis=1)[:, 0]
    np.testing.assert_allclose(width[[7, 23, 39]] / width[7], np.sqrt([1, 3, 5]), rtol=0.25)
    t = np.arange(400)
    wave = forecaster(12, context=36).fit(np.sin(2 * np.pi * t / 12))
    np.testing.assert_allclose(wave.predict(horizon=50), np.sin(2 * np.pi * np.arange(400, 450) / 12), atol=0.02)


def test_a_backtest_has_the_scores_of_a_loop():
    pd = pytest.importorskip("pandas")
    values = np.stack([autoregressive(400, 0), 50 + 10 * autoregressive(400, 1)], 1)
    frame = pd.DataFrame(values, columns=["a", "b"], index=pd.date_range("2020", periods=400, freq="D"))
    model = forecaster(6, context=16).fit(frame[:300])
    found = model.backtest(frame, windows=5, step=10)
    assert found.origins == [[354, 364, 374, 384, 394]]
    error = np.stack([values[origin : origin + 6] for origin in found.origins[0]]) - found.forecast[0]
    assert found.scores["mae"] == pytest.approx(np.abs(error).mean())
    assert found.scores["rmse"] == pytest.approx(np.sqrt((error**2).mean()))
    season = model.chosen_["season"]
    unit = np.abs(values[season:354] - values[: 354 - season]).mean(0)
    assert found.scores["mase"] == pytest.approx((np.abs(error) / unit).mean())
    np.testing.assert_allclose(found.forecast[0][0], model.predict(frame[:354]).to_numpy())
    low, high = (found.quantiles[0][..., ALL_LEVELS.index(level)] for level in (0.1, 0.9))
    actual = found.actual[0]
    assert found.scores["coverage_80"] == pytest.approx(((actual >= low) & (actual <= high)).mean())
    assert found.by_step["mae"] == pytest.approx(np.abs(error).mean((0, 2)))
    table = found.frame()
    assert len(table) == 5 * 6 * 2
    assert table.loc[0, "cutoff"] == frame.index[353]
    assert table.loc[0, "ds"] == frame.index[354]
    again = model.cross_validation(frame[["a", "b"]], windows=2)
    fresh = forecaster(6, context=16).fit(frame[:388])
    np.testing.assert_allclose(again.forecast[0][0], fresh.predict().to_numpy()[:6])
    with pytest.raises(ValueError, match="at least 472 rows for 46 windows with step 10, got 400"):
        model.backtest(frame, windows=46, step=10)


def test_crps_is_that_of_the_quantiles():
    truth, mean = np.array([[[1.0]]]), np.array([[[0.0]]])
    bands = np.linspace(-2, 2, len(ALL_LEVELS)).reshape(1, 1, 1, -1)
    scores, _ = scores_of([truth], [mean], [bands], np.ones(1))
    wanted = 0.0
    for level in LEVELS:
        over = 1.0 - bands[0, 0, 0, ALL_LEVELS.index(level)]
        wanted += 2 * max(level * over, (level - 1) * over) / len(LEVELS)
    assert scores["crps"] == pytest.approx(wanted)


def test_new_rows_move_the_start_and_the_errors():
    pd = pytest.importorskip("pandas")
    values = autoregressive(500, 0)
    frame = pd.Series(values, index=pd.date_range("2020", periods=500, freq="h"), name="v")
    model, fresh = forecaster(5).fit(frame[:400]), forecaster(5).fit(frame[:400])
    model.update(frame[400:440]).update(frame[440:441])
    pd.testing.assert_series_equal(model.predict(), fresh.predict(frame[:441]))
    before, after = fresh.errors_.values, model.errors_.values
    assert len(after) == len(before)
    assert np.array_equal(after[: len(before) - 41], before[41:])
    part = fresh.predict(frame[:436]).to_numpy()  # the last forecast that has come true
    error = (values[436:441] - part) / fresh.std_[0]
    np.testing.assert_allclose(np.sign(after[-1, :, 0]), np.sign(error))
    with pytest.raises(ValueError, match="go on where X ended: row 0 must be 2020-01-19T09:00:00, got 2020-01-20"):
        model.update(frame[470:480])
    arrays = forecaster(5).fit(values[:400]).update(values[400:450])
    np.testing.assert_allclose(arrays.predict(), forecaster(5).fit(values[:400]).predict(values[:450]))


def test_a_picture_has_both_intervals():
    pytest.importorskip("matplotlib")
    figure = forecaster(5).fit(np.stack([autoregressive(200, 0), autoregressive(200, 1)], 1)).plot(horizon=12)
    assert len(figure.axes) == 2
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert texts == ["past", "95 % interval", "80 % interval", "forecast"]
