"""Columns that help: known ahead, known for the past, and the same in all rows of a series."""

import numpy as np
import pytest

from statespan.estimators import S4Forecaster
from statespan.estimators.forecasting.covariates import fit_effect
from tests.estimators.make import forecaster

pd = pytest.importorskip("pandas")
ROWS = 600


def sales(seed=0):
    rng = np.random.default_rng(seed)
    price = rng.normal(size=ROWS + 12)
    y = 20 - 3 * price + 2 * np.r_[0, price[:-1]] + 0.1 * rng.normal(size=ROWS + 12).cumsum()
    index = pd.date_range("2020", periods=ROWS + 12, freq="h", name="when")
    return pd.DataFrame({"price": price, "sold": y}, index=index)


def test_a_known_future_input_helps_at_least_fivefold(tmp_path):
    frame = sales()
    past, future = frame[:ROWS], frame[ROWS:]
    without = forecaster(12, context=48).fit(past[["sold"]])
    model = forecaster(12, context=48).fit(past, future=["price"])
    found = model.predict(future=future[["price"]])
    assert list(found.columns) == ["sold"]
    assert found.index.equals(future.index)
    ratio = (without.predict()["sold"] - future["sold"]).abs().mean() / (found["sold"] - future["sold"]).abs().mean()
    assert ratio > 5
    assert without.held_out_["forecast"] > 5 * model.held_out_["forecast"]
    assert "1 covariates" in model.chosen_line_
    assert model.evaluate(frame)["r2"] > 0.9
    table = model.backtest(frame, windows=4)
    assert table.scores["mae"] < 0.2 * without.backtest(frame[["sold"]], windows=4).scores["mae"]
    model.save(tmp_path)
    loaded = S4Forecaster.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.predict(future=future), found)  # further columns do not matter
    pd.testing.assert_frame_equal(loaded.predict(past, future=future[["price"]]), found)
    array = forecaster(12, context=48, calendar=False).fit(past.to_numpy(), future=[0])
    assert np.abs(array.predict(future=future[["price"]].to_numpy()) - found.to_numpy()).mean() < 0.1
    longer = model.predict(future=future[["price"]], horizon=7)
    np.testing.assert_allclose(longer.to_numpy(), found.to_numpy()[:7], atol=1e-5)


def test_a_past_input_that_leads_helps():
    rng = np.random.default_rng(0)
    lead = rng.normal(size=ROWS)
    y = np.r_[np.zeros(3), lead[:-3]] + 0.1 * rng.normal(size=ROWS)
    frame = pd.DataFrame({"lead": lead, "y": y})
    without = forecaster(3, context=12).fit(frame[["y"]])
    model = forecaster(3, context=12).fit(frame, past=["lead"])
    assert model.held_out_["forecast"] < 0.4 * without.held_out_["forecast"]
    assert model.predict().index.tolist() == [600, 601, 602]
    changed = frame.copy()
    changed.loc[0:550, "lead"] = 5.0  # before the context
    np.testing.assert_allclose(model.predict(changed), model.predict(), atol=1e-6)


def test_what_does_not_help_has_no_effect():
    rng = np.random.default_rng(0)
    walk, noise = rng.normal(size=(400, 1)).cumsum(0), rng.normal(size=(400, 1))
    assert fit_effect([(walk, noise)], [300], 1) is None
    effect = fit_effect([(walk + 4 * noise, noise)], [300], 1)
    assert effect.weights[0, 0] == pytest.approx(4, abs=0.3)
    assert fit_effect([(walk, np.zeros((400, 0)))], [300], 1) is None


def test_long_frames_with_columns_for_series_and_time():
    t = np.arange(200)
    parts = []
    for name, size in (("small", 1.0), ("large", 300.0)):
        table = {"unique_id": name, "ds": pd.date_range("2020", periods=200), "y": size * np.sin(t / 4), "size": size}
        parts.append(pd.DataFrame({**table, "promo": np.cos(t / 3)}))
    frame = pd.concat(parts, ignore_index=True)
    model = forecaster().fit(frame, static=["size"], future=["promo"])
    assert model.network_.config.scaled
    coming = pd.date_range("2020-07-19", periods=4)
    rows = [pd.DataFrame({"unique_id": name, "ds": coming, "promo": np.cos(np.arange(200, 204) / 3)}) for name in
            ("large", "small")]  # fmt: skip
    found = model.predict(future=pd.concat(rows))
    assert list(found.columns) == ["unique_id", "ds", "y"]
    assert found["unique_id"].tolist() == ["small"] * 4 + ["large"] * 4
    assert found["ds"].tolist() == [*coming, *coming]
    wanted = np.sin(np.arange(200, 204) / 4)
    assert np.abs(found["y"].to_numpy().reshape(2, 4) / [[1.0], [300.0]] - wanted).max() < 0.3
    bands = model.predict_quantiles(future=pd.concat(rows))
    assert list(bands.columns) == ["unique_id", "ds", "y_q0.1", "y_q0.5", "y_q0.9"]


MISTAKES = {
    "no such column": (lambda f: forecaster().fit(f, future=["prize"]), "future must name columns.*did you mean price"),
    "twice": (lambda f: forecaster().fit(f, future=["price"], past=["price"]), "different columns, got one twice"),
    "changing": (lambda f: forecaster().fit(f, static=["price"]), "static must name columns that stay.*'price'"),
    "no future": (lambda f: forecaster().fit(f, future=["price"]).predict(), "must have the next 4 rows of price"),
    "short future": (
        lambda f: forecaster().fit(f, future=["price"]).predict(future=f[["price"]][:2]), "must have 4 rows of 1",
    ),
    "another future": (
        lambda f: forecaster().fit(f, future=["price"]).predict(future=f[["sold"]]), "got none named 'price'",
    ),
    "future of nothing": (lambda f: forecaster().fit(f).predict(future=f), "future must be None"),
    "missing": (lambda f: forecaster(missing="mask").fit(holes(f), future=["price"]), "missing values in covariates"),
}  # fmt: skip


def holes(frame):
    frame = frame.copy()
    frame.iloc[5, 0] = np.nan
    return frame


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    call, said = MISTAKES[name]
    with pytest.raises(ValueError, match=said):
        call(sales()[:200])
