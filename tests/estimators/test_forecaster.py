"""Forecasts: right numbers, right times, intervals that hold what they promise."""

import numpy as np
import pytest
import torch

from statespan.estimators import S4Forecaster
from statespan.estimators.horizon import Horizon, HorizonConfig
from statespan.estimators.inputs.timeline import Form, TimeSeries, future_times
from statespan.estimators.inputs.windows import make_windows, prepare
from statespan.estimators.tasks import forecasts
from tests.estimators.make import forecaster


def test_a_wave_goes_on_also_in_rows_that_come_half_as_often():
    t = np.arange(300)
    y = np.stack([10 + np.sin(2 * np.pi * t / 24), -5 + 2 * np.cos(2 * np.pi * t / 24)], 1)
    past, future = y[:260], y[260:272]
    model = S4Forecaster(12, context=36, d_model=12, d_state=16, n_layers=1, steps=80, season=1, verbose=0)
    found = model.fit(past).predict()
    naive = np.abs(future - past[-1]).mean()
    assert np.abs(found - future).mean() < 0.25 * naive
    scores = model.evaluate(y[200:])
    assert scores["r2"] > 0.9
    assert scores["windows"] == 100 - 48 + 1
    np.testing.assert_allclose(model.predict(past), found)
    np.testing.assert_allclose(model.predict(horizon=5), found[:5], atol=1e-4)
    half = model.predict(past[::2], dt_scale=2.0)
    assert half.shape == (6, 2)
    assert np.abs(half - y[260:272:2]).mean() < 0.5 * naive
    assert np.abs(model.predict(past[:-6:2])[:6] - y[254:266:2]).mean() > 0.5 * naive


def test_quantiles_hold_as_many_as_they_say():
    rng = np.random.default_rng(0)
    noise, new = rng.normal(size=3000), rng.normal(size=(100, 12))
    model = forecaster(4, context=8, steps=100, batch_size=64, learning_rate=0.05, centre="none").fit(noise)
    bands = np.stack(model.predict_quantiles(list(new[:, :8])))[:, :, 0]  # (100, 4, 3)
    assert (np.diff(bands, axis=-1) >= 0).all()
    below = (new[:, 8:, None] < bands).mean((0, 1))
    np.testing.assert_allclose(below, [0.1, 0.5, 0.9], atol=0.08)


def test_pinball_loss_and_missing_answers():
    found = torch.tensor([[[[1.0, 0.0, 3.0]], [[2.0, 2.0, 2.0]]]])  # (1, 2, 1, mean and two quantiles)
    y = torch.tensor([[[2.0], [float("nan")]]])

    class Fixed(torch.nn.Module):
        def forward(self, x):
            return found

    from statespan.data.base import Batch

    loss, square, absolute, count = forecasts((0.1, 0.9)).add(Fixed(), Batch(y, y), 1.0).tolist()
    assert (square, absolute, count) == (1.0, 1.0, 1.0)
    assert loss == pytest.approx(1.0 + (0.1 * 2 + 0.1 * 1) / 2)  # below by 2 at 0.1, above by 1 at 0.9


def test_windows_of_several_series_never_cross_a_border():
    rows = [np.arange(10.0)[:, None], 100 + np.arange(8.0)[:, None]]
    parts = [prepare(TimeSeries(r), Form("list"), np.zeros(1), np.ones(1), masked=False) for r in rows]
    windows = make_windows(parts, [(0, 10), (0, 8)], 3, 2)
    starts = [windows.batch([i]).x[0, 0, 0].item() for i in range(len(windows))]
    assert starts == [0, 1, 2, 3, 4, 5, 100, 101, 102, 103]
    held = make_windows(parts, [(8, 10), (7, 8)], 3, 2)
    assert [held.batch([i]).y[0, :, 0].tolist() for i in range(len(held))] == [[8.0, 9.0]]


def test_missing_rows_repeat_the_last_known_and_are_no_answers():
    values = np.array([[np.nan], [1.0], [np.nan], [3.0], [np.nan]])
    part = prepare(TimeSeries(values), Form("array"), np.zeros(1), np.ones(1), masked=True)
    assert part.values[:, 0].tolist() == [1, 1, 1, 3, 3]
    batch = make_windows([part], [(0, 5)], 3, 2).batch([0])
    assert batch.x[0, :3].tolist() == [[1, 0], [1, 1], [1, 0]]
    assert batch.y[0, 0, 0] == 3
    assert torch.isnan(batch.y[0, 1, 0])
    y = np.sin(np.arange(80) / 3)
    y[10:14] = np.nan
    assert np.isfinite(forecaster(missing="mask").fit(y).predict()).all()


@pytest.mark.parametrize("joint", [False, True])
def test_forecasts_move_with_the_level_and_never_look_ahead(joint):
    torch.manual_seed(0)
    options = {"d_model": 8, "n_layers": 2, "d_state": 8, "layer": "s4d"}
    network = Horizon(HorizonConfig(2, 20, 6, 0, 1, "last", joint, False, options)).eval()
    x = torch.randn(3, 26, 2)
    with torch.no_grad():
        y = network(x)
        assert y.shape == (3, 6, 2, 2)
        torch.testing.assert_close(network(x + 100.0), y + 100.0, atol=1e-4, rtol=1e-5)
        future = x.clone()
        future[:, 20:] = 9.0
        assert torch.equal(network(future), y)
        torch.testing.assert_close(network.after(x[:, :20], 4, None), y[:, :4], atol=1e-5, rtol=1e-5)
        swapped = network(x.flip(-1)).flip(2)
    assert torch.allclose(swapped, y, atol=1e-5) != joint  # columns one by one know nothing of each other


@pytest.mark.parametrize(
    ("last", "step", "unit", "wanted"),
    [
        ("2020-02-28T23:00", 3600, "s", ["2020-02-29T00:00:00", "2020-02-29T01:00:00"]),
        ("2020-12-15", 1, "M", ["2021-01-15T00:00:00", "2021-02-15T00:00:00"]),
        ("2020-01-31", 1, "M", ["2020-02-29T00:00:00", "2020-03-31T00:00:00"]),
        ("2020-10-31", 3, "M", ["2021-01-31T00:00:00", "2021-04-30T00:00:00"]),
    ],
)
def test_times_to_come(last, step, unit, wanted):
    times = future_times(np.datetime64(last, "s"), Form("frame", step=step, unit=unit), 2)
    assert times.astype(str).tolist() == wanted


def test_frames_in_frames_out(tmp_path):
    pd = pytest.importorskip("pandas")
    index = pd.date_range("2020-01-01", periods=60, freq="D", name="day")
    frame = pd.DataFrame({"a": np.sin(np.arange(60)), "b": np.arange(60.0)}, index=index)
    model = forecaster(quantiles=(0.9, 0.1)).fit(frame)
    found = model.predict()
    assert list(found.columns) == ["a", "b"]
    assert found.index.equals(pd.date_range("2020-03-01", periods=4, freq="D", name="day"))
    assert model.calendar_ == ("weekday", "day")  # 60 days are no two years
    bands = model.predict_quantiles()
    assert bands.columns.tolist() == [("a", 0.1), ("a", 0.9), ("b", 0.1), ("b", 0.9)]
    one = forecaster().fit(frame["a"]).predict()
    assert one.name == "a"
    long = pd.concat({"x": frame[:40], "y": frame[5:]}, names=["who"])
    many = forecaster().fit(long)
    found = many.predict()
    assert found.index.names == ["who", "day"]
    assert found.loc["x"].index[0] == index[40]
    many.save(tmp_path)
    pd.testing.assert_frame_equal(S4Forecaster.load(tmp_path).predict(), found)
    np.testing.assert_allclose(many.predict(frame[5:]).to_numpy(), found.loc["y"].to_numpy())


@pytest.mark.parametrize("centre", ["last", "mean", "none"])
@pytest.mark.parametrize("joint", [False, True])
def test_a_context_without_values_is_forecast_from_the_last_known_one(centre, joint, tmp_path):
    y = np.stack([10 + np.sin(np.arange(120) / 3), 100 + np.cos(np.arange(120) / 3)], 1)
    model = forecaster(missing="mask", centre=centre, joint=joint).fit(y)
    gone = y.copy()
    gone[90:, 0] = np.nan  # longer than the context of 16
    found = model.predict(gone)
    assert np.isfinite(found).all()
    assert np.isfinite(model.predict_quantiles(gone)).all()
    if centre != "none":
        higher = gone + np.array([5.0, 0.0])  # a level that was last known is where the forecast starts
        np.testing.assert_allclose(model.predict(higher)[:, 0], found[:, 0] + 5.0, atol=1e-4)
    learnt = forecaster(missing="mask", centre=centre, joint=joint).fit(gone)
    np.testing.assert_allclose(learnt.predict(gone), learnt.predict())
    assert np.isfinite(learnt.predict()).all()
    learnt.save(tmp_path)
    assert np.array_equal(S4Forecaster.load(tmp_path).predict(), learnt.predict())


def test_windows_without_an_answer_are_no_success():
    """Nothing that is held out is known: training goes on to its end, and no weights are best of all for it."""
    y = np.sin(np.arange(120) / 3)
    y[95:] = np.nan
    model = forecaster(missing="mask", steps=60, patience=1).fit(y)
    assert model.history_.steps == 60
    assert model.history_.valid == []
    assert "none held out" in model.chosen_line_
    with pytest.raises(ValueError, match="20 rows, with a known value to forecast, got 36"):
        model.evaluate(np.where(np.arange(36) < 14, y[:36], np.nan))


def test_what_was_never_known_is_no_answer():
    """Missing values repeat the first known one where none was before: that must not be there to be read off."""
    y = np.stack([np.arange(60.0), np.arange(60.0)], 1)
    y[:20, 0], y[:30, 1] = np.nan, np.nan
    part = prepare(TimeSeries(y), Form("array"), np.zeros(2), np.ones(2), masked=True)
    windows = make_windows([part], [(0, 60)], 16, 4)
    assert len(windows) == 41 - 5  # windows from row 5 on have read row 20
    first = windows.batch([0])
    assert first.y[0, :, 0].tolist() == [21, 22, 23, 24]
    assert torch.isnan(first.y[0, :, 1]).all()
    assert windows.batch([9]).y[0, :, 1].isnan().all()  # rows 30 … 33, of which none was read
    assert windows.batch([10]).y[0, :, 1].tolist() == [31, 32, 33, 34]


def test_what_is_done_to_the_data_after_fit_changes_no_forecast():
    y = np.sin(np.arange(120) / 3)[:, None]
    model = forecaster().fit(y)
    before = model.predict()
    y[:] = 7.0
    assert np.array_equal(model.predict(), before)
