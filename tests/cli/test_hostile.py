"""Names from elsewhere at a terminal and in a spreadsheet: shown, never obeyed."""

import csv
import io
import re

import numpy as np
import pytest

from statespan._text import cell, csv_line, printable
from statespan.data.formats import limits
from statespan.data.formats.csv import read_table
from statespan.data.formats.samples import read_sample
from statespan.data.formats.ts import read_ts
from statespan.train import recipes
from tests.cli.make import one_line, series
from tests.cli.test_models import csv_of, invoke, said, saved

CLASSES = ("=1+1,x", 'a\x1b]0;owned\x07"b')
CONTROL = re.compile(r"[^\n -~…]")
RECIPE = """
name: evil
data: {{name: own, path: "{path}"}}
model: {{name: classifier, layer: s4d, d_model: 8, d_state: 4, n_layers: 1}}
train: {{epochs: 1, batch: 4, tensorboard: false}}
"""


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A run whose classes are named by an enemy, and a file of such a name."""
    folder = tmp_path_factory.mktemp("evil")
    x, y = series(12)
    for number, (one, kind) in enumerate(zip(x, y)):
        place = folder / "data" / CLASSES[kind == "high"]
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{number}.npy", one)
    (folder / "evil.yaml").write_text(RECIPE.format(path=folder / "data"))
    said(invoke("train", folder / "evil.yaml", "--folder", folder, "name=run"))
    np.save(folder / "@\x1b[31m,\u202e.npy", x[0])
    return folder


def test_predict_shows_and_writes_harmless_names(evil, monkeypatch):
    monkeypatch.chdir(evil)
    text = said(invoke("predict", "run", "@\x1b[31m,\u202e.npy", "--data", evil))
    assert not CONTROL.search(text)
    assert "@\\x1b[31m,\\u202e.npy" in text
    (header, row) = list(csv.reader(io.StringIO((evil / "predictions.csv").read_text())))
    shown = [printable(f"p({name})") for name in CLASSES]
    assert header == ["file", "class", "probability", *shown]
    assert row[0] == "'@\\x1b[31m,\\u202e.npy"
    assert row[1] in (f"'{CLASSES[0]}", printable(CLASSES[1]))
    assert float(row[3]) + float(row[4]) == pytest.approx(1, abs=1e-5)


def test_stream_writes_harmless_names(evil):
    x = series(1)[0][0]
    text = said(invoke("stream", evil / "run", "--data", evil, stdin=csv_of(x)))
    assert not CONTROL.search(text)
    header, *rows = csv.reader(io.StringIO(text))
    assert header == ["sample", "class", "probability"]
    assert {len(row) for row in rows} == {3}
    assert {row[1] for row in rows} <= {f"'{CLASSES[0]}", printable(CLASSES[1])}


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "\x1b[2J", "x.npy"),
        ("eval", "no\x1b]0;owned\x07run"),
        ("train", "\x9b31m"),
        ("forecast", "\u202e.csv"),
        ("stream", "a\x08b"),
        ("\x1b[2J",),
        ("predict", "digits-s4d", "bad\x1b[2J.npy"),
    ],
    ids=str,
)
def test_messages_show_no_control_characters(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad\x1b[2J.npy").write_bytes(b"none")
    assert not CONTROL.search(one_line(invoke(*arguments)))


def test_columns_of_a_forecast_are_harmless(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = np.datetime64("2020-01-01")
    rows = "".join(f"{start + i},{np.sin(i):.3f}\n" for i in range(80))
    (tmp_path / "x.csv").write_text("day,@SUM(1\x1b)\n" + rows)
    said(invoke("forecast", "x.csv", "--horizon", 3, "--context", 8, "--steps", 2))
    header, *found = csv.reader(io.StringIO((tmp_path / "forecast.csv").read_text()))
    assert header[:2] == ["time", "'@SUM(1\\x1b)"]
    assert len(found) == 3
    assert all(float(row[1]) < 10 for row in found)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("=1", "'=1"), ("+x", "'+x"), ("-x", "'-x"), ("@x", "'@x"), ("\tx", "'\\tx"), ("\rx", "'\\rx"),
        ("-1", "-1"), ("+1e3", "+1e3"), (-1.5, "-1.5"), (-3, "-3"), ("low", "low"), ("a=b", "a=b"), ("", ""),
        ("a\x00\x1b\x7f\x9b\u2028\u202e\ufeff\udcff", "a\\x00\\x1b\\x7f\\x9b\\u2028\\u202e\\ufeff\\udcff"), 
        ("ü Ω 日", "ü Ω 日"),
    ],
)  # fmt: skip
def test_cells(value, written):
    assert cell(value) == written


def test_a_line_is_read_back_as_it_was_written():
    row = ["a,b", 'say "x"', "two\nlines", "plain", "'", 1.5]
    assert next(csv.reader(io.StringIO(csv_line(row), newline=""))) == [str(value) for value in row]


class Endless(io.RawIOBase):
    """Bytes without an end and without a new line; counts what is taken."""

    taken = 0

    def readable(self):
        return True

    def readinto(self, buffer):
        self.taken += len(buffer)
        buffer[:] = b"1" * len(buffer)
        return len(buffer)


def test_a_line_without_end_is_refused_at_the_limit():
    assert limits.LONGEST_LINE == 1 << 24
    source = Endless()
    with pytest.raises(ValueError, match="line 1 must have at most 16777216 characters"):
        next(limits.bounded(io.BufferedReader(source)))
    assert source.taken < (1 << 24) + (1 << 20)


def test_readers_and_stream_have_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "LONGEST_LINE", 1000)
    long = "1," * 600 + "1\n"
    (tmp_path / "x.csv").write_text("1,2\n" + long)
    (tmp_path / "t.csv").write_text("time,x\n" + long)
    (tmp_path / "x.ts").write_text("@data\n" + long)
    for read, name in ((read_sample, "x.csv"), (read_table, "t.csv"), (read_ts, "x.ts")):
        with pytest.raises(ValueError, match=rf"{name}.* line 2 must have at most 1000 characters"):
            read(tmp_path / name)
    saved(tmp_path / "model", "regressor", d_input=1, d_output=1)
    done = invoke("stream", tmp_path / "model", stdin=b"1\n2\n" + b"1" * 5000)
    assert "line 3 must have at most 1000 characters" in one_line(done)
    assert done.stdout.count("\n") == 3  # the names, and the answers before it


def test_the_recipes_that_come_with_it_are_plain():
    """What `statespan recipes NAME --yaml` prints as it is."""
    for name in recipes.names():
        text = recipes.text(name)
        assert printable(text, keep="\n") == text
