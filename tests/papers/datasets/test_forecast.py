"""Forecasting tables: borders, scaling, marks, every window; tables of one's own; and the real ones."""

from datetime import datetime, timedelta

import numpy as np
import pytest
import torch

from statespan.data.calendar import check_regular, mark_names, marks, parse_times
from statespan.data.registry import load
from statespan.papers.datasets import forecast  # noqa: F401 - registers its datasets
from tests.data.real import real


def write(path, columns, rows, *, step=timedelta(hours=1), form="%Y-%m-%d %H:%M:%S"):
    """A table whose columns are random walks; returns its values."""
    values = np.random.default_rng(0).standard_normal((rows, len(columns))).cumsum(0).round(4)
    times = [(datetime(2016, 7, 1) + k * step).strftime(form) for k in range(rows)]
    lines = [",".join([t, *map(str, row)]) for t, row in zip(times, values.tolist())]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([",".join(["date", *columns]), *lines]) + "\n")
    return values


def every(split):
    return split.batch(list(range(len(split))))


@pytest.mark.parametrize("features", ["S", "M", "MS"])
def test_ecl_layout_borders_and_windows(tmp_path, features):
    columns = ["MT_000", "MT_001", "MT_320"]
    values = write(tmp_path / "ecl" / "ECL.csv", columns, 203)
    data = load("ecl", tmp_path, features=features, context=12, horizon=5)
    train, valid, test = 142, 163, 203  # Informer: 70 % and 20 % rounded down, validation what is left
    mean, std = values[:train].mean(0), values[:train].std(0)
    z = (values - mean) / std
    read = [2] if features == "S" else [0, 1, 2]
    answer = [0, 1, 2] if features == "M" else [2]
    ends = {"train": (12, train), "valid": (train, valid), "test": (valid, test)}
    for part, (first, last) in ends.items():
        batch = every(getattr(data, part))
        assert len(batch.x) == last - first - 5 + 1  # each step of the part is forecast, none outside it
        for i in (0, len(batch.x) - 1):
            at = first + i
            assert np.allclose(batch.x[i, :12], z[at - 12 : at, read], atol=1e-5)
            assert (batch.x[i, 12:] == 0).all()
            assert np.allclose(batch.y[i], z[at : at + 5, answer], atol=1e-5)
    assert (data.info.length, data.info.horizon, data.info.d_input, data.info.d_output) == (
        17,
        5,
        len(read),
        len(answer),
    )
    assert np.allclose(data.info.target_mean, mean[answer])
    assert np.allclose(data.info.target_std, std[answer])
    assert data.info.scale is None  # errors of forecasts are those of standardised values
    assert data.info.d_marks == batch.marks.shape[-1] == 4
    assert batch.marks.shape[:2] == batch.x.shape[:2]


def test_windows_share_one_array(tmp_path):
    write(tmp_path / "ecl" / "ECL.csv", ["MT_320"], 300)
    data = load("ecl", tmp_path, context=20, horizon=5)
    assert np.shares_memory(data.valid.arrays["values"], data.train.arrays["values"])
    assert sum(array.nbytes for array in data.train.arrays.values()) < 300 * (8 + 4 * 5 + 4)


def test_weather_reads_month_day_year(tmp_path):
    # no zero padding of months, days and hours, as in the public file
    write(tmp_path / "weather" / "WTH.csv", ["Visibility", "WetBulbCelsius"], 400, form="%-m/%-d/%Y %-H:%M")
    data = load("weather", tmp_path, context=24, horizon=24)
    assert np.allclose(data.train.batch([0]).marks[0, 30], [6 / 23 - 0.5, 5 / 6 - 0.5, 1 / 30 - 0.5, 183 / 365 - 0.5])


def test_marks():
    times = parse_times(["2016-07-01 00:00", "2016-02-29 23:45", "2017-12-31 12:30"])
    names = ("minute", "hour", "weekday", "day", "yearday")
    assert mark_names(900) == names
    assert mark_names(86400) == names[2:]
    counted = np.array([[0, 0, 4, 0, 182], [45, 23, 0, 28, 59], [30, 12, 6, 30, 364]])  # Friday, Monday, Sunday
    assert np.allclose(marks(times, names), counted / [59, 23, 6, 30, 365] - 0.5, atol=1e-6)


def test_regular_steps():
    assert check_regular(parse_times([f"2020-{m:02d}-15" for m in range(1, 13)])) == (1, "M")
    assert check_regular(parse_times(["2019-12-31", "2020-03-31", "2020-06-30", "2020-09-30"])) == (3, "M")
    assert check_regular(parse_times(["2020-02-28 23:45", "2020-02-29 00:00"])) == (900, "s")
    for texts, row in (
        (["2020-01-01", "2020-01-02", "2020-01-02"], "row 2 .* repeats"),
        (["2020-01-02", "2020-01-01", "2020-01-03"], "row 1 .* is earlier"),
        (["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-05"], "row 3 .* comes 172800 s after"),
        (["2020-01-01"], "at least 2 rows"),
    ):
        with pytest.raises(ValueError, match=row):
            check_regular(parse_times(texts))


def test_a_table_of_ones_own(tmp_path):
    values = write(tmp_path / "mine.csv", ["a", "b"], 300, step=timedelta(days=1), form="%d.%m.%Y")
    options = {"file": str(tmp_path / "mine.csv"), "time_format": "%d.%m.%Y", "context": 20, "horizon": 7}
    data = load("csv-forecast", tmp_path, **options)
    assert data.info.columns == ("b",)
    assert data.info.sampling_rate == 1 / 86400
    y = every(data.test).y[-1, :, 0] * data.info.target_std[0] + data.info.target_mean[0]
    assert np.allclose(y, values[-7:, 1], atol=1e-4)
    other = load("csv-forecast", tmp_path, **options, target="a", valid=0.2, test=0.3)
    assert len(other.test) == 90 - 7 + 1
    assert torch.equal(other.train.batch([3]).marks, data.train.batch([3]).marks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,x\n2020-01-01,1\n2020-01-02,\n", r"line 3, column 'x': '' is not a finite number"),
        ("time,x\n2020-01-01,1\n2020-01-02,nan\n", r"line 3, column 'x': 'nan'"),
        ("time,x\n2020-01-01,1\n2020-01-02\n", r"line 3 has 1 fields"),
        ("time,x\n2020-01-01,1\nyesterday,2\n", r"line 3: 'yesterday' is not a time of the form ISO 8601"),
        ("time,x\n2020-01-01T00:00+01:00,1\n", r"line 2: .* is not a time"),
        ("time\n2020-01-01\n", r"at least 2 different names"),
        ("time,x,x\n2020-01-01,1,2\n", r"at least 2 different names"),
        ("", r"at least 2 different names"),
        ("time,x\n2020-01-01,1\n2020-01-03,2\n2020-01-02,2\n", r"line 4 .* is earlier"),
        ("time,x\n2020-01-01,1\n2020-01-02,2\n", r"leave no window in the train part"),
    ],
)
def test_bad_tables_are_named(tmp_path, text, message):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(ValueError, match=r"bad\.csv: .*" + message):
        load("csv-forecast", tmp_path, file=str(tmp_path / "bad.csv"))


def test_bad_options(tmp_path):
    write(tmp_path / "ecl" / "ECL.csv", ["MT_320"], 300)
    for options, message in (
        ({"target": "MT_1"}, "target must be one of"),
        ({"features": "X"}, "features must be one of"),
        ({"context": 0}, "context must be"),
        ({"context": 20, "horizon": 40}, "leave no window in the validation part"),
    ):
        with pytest.raises(ValueError, match=message):
            load("ecl", tmp_path, **options)
    write(tmp_path / "ett" / "ETTh1.csv", ["OT"], 300)
    with pytest.raises(ValueError, match="300 rows, the borders need 14400"):
        load("etth1", tmp_path)
    with pytest.raises(ValueError, match="needs the option 'file'"):
        load("csv-forecast", tmp_path)


@pytest.mark.real_data
def test_real_transformers(tmp_path):
    folder = real(tmp_path, "ett")
    known = {"etth1": (1, 17.128262, 9.176491), "etth2": (1, 26.872023, 11.584719), "ettm1": (4, 17.124950, 9.173035)}
    for name, (hourly, mean, std) in known.items():
        data = load(name, folder, features="M", context=336, horizon=168)
        counts = [len(part) for part in (data.train, data.valid, data.test)]
        assert counts == [8640 * hourly - 336 - 168 + 1, 2880 * hourly - 167, 2880 * hourly - 167]
        assert data.info.columns == ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
        assert data.info.target_mean[-1] == pytest.approx(mean, abs=1e-5)
        assert data.info.target_std[-1] == pytest.approx(std, abs=1e-5)
        first = data.train.batch([0])
        assert first.x[0, :336].shape == (336, 7)
    batch = every(load("etth1", folder, context=336, horizon=24).test)
    error = float((batch.y - batch.x[:, 335:336]).square().mean())  # of the last value, repeated
    oil = np.loadtxt(folder / "ett" / "ETTh1.csv", delimiter=",", skiprows=1, usecols=7)
    ahead = np.lib.stride_tricks.sliding_window_view(oil[11519:14400], 25)
    assert error == pytest.approx(np.square(ahead[:, 1:] - ahead[:, :1]).mean() / oil[:8640].var(), rel=1e-5)


@pytest.mark.real_data
def test_real_weather(tmp_path):
    data = load("weather", real(tmp_path, "weather"), features="M", context=336, horizon=24)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [24544 - 359, 3508 - 23, 7012 - 23]
    assert data.info.d_output == 12
    y = data.test.batch([7012 - 24]).y[0, -1, -1] * data.info.target_std[-1] + data.info.target_mean[-1]
    assert float(y) == pytest.approx(-1.5, abs=1e-4)  # the file's last number
