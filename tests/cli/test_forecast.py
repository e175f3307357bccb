"""``statespan forecast``: a forecast and a picture from a CSV file; mistakes get one line."""

import csv

import numpy as np
import pytest

from tests.cli.make import invoke, one_line

pytest.importorskip("pandas")
SMALL = ["--horizon", "6", "--context", "24", "--steps", "3"]


def write(path, rows=120, bad=None):
    """A CSV file with a daily wave in two columns; ``bad`` changes its lines."""
    start = np.datetime64("2020-01-01T00:00:00")
    lines = ["when,load,OT"]
    for hour in range(rows):
        value = np.sin(2 * np.pi * hour / 24)
        lines.append(f"{str(start + np.timedelta64(hour, 'h')).replace('T', ' ')},{value:.3f},{5 + value:.3f}")
    path.write_text("\n".join(lines if bad is None else bad(lines)) + "\n")
    return path


def read(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_a_forecast_and_a_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "data.csv")
    done = invoke("forecast", file, "--time", "when", "--target", "OT,load", *SMALL, "--save", "model")
    assert done.exit_code == 0, done.stderr
    assert "S4Forecaster: 120 rows of 2 columns, calendar hour" in done.stderr
    assert "on 7 held-back windows: mean absolute error " in done.stderr
    assert "seasonal naive (24 rows)" in done.stderr
    assert "6 rows from 2020-01-06 00:00:00 to 2020-01-06 05:00:00" in done.stdout
    header, *rows = read(tmp_path / "forecast.csv")
    assert header == [
        "when", "OT", "OT_q0.1", "OT_q0.5", "OT_q0.9", "load", "load_q0.1", "load_q0.5", "load_q0.9"
    ]  # fmt: skip
    assert rows[0][0] == "2020-01-06 00:00:00"
    assert len(rows) == 6
    for row in rows:
        low, middle, high = map(float, row[2:5])
        assert low <= middle <= high
    assert (tmp_path / "forecast.png").read_bytes().startswith(b"\x89PNG")
    again = invoke("forecast", file, "--time", "when", "--target", "OT,load", "--model", "model", "--out", "again.csv")
    assert again.exit_code == 0, again.stderr
    assert read(tmp_path / "again.csv") == read(tmp_path / "forecast.csv")


def test_missing_values_with_a_mask(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def holes(lines):
        return [line if i not in (40, 41) else line.rpartition(",")[0] + "," for i, line in enumerate(lines)]

    file = write(tmp_path / "data.csv", bad=holes)
    mistake = one_line(invoke("forecast", file, *SMALL))
    assert "line 41, column 'OT': '' is not a finite number; --missing mask learns from series with" in mistake
    done = invoke("forecast", file, *SMALL, "--missing", "mask", "--quantiles", "")
    assert done.exit_code == 0, done.stderr
    assert read(tmp_path / "forecast.csv")[0] == ["time", "OT"]


def test_an_end_without_values_is_forecast(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def ended(lines):
        return [line if i < 80 else line.rpartition(",")[0] + "," for i, line in enumerate(lines)]

    file = write(tmp_path / "data.csv", bad=ended)  # of 120 rows 40 have no value: all held-out ones and the context
    done = invoke("forecast", file, *SMALL, "--missing", "mask")
    assert done.exit_code == 0, done.stderr
    assert "held-back" not in done.stderr
    _, *rows = read(tmp_path / "forecast.csv")
    assert np.isfinite([[float(value) for value in row[1:]] for row in rows]).all()
    assert len(rows) == 6


@pytest.mark.parametrize("unit", [1e-30, 1e30])
def test_units_do_not_matter(unit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def scaled(lines):
        return [
            lines[0],
            *(f"{line.rpartition(',')[0]},{float(line.rpartition(',')[2]) * unit:.4g}" for line in lines[1:]),
        ]

    found = []
    for name, bad in (("plain.csv", None), ("scaled.csv", scaled)):
        done = invoke("forecast", write(tmp_path / name, bad=bad), *SMALL, "--out", f"{name}.csv")
        assert done.exit_code == 0, done.stderr
        found.append(np.array([[float(value) for value in row[1:]] for row in read(tmp_path / f"{name}.csv")[1:]]))
    np.testing.assert_allclose(found[1] / unit, found[0], rtol=1e-2)


def dropped(lines):
    return lines[:50] + lines[51:]


def backwards(lines):
    return [lines[0], *reversed(lines[1:])]


def day_first(lines):
    return [lines[0], *(f"{13 + i}.01.2020,1,2" for i in range(18))]


MISTAKES = {
    "no file": (["none.csv"], None, "FILE must be an existing CSV file"),
    "target": (["{file}", "--target", "OTT"], None, "got 'OTT'; did you mean OT?; its columns are load, OT"),
    "time": (["{file}", "--time", "date"], None, "there is no column 'date'"),
    "horizon 0": (["{file}", "--horizon", "0"], None, "horizon must be an integer >= 1, got 0"),
    "too long": (
        ["{file}", "--horizon", "200"],
        None,
        "statespan: horizon 200 must fit into the rows to learn from, got 96 rows (the last 24 of 120 are held "
        "out); give more rows or a smaller horizon\n",
    ),
    "too long with a context": (
        ["{file}", "--horizon", "6", "--context", "119"],
        None,
        "statespan: context 119 and horizon 6 must fit into the rows to learn from, got 96 rows (the last 24 of 120 "
        "are held out); give more rows or a smaller context or horizon\n",
    ),
    "day first": (
        ["{file}", *SMALL],
        day_first,
        "line 2: '13.01.2020' is not a time of the form ISO 8601; --time-format %d.%m.%Y reads it",
    ),
    "a word for a time": (
        ["{file}", *SMALL],
        lambda lines: [lines[0], "soon,1,2", *lines[2:]],
        "line 2: 'soon' is not a time of the form ISO 8601; give its format as --time-format, such as %d.%m.%Y",
    ),
    "a gap": (["{file}", *SMALL], dropped, "data.csv: line 51 (2020-01-03T02:00:00) comes 7200 s after"),
    "unsorted": (["{file}", *SMALL], backwards, "is earlier than the row before it"),
    "no rows": (["{file}"], lambda lines: lines[:1], "has no rows"),
    "quantiles": (["{file}", *SMALL, "--quantiles", "half"], None, "--quantiles must be numbers"),
    "quantile 2": (["{file}", *SMALL, "--quantiles", "2"], None, "quantiles must be a number > 0 and < 1"),
    "out": (["{file}", "--out", "x.txt"], None, "--out must end in .csv"),
    "out is the file": (["{file}", "--out", "{file}"], None, "--out must not be the file to read"),
    "picture": (["{file}", "--picture", "no/x.png"], None, "--picture must be a file in an existing folder"),
    "missing": (["{file}", *SMALL, "--missing", "drop"], None, "missing must be one of"),
    "model and steps": (["{file}", "--model", "m", "--steps", "3"], None, "--model uses a model without training"),
    "device": (["{file}", *SMALL, "--device", "tpu"], None, "device is tpu"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, bad, said = MISTAKES[name]
    file = write(tmp_path / "data.csv", bad=bad)
    done = invoke("forecast", *(word.format(file=file) for word in arguments))
    assert said in one_line(done)
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


@pytest.mark.parametrize(("encoding", "byte", "offset"), [("latin1", "e9", 8), ("utf-16", "ff", 0)])
def test_another_encoding(encoding, byte, offset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["when,caf\u00e9", *(f"2020-01-{day:02d},{day}" for day in range(1, 29))]
    (tmp_path / "data.csv").write_bytes("\n".join(lines).encode(encoding))
    assert one_line(invoke("forecast", "data.csv", *SMALL)) == (
        f"statespan: data.csv: line 1 must be UTF-8, got the byte 0x{byte} at offset {offset}; save the file as UTF-8, "
        f"or convert it: iconv -f {encoding} -t utf-8 FILE > NEW\n"
    )


def test_the_offset_of_a_wrong_byte_is_that_in_the_file(tmp_path, monkeypatch):
    """The decoder counts from the start of a block, which the reader does not know."""
    monkeypatch.chdir(tmp_path)
    good = "when,x\n" + "2020-01-01,1.000\n" * 5000
    (tmp_path / "data.csv").write_bytes(good.encode() + b"2020-01-02,1\xb0\n")
    mistake = one_line(invoke("forecast", "data.csv", *SMALL))
    assert f"line 5002 must be UTF-8, got the byte 0xb0 at offset {len(good) + 12};" in mistake


def test_a_model_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "data.csv")
    mistake = one_line(invoke("forecast", file, "--model", "none"))
    assert "--model must be the folder of a forecaster that --save wrote, got none" in mistake
