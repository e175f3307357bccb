"""What only a GPU has: the Triton path, CUDA graphs and their figures."""

import json

import pytest
import torch

from tests.papers.bench.run import invoke

KINDS, REDUCED = ("S4D", "S4", "attention"), "reduce-overhead"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def run(folder, name, *arguments):
    done = invoke("bench", name, *arguments, "--quick", "--device", "cuda", "--out", folder, "--no-plot")
    assert done.exit_code == 0, done.output
    return json.loads((folder / f"{name}-cuda-quick.json").read_text())["rows"]


def test_op_compares_the_kernels_and_times_them_as_graphs(tmp_path):
    rows = run(tmp_path, "op")
    assert {row["name"] for row in rows} == {"u.clone()"} | {
        f"{k} {p}" for k in ("S4D", "S4") for p in ("triton", "chunks", "fft")
    }
    copy = rows[0]["graph_ms"]
    for row in rows:
        if row["name"].endswith(("triton", "clone()")):
            assert 0 < row["graph_ms"] <= 1.2 * row["time_ms"]
            assert row["extra"]["copies"] == pytest.approx(row["graph_ms"] / copy)
        assert row["memory_mb"] > 0


def test_model_runs_in_every_variant(tmp_path):
    rows = run(tmp_path, "model")
    ways = ("eager", "torch.compile", "CUDA graph", "torch.compile, CUDA graph", "eager, fft")
    assert {row["name"] for row in rows} == {f"{kind} {way}" for kind in ("S4D", "S4") for way in ways}
    for kind in ("S4D", "S4"):
        times = {row["name"]: row["time_ms"] for row in rows if row["setting"]["task"] == "ListOps"}
        assert times[f"{kind} CUDA graph"] < times[f"{kind} eager"]


@pytest.mark.parametrize("name", ["step", "s4_table7", "s4_table8"])
def test_generation_runs_as_graphs(name, tmp_path):
    rows = [row for row in run(tmp_path, name) if not row["name"].startswith("Hugging Face")]
    assert {row["status"] for row in rows} == {"ok"}, [row["reason"] for row in rows]
    assert all(row["memory_mb"] > 0 for row in rows)
    if name == "s4_table8":
        times = {row["name"]: row["time_ms"] for row in rows if row["setting"]["batch"] == 1}
        assert times["S4"] < times["S4 without a graph"]


def test_eager_has_all_figures_and_compiled_rows(tmp_path):
    """A failed optional row would be a note in the record; here none may fail."""
    rows = run(tmp_path, "eager")
    assert [(row["name"], row["reason"]) for row in rows if row["status"] not in ("ok", "skipped")] == []
    assert [row["notes"] for row in rows if "measured last" in row["notes"]] == []
    rows = [row for row in rows if row["status"] == "ok"]
    assert {row["name"] for row in rows} > {f"{kind}, {way}" for kind in KINDS for way in ("torch.compile", REDUCED)}
    for row in rows:
        assert row["time_ms"] > 0
        assert row["extra"]["host_ms"] > 0
        assert row["extra"]["device_ms"] > 0
        assert row["extra"]["launches"] >= 1
        assert row["extra"]["wall_over_device"] == pytest.approx(row["time_ms"] / row["extra"]["device_ms"])
    place = {"shape": "2 × 60 × 8", "dtype": "bfloat16"}
    eager = {row["name"]: row for row in rows if place.items() <= row["setting"].items()}
    for kind in KINDS:
        assert eager[f"{kind}, {REDUCED}"]["extra"]["launches"] < eager[kind]["extra"]["launches"]
        assert eager[kind]["graph_ms"] == eager[kind]["extra"]["device_ms"]
