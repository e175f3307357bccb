"""Forecasts continue the index of the past, whatever it is, and errors count rows and lines in one way."""

import numpy as np
import pytest

from statespan.data.calendar import check_regular, mark_names, parse_times
from statespan.data.formats.csv import read_table
from statespan.estimators import S4Forecaster
from tests.estimators.make import forecaster

pd = pytest.importorskip("pandas")
WAVE = np.sin(np.arange(400) / 5)


def periods(freq, count=60):
    return pd.period_range("2001-01", periods=count, freq=freq, name="when")


INDICES = {
    "rows": (pd.RangeIndex(400), pd.RangeIndex(400, 404)),
    "rows from 1000": (pd.RangeIndex(1000, 1400), pd.RangeIndex(1400, 1404)),
    "whole numbers": (pd.Index(np.arange(1000, 1400, dtype=np.uint32), name="n"), pd.RangeIndex(1400, 1404, name="n")),
    "steps of 5": (pd.RangeIndex(-10, 290, 5), pd.RangeIndex(290, 310, 5)),
    "months": (periods("M"), periods("M", 64)[60:]),
    "quarters": (periods("Q"), periods("Q", 64)[60:]),
    "years": (periods("Y"), periods("Y", 64)[60:]),
    "days": (periods("D"), periods("D", 64)[60:]),
    "weeks": (periods("W"), periods("W", 64)[60:]),
    "every second hour": (periods("h", 120)[::2], periods("h", 128)[120::2]),
    "milliseconds": (pd.date_range("2020", periods=60, freq="7ms"), pd.date_range("2020", periods=64, freq="7ms")[60:]),
    "nanoseconds": (
        pd.DatetimeIndex(np.datetime64("2020", "ns") + 3 * np.arange(60)),
        pd.DatetimeIndex(np.datetime64("2020", "ns") + 3 * np.arange(60, 64)),
    ),
    "half a second": (
        pd.date_range("2020", periods=60, freq="1s") + pd.Timedelta("500ms"),
        pd.date_range("2020", periods=64, freq="1s")[60:] + pd.Timedelta("500ms"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INDICES)
def test_forecasts_continue_the_index(name, tmp_path):
    index, wanted = INDICES[name]
    past = pd.Series(WAVE[: len(index)], index=index)
    model = forecaster().fit(past)
    model.save(tmp_path)
    loaded = S4Forecaster.load(tmp_path)
    for found in (model.predict(), model.predict(past), loaded.predict(), model.predict_quantiles()):
        assert type(found.index) is type(wanted)
        assert found.index.equals(wanted)
        assert found.index.name == wanted.name
    assert model.predict(past[:-4]).index.equals(index[-4:])


def test_series_of_a_long_frame_have_their_own_numbers():
    first, second = pd.Series(WAVE[:60]), pd.Series(WAVE[:50], index=range(900, 950))
    long = pd.concat({"a": first, "b": second}).to_frame("v")
    found = forecaster().fit(long).predict()
    assert found.loc["a"].index.tolist() == [60, 61, 62, 63]
    assert found.loc["b"].index.tolist() == [950, 951, 952, 953]
    dated = pd.concat({"a": first.set_axis(periods("D")), "b": second.set_axis(periods("D", 70)[20:])}).to_frame("v")
    found = forecaster().fit(dated).predict()
    assert found.loc["b"].index.equals(periods("D", 74)[70:])
    with pytest.raises(ValueError, match="one frequency, got steps of 1 rows in series 'a' and 2 rows in series 'b'"):
        forecaster().fit(pd.concat({"a": first, "b": second.set_axis(range(0, 100, 2))}).to_frame("v"))


def test_steps_of_fit_are_compared_in_any_unit():
    fine = pd.Series(WAVE[:60], index=pd.date_range("2020", periods=60, freq="500ms"))
    model = forecaster(calendar=False).fit(fine)
    with pytest.raises(ValueError, match="2 times as long"):
        model.predict(fine.set_axis(pd.date_range("2020", periods=60, freq="1s")))
    model.predict(fine.set_axis(pd.date_range("2020", periods=60, freq="1s")), dt_scale=2.0)
    numbered = forecaster().fit(pd.Series(WAVE[:60]))  # numbers say nothing about time
    assert numbered.predict(pd.Series(WAVE[:60:2]), dt_scale=2.0).index.tolist() == [30, 31]
    assert numbered.predict(pd.Series(WAVE[:60])[::2], dt_scale=2.0).index.tolist() == [60, 62]


def test_calendar_of_fine_steps():
    assert mark_names(250, "ms") == mark_names(1, "ns") == ("minute", "hour", "weekday", "day", "yearday")
    assert mark_names(3_600_000, "ms") == ("hour", "weekday", "day", "yearday")
    times = parse_times(["2020-01-01 00:00:00.250", "2020-01-01 00:00:00.500", "2020-01-01 00:00:00.750"])
    assert check_regular(times) == (250_000, "us")
    with pytest.raises(ValueError, match=r"row 2 .* comes 0.26 s after the previous row, but most come after 0.25 s"):
        check_regular(np.r_[times[:2], times[2] + 10_000, times[2] + 260_000, times[2] + 510_000])


def bad(values, index=None):
    return pd.DataFrame({"v": values}, index=pd.date_range("2020", periods=60) if index is None else index)


ROW = 7
DATES = pd.date_range("2020", periods=60)
ROWS = {
    "NaN": lambda: bad(np.where(np.arange(60) == ROW, np.nan, WAVE[:60])),
    "infinity": lambda: bad(np.where(np.arange(60) == ROW, np.inf, WAVE[:60])),
    "a time twice": lambda: bad(WAVE[:60], DATES[:ROW].append(DATES[ROW - 1 : 59])),
    "a time too early": lambda: bad(WAVE[:60], DATES[:ROW].append(DATES[2:3]).append(DATES[ROW + 1 :])),
    "a gap": lambda: bad(WAVE[:60], DATES[:ROW].append(DATES[ROW:] + pd.Timedelta("1D"))),
    "a gap in numbers": lambda: bad(WAVE[:60], [*range(ROW), *range(ROW + 1, 61)]),
    "numbers that go back": lambda: bad(WAVE[:60], [*range(ROW), *range(ROW - 2, 58)]),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_error_counts_rows_as_python_does(name):
    frame = ROWS[name]()
    with pytest.raises(ValueError, match=rf"\brow {ROW}\b"):
        forecaster().fit(frame)


GOOD = [f"2020-01-{day:02d},{day}" for day in range(1, 10)]
LINES = {
    "a word": "2020-01-05,x",
    "nothing": "2020-01-05,",
    "no time": "someday,5",
    "three fields": "2020-01-05,5,5",
    "a time twice": "2020-01-04,5",
    "a time too early": "2020-01-02,5",
    "a gap": "2020-01-05T12:00,5",
}


@pytest.mark.parametrize("blank", ["", "\n"])
@pytest.mark.parametrize("name", LINES)
def test_every_error_counts_lines_as_editors_do(tmp_path, name, blank):
    rows = [*GOOD[:4], blank + LINES[name], *GOOD[5:]]  # below the header and four rows
    (tmp_path / "t.csv").write_text("time,v\n" + "\n".join(rows))
    with pytest.raises(ValueError, match=rf"t\.csv: line {6 + len(blank)}\b"):
        read_table(tmp_path / "t.csv")


def test_a_file_with_times_between_seconds(tmp_path):
    (tmp_path / "t.csv").write_text("time,v\n" + "\n".join(f"2020-01-01 00:00:00.{i:03d},{i}" for i in range(9)))
    times = read_table(tmp_path / "t.csv").times
    assert check_regular(times) == (1000, "us")
    (tmp_path / "t.csv").write_text("time,v\n" + "\n".join(GOOD))
    assert read_table(tmp_path / "t.csv").times.dtype == "datetime64[s]"
