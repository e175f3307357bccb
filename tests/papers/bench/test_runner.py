"""The runner measures nothing that is wrong, and says why."""

import math
from dataclasses import replace

import pytest
import torch

from statespan import S4D
from statespan.ops.ssm import chunks as plain
from statespan.papers.bench import runner
from statespan.papers.bench.case import FAILED, OK, SKIPPED, WRONG, BenchOptions, BenchRow, Case, Floor, Work
from statespan.papers.bench.layer_work import in_pieces
from statespan.papers.bench.measure import MachineRates, Times, measure_memory, measure_time
from statespan.papers.bench.options import choose_options, find
from statespan.papers.bench.runner import compare, floor_ms, one_line, run_benchmark, run_case
from statespan.papers.bench.scaling import exponent, too_long
from tests.papers.bench.run import quick

SETTINGS = BenchOptions(torch.device("cpu"), torch.float32, 0, True, {})
MACHINE = MachineRates(bandwidth=1e9, matmul=1e12)


def case(run, reference=None, tolerance=1e-6, **options):
    return Case("x", {"length": 1}, lambda: Work(run, reference), Floor(2e6, 1e6, "two"), tolerance, **options)


WRONG_ENGINES = {
    "all outputs off by a thousandth": ("forward", lambda r: r._replace(y=r.y * 1.001), 3, "output is"),
    "one sample of 300 off": (
        "forward",
        lambda r: r._replace(y=torch.cat([r.y[..., :-1], r.y[..., -1:] + 0.1], -1)),
        3,
        "output is",
    ),
    "not finite": ("forward", lambda r: r._replace(y=r.y * torch.nan), 3, "output is missing or not finite"),
    "input gradient doubled": ("backward", lambda r: r._replace(u=2 * r.u), 1, "input gradient is"),
    "one operator's gradient zero": (
        "backward",
        lambda r: r._replace(operators=r.operators._replace(E=0 * r.operators.E)),
        1,
        "gradient of",
    ),
}


@pytest.mark.parametrize("name", WRONG_ENGINES)
def test_a_wrong_fast_path_is_refused(monkeypatch, tmp_path, name):
    """With a fault planted in the library's chunk engine."""
    function, spoil, parts, said = WRONG_ENGINES[name]
    right = getattr(plain, function)
    monkeypatch.setattr(plain, function, lambda *a, **k: spoil(right(*a, **k)))
    done, record = quick(tmp_path, "op", "--no-plot")
    assert done.exit_code == 1
    assert "wrong" in done.output
    bad = [row for row in record["rows"] if row["status"] == "wrong"]
    assert sorted(row["name"] for row in bad) == ["S4 chunks"] * parts + ["S4D chunks"] * parts
    for row in bad:
        assert row["time_ms"] is row["low_ms"] is row["high_ms"] is row["ratio"] is row["memory_mb"] is None
        assert row["error"] is None or row["error"] > row["tolerance"]
        assert said in row["reason"]
    assert all(row["time_ms"] > 0 for row in record["rows"] if row["name"].endswith("fft"))


def test_a_wrong_layer_is_refused(monkeypatch, tmp_path):
    """Through a whole layer: here the reference itself, in wide precision, no longer agrees with what runs."""
    forward = S4D.forward
    monkeypatch.setattr(S4D, "forward", lambda layer, x: forward(layer, x) * (1 + 1e-3 * (x.dtype == torch.float32)))
    done, record = quick(tmp_path, "scaling", "--no-plot", "--size", "lengths=64,128")
    assert done.exit_code == 1
    states = {(row["name"], row["setting"]["length"]): row["status"] for row in record["rows"]}
    assert (states["S4D", 64], states["S4D", 128]) == (WRONG, SKIPPED)
    assert states["S4", 64] == states["S4", 128] == OK


def test_a_case_within_its_tolerance_is_measured():
    row = run_case(case(lambda: {"y": torch.full((3,), 1 + 5e-7)}, lambda: {"y": torch.ones(3)}), SETTINGS, MACHINE)
    assert row.status == OK
    assert row.error == pytest.approx(4.8e-7, rel=0.02)
    assert row.floor_ms == pytest.approx(2.0)
    assert row.ratio == row.time_ms / row.floor_ms


def test_a_missing_or_misshapen_result_is_wrong():
    for result in ({}, {"y": torch.ones(2)}, {"y": torch.ones(3), "z": torch.ones(1)}):
        row = run_case(case(lambda result=result: result, lambda: {"y": torch.ones(3)}), SETTINGS, MACHINE)
        assert (row.status, row.error, row.time_ms) == (WRONG, None, None)


def test_tolerance_and_reference_belong_together():
    for unpaired in (case(lambda: {}, None, 1e-6), case(lambda: {}, lambda: {}, None)):
        row = run_case(unpaired, SETTINGS, MACHINE)
        assert row.status == FAILED
        assert "both a reference and a tolerance" in row.reason


def test_a_failure_is_one_line_and_stops_nothing():
    def fail():
        raise RuntimeError("first line\nsecond line " + "x" * 500)

    def oom():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")

    assert run_case(case(fail, dict), SETTINGS, MACHINE).reason == "RuntimeError: first line"
    assert run_case(case(oom, dict), SETTINGS, MACHINE).reason == "out of memory"
    assert one_line(ValueError("at 3:4:\n    x = y\n        ^\nno such name")) == "ValueError: at 3:4: no such name"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 500))) == 200
    right = case(lambda: {"y": torch.ones(1)}, lambda: {"y": torch.ones(1)})
    benchmark = find("op")
    for optional, fault in ((True, False), (False, True)):
        broken = case(fail, dict, optional=optional)
        changed = replace(benchmark, cases=lambda s, b=broken: [b, right], finish=lambda rows, s: (list(rows), []))
        result = run_benchmark(changed, SETTINGS)
        assert [row.status for row in result.rows] == [FAILED, OK]
        assert result.fault is fault


def test_every_case_gets_the_same_seed():
    seen = []
    prepared = Case("x", {}, lambda: seen.append(torch.rand(1).item()) or Work(dict, None), Floor(1, 0, ""), None)
    for _ in range(2):
        run_case(prepared, SETTINGS, MACHINE)
        torch.rand(7)
    assert seen[0] == seen[1]


def test_compare_by_hand():
    got = {"y": torch.tensor([1.0, 2.0]), "g": torch.tensor([1.0 + 1.0j]), "zero": torch.tensor([1e-3])}
    want = {"y": torch.tensor([1.0, 4.0]), "g": torch.tensor([1.0 + 0.0j]), "zero": torch.zeros(1)}
    errors = compare(got, want)
    assert errors == {"y": 0.5, "g": 1.0, "zero": pytest.approx(1e-3)}
    assert compare({"y": torch.tensor([math.nan])}, {"y": torch.ones(1)}) == {"y": math.inf}
    assert compare({"y": torch.ones(1)}, {"y": torch.tensor([math.inf])}) == {"y": math.inf}


def test_in_pieces_sums_gradients_and_joins_the_rest(monkeypatch):
    monkeypatch.setattr("statespan.papers.bench.layer_work.PIECE", 8)  # two sequences of 4 at a time
    x, dy = torch.arange(20.0).view(5, 2, 2), torch.ones(5, 2, 2)
    sizes = []

    def results(x, dy):
        sizes.append(len(x))
        return {"output": 2 * x, "gradient of w": (x * dy).sum()}

    found = in_pieces(results, x, dy, torch.float64)
    assert sizes == [2, 2, 1]
    assert torch.equal(found["output"], 2 * x.double())
    assert found["gradient of w"] == x.sum()


def test_floor_is_the_slower_of_moving_and_computing():
    assert floor_ms(Floor(3e6, 1e6, "h"), MACHINE)[0] == pytest.approx(3.0)
    time, how = floor_ms(Floor(3e6, 7e9, "h"), MACHINE)
    assert time == pytest.approx(7.0)
    assert how == "h: 7 GFLOP at the measured matmul rate of 1 TFLOP/s"


def test_memory_is_the_peak_of_what_is_alive():
    def run():
        for _ in range(3):
            a = torch.empty(1000, dtype=torch.float64)
            b = torch.empty(500, dtype=torch.float64)
            del a, b

    assert measure_memory(run, torch.device("cpu")) == 12_000


def test_time_is_in_milliseconds():
    import time

    runs = []
    times = measure_time(lambda: runs.append(time.sleep(0.02)), torch.device("cpu"), quick=True)
    assert 19 < times.low <= times.median <= times.high < 60
    assert len(runs) >= 4  # the first one warms up


def test_exponent_of_a_power_law():
    assert exponent((1, 2, 4, 8), [3.0 * n**1.5 for n in (1, 2, 4, 8)]) == pytest.approx(1.5)


def test_scaling_stops_where_it_would_take_too_long():
    row = BenchRow("a", {"length": 100}, time_ms=10.0)
    assert too_long("a", 200, 2, 50.0)([row]) is None
    assert "40 ms" in too_long("a", 200, 2, 39.0)([row])
    assert too_long("b", 200, 2, 1.0)([row]) is None
    assert "was failed" in too_long("a", 200, 1, 1e9)([BenchRow("a", {"length": 100}, status=FAILED)])


def test_settings_from_words():
    op = find("op")
    settings = choose_options(op, device="cpu", dtype="bf16", sizes=["shapes=1x2x3,4x5x6", "d_state=8"])
    assert settings.sizes == {"shapes": ((1, 2, 3), (4, 5, 6)), "d_state": 8}
    assert (settings.dtype, settings.wide, settings.half) == (torch.bfloat16, torch.float32, True)
    assert choose_options(op, device="cpu").wide == torch.float64
    for change in ("shapes=3", "shapes=1x2", "d_state=0", "d_state=2,4", "d_state=x", "d_state", "length=3"):
        with pytest.raises(ValueError, match=change.split("=")[0]):
            choose_options(op, device="cpu", sizes=[change])


def test_rounds(monkeypatch):
    """All cases in turn, each with the median of its rounds; one that failed is not tried again."""
    order, seconds = [], iter([9, 20, 3, 50, 6, 30])

    def measured(run, device, quick):
        order.append(run()["y"])
        ms = float(next(seconds))
        return Times(ms, ms - 1, ms + 2)

    def fail():
        raise RuntimeError("no")

    monkeypatch.setattr(runner, "measure_time", measured)
    monkeypatch.setattr(runner, "measure_rates", lambda *_: MACHINE)
    cases = [case(lambda name=name: {"y": name}, tolerance=None) for name in "ab"] + [case(fail, tolerance=None)]
    benchmark = replace(find("cpu"), cases=lambda _: cases, finish=None, rounds=3)
    result = run_benchmark(benchmark, replace(SETTINGS, quick=False))
    assert order == list("ababab")
    found = [(row.status, row.time_ms, row.low_ms, row.high_ms, row.ratio) for row in result.rows]
    assert found == [(OK, 6, 5, 8, 3), (OK, 30, 29, 32, 15), (FAILED, None, None, None, None)]


def test_floors_name_their_rows_if_they_differ(tmp_path):
    attributed = [line for line in quick(tmp_path, "layer")[0].stdout.splitlines() if line.startswith("floor")]
    assert [line.partition(":")[0] for line in attributed] == [
        "floor of S4D chunks; S4D fft; S4 chunks; S4 fft", "floor of flash attention"
    ]  # fmt: skip
    parts = [line for line in quick(tmp_path, "cpu")[0].stdout.splitlines() if line.startswith("floor")]
    assert [line.partition(":")[0].partition("; ")[0] for line in parts] == [
        "floor of SSM alone, S4D chunks", "floor of layer, S4D chunks", "floor of one step, S4D",
        "floor of one step, LSTM",
    ]  # fmt: skip
    shared = [line for line in quick(tmp_path, "step")[0].stdout.splitlines() if line.startswith("floor")]
    assert [line.partition(":")[0] for line in shared] == ["floor"]


class Cut(Exception):  # noqa: N818
    """An interruption."""


@pytest.mark.parametrize("after", range(1, 6))
def test_an_interrupted_run_is_continued(after):
    """Cut after any of five steps, three times and two figures that come later, each is measured once in all."""
    order = []

    def later(row, work, options):
        order.append(f"{row.name} later")
        return replace(row, extra={"later": 1.0})

    def prepare(name):
        def made():
            order.append(name)
            return Work(lambda: {"y": torch.ones(1)}, None)

        return made

    empty = case(lambda: {}, tolerance=None)
    cases = [replace(empty, name=name, prepare=prepare(name), later=later if name != "b" else None) for name in "abc"]
    benchmark = replace(find("op"), cases=lambda options: cases, finish=None)
    kept = []

    def keep(unfinished):
        kept.append(unfinished._replace(rows=list(unfinished.rows)))
        if len(kept) == after:
            raise Cut

    with pytest.raises(Cut):
        run_benchmark(benchmark, SETTINGS, keep=keep)
    result = run_benchmark(benchmark, SETTINGS, begun=kept[-1], keep=lambda unfinished: kept.append(unfinished))
    assert len(kept) == 5
    assert [name for name in order if "later" in name] == ["a later", "c later"]
    assert [name for name in order if "later" not in name][:3] == ["a", "b", "c"]
    assert [(row.name, row.status, dict(row.extra)) for row in result.rows] == [
        ("a", OK, {"later": 1.0}), ("b", OK, {}), ("c", OK, {"later": 1.0}),
    ]  # fmt: skip


def test_some_figures_are_measured_after_all_times():
    """In the order of the cases, once each, for those that have a time; what fails there leaves the time."""
    order = []

    def later(row, work, options):
        order.append(f"{row.name} later")
        if row.name == "b":
            raise ValueError("no such figure")
        return replace(row, extra={"kernels": work.run()["y"].item()})

    def fail():
        raise RuntimeError("no")

    def work(name):
        order.append(name)
        return Work(fail if name == "c" else lambda: {"y": torch.ones(1)}, None)

    cases = [
        Case(name, {}, lambda name=name: work(name), Floor(1, 0, ""), None, later=later, notes="so") for name in "abc"
    ]
    told = []
    benchmark = replace(find("op"), cases=lambda _: cases, finish=None)
    result = run_benchmark(benchmark, SETTINGS, lambda done, total, name: told.append((done, total)))
    assert order == ["a", "b", "c", "a", "a later", "b", "b later"]
    assert [row.status for row in result.rows] == [OK, OK, FAILED]
    assert [row.extra for row in result.rows] == [{"kernels": 1.0}, {}, {}]
    assert result.rows[1].time_ms > 0
    assert result.rows[1].notes == "so; figures that are measured last: ValueError: no such figure"
    assert told[-1] == (6, 6)
    assert [done for done, _ in told[1:-1]] == [0, 1, 2, 3, 4, 5]


def test_a_case_may_have_its_own_dtype_and_measure(monkeypatch):
    """Its floor is that of the rates in its dtype, which are measured once."""
    asked = []

    def rates(device, dtype, quick):
        asked.append(dtype)
        return MachineRates(1e9, {torch.float32: 1e12, torch.bfloat16: 4e12}[dtype])

    def measure(row, work, options):
        return replace(row, time_ms=7.0, extra={"bytes": float(options.dtype.itemsize)})

    monkeypatch.setattr(runner, "measure_rates", rates)
    cases = [
        Case("x", {}, lambda: Work(dict, None), Floor(0, 8e9, ""), None, dtype=dtype, measure=measure)
        for dtype in (torch.bfloat16, None, torch.bfloat16)
    ]
    result = run_benchmark(replace(find("op"), cases=lambda _: cases, finish=None), SETTINGS)
    assert asked == [torch.float32, torch.bfloat16]
    assert [(row.floor_ms, row.extra["bytes"]) for row in result.rows] == [(2.0, 2.0), (8.0, 4.0), (2.0, 2.0)]
    assert result.rates.matmul == 1e12
