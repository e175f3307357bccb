"""Records of today and of old commits are read alike, and written whole or not at all."""

import json

import pytest
import torch

from statespan import _io
from statespan.papers.records import schema

RUN = {key: 1 for key in schema.RUN_KEYS}
OLD = {"hardware" if key == "machine" else key: value for key, value in RUN.items()}


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_records_of_old_commits_are_read_too(tmp_path):
    write_json(tmp_path / "old.json", OLD)
    write_json(tmp_path / "now.json", RUN)
    assert schema.read_runs(tmp_path) == {"now.json": RUN, "old.json": RUN}


def test_all_runs_are_those_of_files_and_cells_and_not_of_archives(tmp_path):
    write_json(tmp_path / "tasks/a.json", {**RUN, "seed": 2})
    write_json(tmp_path / "tables/t.cells.json", {"cells": {"b": {**OLD, "seed": 3}, "c": {**RUN, "seed": 4}}})
    write_json(tmp_path / "archive.json", {"note": "why", "records": {"d.json": RUN}})
    (tmp_path / "broken.json").write_text("{")
    write_json(tmp_path / "list.json", [1])
    runs = [record for record in schema.every_run(tmp_path) if schema.is_run(record)]
    assert sorted(record["seed"] for record in runs) == [2, 3, 4]


def test_a_record_says_where_with_what_and_when(tmp_path):
    record = schema.new({"rows": [1, 2]}, torch.device("cpu"), "numpy", "no-such-package")
    assert record["machine"].keys() == {"device", "cpu_threads"}
    assert {"statespan", "commit", "source", "torch", "python", "numpy"} <= record["versions"].keys()
    assert record["versions"]["no-such-package"] is None
    schema.write(tmp_path / "new/record.json", record)
    assert schema.read(tmp_path / "new/record.json") == record
    assert '"rows": [1, 2]' in (tmp_path / "new/record.json").read_text()


def test_a_write_that_fails_leaves_the_old_record(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    schema.write(path, {"rows": []})
    monkeypatch.setattr(_io, "sync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(_io.CheckpointError, match="No space left on device"):
        schema.write(path, {"rows": [1]})
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]
    assert schema.read(path) == {"rows": []}
