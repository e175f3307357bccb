"""Business days, time zones and gaps."""

import numpy as np
import pytest

from statespan.estimators import S4Forecaster
from tests.estimators.make import forecaster

pd = pytest.importorskip("pandas")
WAVE = np.sin(np.arange(120) / 3)
INDICES = {
    "business days": pd.bdate_range("2020-01-01", periods=124),
    "business days at noon": pd.bdate_range("2020-01-01 12:00", periods=124),
    "hours over a change of the clock": pd.date_range("2020-03-24 20:00", periods=124, freq="h", tz="Europe/Berlin"),
    "days of a zone": pd.date_range("2020-03-01", periods=124, freq="D", tz="Europe/Berlin"),
    "months of a zone": pd.date_range("2010-01-31", periods=124, freq="ME", tz="America/New_York"),
}  # fmt: skip


@pytest.mark.parametrize("name", INDICES)
def test_forecasts_go_on(name, tmp_path):
    index = INDICES[name]
    model = forecaster().fit(pd.Series(WAVE, index=index[:120]))
    found = model.predict()
    assert list(found.index) == list(index[120:])
    assert found.index.tz == index.tz or str(found.index.tz) == str(index.tz)
    model.save(tmp_path)
    again = S4Forecaster.load(tmp_path).predict()
    assert list(again.index) == list(found.index)
    model.update(pd.Series(WAVE[:3], index=index[120:123]))
    assert model.predict().index[0] == index[123]


def test_business_days_have_a_week_of_five():
    model = forecaster().fit(pd.Series(WAVE, index=INDICES["business days"][:120]))
    assert model.chosen_["season"] == 5
    assert model.calendar_ == ("weekday", "day")


def test_a_frequency_fills_gaps_with_missing_rows():
    whole = pd.Series(WAVE, index=pd.bdate_range("2020-01-01", periods=120))
    holes = whole.drop(whole.index[[30, 31, 77]])
    model = forecaster(freq="B", missing="mask").fit(holes)
    filled = whole.where(~whole.index.isin(whole.index[[30, 31, 77]]))
    pd.testing.assert_series_equal(model.predict(), forecaster(missing="mask").fit(filled).predict())
    with pytest.raises(ValueError, match=r"NaN in row 30.*missing='mask'"):
        forecaster(freq="B").fit(holes)
    with pytest.raises(ValueError, match="must have times of freq='B', but 2020-01-04"):
        forecaster(freq="B", missing="mask").fit(pd.Series(WAVE, index=pd.date_range("2020-01-01", periods=120)))
    with pytest.raises(TypeError, match="dates as its index with freq='h'"):
        forecaster(freq="h").fit(pd.Series(WAVE))
