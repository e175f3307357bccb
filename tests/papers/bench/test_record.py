"""Records are whole, and say where they come from."""

import datetime
import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import statespan
from statespan import _machine
from statespan._io import CheckpointError
from statespan.ops.ssm import chunks as plain
from statespan.papers.bench import runner
from statespan.papers.bench.plot import main
from statespan.papers.bench.record import read_record, write_record
from tests.papers.bench.run import invoke, quick


def test_record_says_what_ran_where(tmp_path):
    done, record = quick(tmp_path, "op", "--no-plot", "--seed", 3, "--size", "shapes=1x2x40")
    assert done.exit_code == 0
    assert record["seed"] == 3
    assert record["settings"] == {
        "device": "cpu",
        "dtype": "float32",
        "quick": True,
        "sizes": {"shapes": [[1, 2, 40]], "d_state": 16},
    }
    assert record["versions"]["statespan"] == statespan.__version__
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["source"] == _machine.source()
    assert record["machine"]["cpu_threads"] == torch.get_num_threads()
    age = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(record["date"])
    assert 0 <= age.total_seconds() < 120
    assert 0 < record["wall_seconds"] < 120
    assert record["rows"][0]["setting"] == {"batch": 1, "heads": 2, "length": 40, "d_state": 16, "part": "copy"}


def test_commit_is_that_of_the_checkout():
    here = Path(statespan.__file__).parent
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    if head.returncode != 0:
        assert _machine.commit() is None
    else:
        assert _machine.commit().removesuffix("+changes") == head.stdout.strip()


def test_no_commit_outside_of_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(_machine, "HERE", tmp_path)
    for said, meant in (("", None), ("0123abc", "0123abc"), ("main", None)):  # what a copy is told
        monkeypatch.setenv("STATESPAN_COMMIT", said)
        assert _machine.commit() == meant


@pytest.mark.parametrize("step", ["replace", "write"])
def test_a_failed_write_leaves_what_was_there(monkeypatch, tmp_path, step):
    quick(tmp_path, "op", "--no-plot", "--size", "shapes=1x2x40")
    path = tmp_path / "op-cpu-quick.json"
    before = path.read_bytes()
    result, _ = read_record(path)
    monkeypatch.setattr(os, step, lambda *a, **k: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(CheckpointError, match="full"):
        write_record(result, tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def interrupted(monkeypatch, tmp_path, *arguments):
    """A run of two rows that is cut after the first."""
    right, rows = runner.run_case, []

    def cut(*given, **options):
        if rows:
            raise KeyboardInterrupt
        rows.append(right(*given, **options))
        return rows[0]

    monkeypatch.setattr(runner, "run_case", cut)
    done = invoke("bench", "op", "--no-plot", "--quick", "--device", "cpu", "--out", tmp_path, *arguments)
    monkeypatch.undo()
    assert done.exit_code != 0
    return rows[0]


def test_an_interrupted_run_goes_on_where_it_was(monkeypatch, tmp_path):
    first = interrupted(monkeypatch, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["op-cpu-quick.unfinished.json"]
    done, record = quick(tmp_path, "op", "--no-plot", "--resume")
    assert done.exit_code == 0
    measured = {name: record["rows"][0][name] for name in ("name", "setting", "time_ms", "low_ms", "high_ms")}
    assert measured == {
        name: value for name, value in json.loads(json.dumps(asdict(first))).items() if name in measured
    }
    assert len(record["rows"]) > 10
    assert [path.name for path in tmp_path.iterdir()] == ["op-cpu-quick.json"]


def test_without_resume_it_starts_again_and_says_so(monkeypatch, tmp_path):
    interrupted(monkeypatch, tmp_path)
    done, record = quick(tmp_path, "op", "--no-plot")
    assert "op: starts again; --resume would have continued an interrupted run" in done.output
    assert len(record["rows"]) > 10


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (None, "there is no unfinished run of op"),
        (lambda record: "{", "is damaged"),
        (lambda record: json.dumps({**record, "rows": [{"name": "x"}]}), "is damaged"),
        (lambda record: json.dumps({**record, "seed": 7}), "is of another run: its seed is 7, now 0"),
        (lambda record: json.dumps({**record, "source": "abc"}), "is of another run: its source is 'abc'"),
        (lambda record: json.dumps({**record, "device": "another"}), "is of another run: its device is 'another'"),
    ],
)
def test_what_cannot_be_resumed(monkeypatch, tmp_path, spoil, said):
    """One line, before anything runs, and the file stays."""
    path = tmp_path / "op-cpu-quick.unfinished.json"
    if spoil is not None:
        interrupted(monkeypatch, tmp_path)
        path.write_text(spoil(json.loads(path.read_text())))
    before = path.read_text() if path.exists() else None
    done = invoke("bench", "op", "--quick", "--device", "cpu", "--out", tmp_path, "--resume")
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
    assert (path.read_text() if path.exists() else None) == before
    assert not (tmp_path / "op-cpu-quick.json").exists()


def test_a_record_never_holds_what_is_no_number(monkeypatch, tmp_path):
    """An error that is not finite is recorded as null, in JSON that any reader can read."""
    right = plain.forward
    monkeypatch.setattr(plain, "forward", lambda *a, **k: right(*a, **k)._replace(y=right(*a, **k).y * torch.nan))
    quick(tmp_path, "op", "--no-plot")
    text = (tmp_path / "op-cpu-quick.json").read_text()
    record = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in the record"))
    assert [row["error"] for row in record["rows"] if row["name"] == "S4D chunks"] == [None] * 3


def test_quick_runs_never_replace_real_ones(tmp_path):
    (tmp_path / "op-cpu.json").write_text("real")
    quick(tmp_path, "op", "--no-plot")
    assert (tmp_path / "op-cpu.json").read_text() == "real"


def test_a_picture_is_drawn_anew_from_its_record(tmp_path):
    _, record = quick(tmp_path, "scaling", "--size", "lengths=32,64")
    path = tmp_path / "scaling-cpu-quick.json"
    picture = path.with_suffix(".png")
    before = picture.read_bytes()
    picture.write_bytes(b"")
    main([str(path)])
    assert picture.read_bytes() == before
    result, where = read_record(path)
    assert where == record["machine"]["device"]
    assert [asdict(row) for row in result.rows] == record["rows"]
