"""`eager`: what one pass does, which rows there are on a GPU, and what their figures say."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

from statespan import S4D
from statespan.papers.bench import eager, eager_work, plot
from statespan.papers.bench import report as bench_report
from statespan.papers.bench.case import SKIPPED, BenchOptions, BenchRow, Work
from statespan.papers.bench.dots import FLOOR
from statespan.papers.bench.layer_work import with_gradients
from statespan.papers.bench.loop_times import Kernels
from statespan.papers.bench.measure import MachineRates, Times
from statespan.papers.bench.model import tasks
from statespan.papers.bench.options import choose_options, find
from statespan.papers.bench.runner import BenchResult, floor_ms
from tests.papers.bench.run import ok, quick
from tests.pictures import cut_text

CPU = BenchOptions(torch.device("cpu"), torch.float32, 0, True, {})
EAGER_NAMES = ["S4D", "S4", "attention", "LSTM"]


def on_gpu(**changes):
    """The options of a full run on a GPU, which need none."""
    options = choose_options(find("eager"), device="cpu", dtype="bfloat16")
    return replace(options, device=torch.device("cuda"), sizes=dict(find("eager").listing.sizes), **changes)


def simulated(options):
    """A run's rows with figures made up: passes of 2 ms, a host of 1 ms (attention: 0.5), a device of 0.8 ms."""
    rows = []
    for case in eager.cases(options):
        floor, how = floor_ms(case.floor, MachineRates(4e12, 7e14))
        row = BenchRow(case.name, case.setting, notes=case.notes, floor_ms=floor, floor_how=how)
        host = 0.5 if row.name == "attention" else 1.0
        extra = {"host_ms": host, "device_ms": 0.8, "launches": 120.0}
        rows.append(replace(row, time_ms=2.0, low_ms=1.9, high_ms=2.1, ratio=2.0 / floor, memory_mb=1.0, extra=extra))
    lstm = [row.name for row in rows].index("LSTM")
    rows[lstm] = replace(
        rows[lstm], status=SKIPPED, reason="too long", time_ms=None, floor_ms=None, floor_how="", extra={}
    )
    final, findings = eager.finish(rows, options)
    return BenchResult(find("eager"), options, MachineRates(4e12, 7e14), tuple(final), tuple(findings), False, 1.0)


def test_a_pass_fills_the_gradients_of_one_pass():
    """After any number of passes: nothing is summed over them."""
    torch.manual_seed(0)
    work = eager_work.pass_work(lambda: S4D(8, 16), CPU, (2, 50, 8))
    once = work.run
    for _ in range(3):
        assert work.run() == {}
    want = with_gradients(once.layer(once.x), once.x, once.dy, dict(once.layer.named_parameters()))
    left = {"input gradient": once.x.grad}
    left |= {f"gradient of {name}": p.grad for name, p in once.layer.named_parameters() if p.requires_grad}
    assert left.keys() | {"output"} == want.keys()
    for name, gradient in left.items():
        assert torch.equal(gradient, want[name])
    results = work.sample()
    assert results.keys() == want.keys()
    assert all(torch.equal(results[name], want[name]) for name in want)
    work.run()
    assert results["input gradient"].data_ptr() != once.x.grad.data_ptr()


def test_a_pass_of_a_layer_that_returns_a_state():
    work = eager_work.pass_work(lambda: nn.LSTM(4, 4, batch_first=True), CPU, (2, 9, 4), compared=False, graph=False)
    assert work.sample()["output"].shape == (2, 9, 4)
    assert (work.reference, work.graph) == (None, False)
    assert work.parameters == 4 * (4 * 4 + 4 * 4 + 4 + 4)


def test_what_comes_before_a_pass_comes_after_its_gradients_are_dropped():
    """A CUDA graph of torch.compile may overwrite gradients once a new step begins."""
    work = eager_work.pass_work(lambda: nn.LSTM(4, 4, batch_first=True), CPU, (2, 9, 4), compared=False)
    once, seen = work.run, []
    once.before = lambda: seen.append([leaf.grad for leaf in once.leaves])
    for _ in range(2):
        once()
        assert once.x.grad is not None
    assert seen == [[None] * 5] * 2


def test_a_compiled_pass_is_compared_like_an_eager_one(monkeypatch):
    """Warmed up through what is compiled, which is also what is compared."""
    compiled, modes = [], []

    def fake(layer, mode):
        modes.append(mode)
        return lambda x: compiled.append(x.shape) or 1.5 * layer(x)

    monkeypatch.setattr(torch, "compile", fake)
    for variant in (eager.COMPILED, eager.REDUCED):
        compiled.clear()
        work = eager_work.pass_work(lambda: S4D(8, 16), CPU, (2, 50, 8), variant=variant)
        assert len(compiled) == eager_work.WARM_UP
        assert not work.graph
        error = (work.sample()["output"] / work.reference()["output"] - 1.5).abs().max()
        assert error < 1e-3
        assert (work.run.before is torch.compiler.cudagraph_mark_step_begin) == (variant == eager.REDUCED)
    assert modes == [None, "reduce-overhead"]


def test_rows_on_a_gpu(monkeypatch):
    monkeypatch.setattr(eager, "missing_capture", lambda: "it is not there")
    cases = list(eager.cases(on_gpu()))
    places = [(case.setting["shape"], case.setting["dtype"]) for case in cases]
    assert list(dict.fromkeys(places)) == [
        ("64 × 1,024 × 512", "bfloat16"),
        ("64 × 1,024 × 512", "float32"),
        ("50 × 1,024 × 256", "bfloat16"),
        ("16 × 1,024 × 128", "bfloat16"),
        ("16 × 4,096 × 256", "bfloat16"),
        ("4 × 16,000 × 128", "bfloat16"),
        ("1 × 4,096 × 64", "bfloat16"),
        ("1 × 65,536 × 512", "bfloat16"),
        ("sCIFAR, 6 layers", "bfloat16"),
    ]
    names = {place: [case.name for case, its in zip(cases, places) if its == place] for place in places}
    compiled = [f"{name}{way}" for name in EAGER_NAMES[:3] for way in ("", ", torch.compile", ", reduce-overhead")]
    for (shape, dtype), found in names.items():
        if shape.startswith("sCIFAR"):
            assert found == ["S4D, AdamW step", "S4D, AdamW step, capture"]
        elif dtype == "bfloat16" and shape in ("64 × 1,024 × 512", "16 × 1,024 × 128"):
            assert found == [*compiled, "LSTM"]
        else:
            assert found == EAGER_NAMES
    assert {case.dtype for case, (_, dtype) in zip(cases, places) if dtype == "float32"} == {torch.float32}
    assert all(case.later is eager.measure_kernels for case in cases)
    needed = {case.name for case in cases if not case.optional}
    assert needed == {"S4D", "S4", "S4D, AdamW step"}
    whole = cases[-1].setting
    assert (whole["batch"], whole["length"], whole["d_model"]) == (50, 1024, 512)


def test_captured_rows(monkeypatch):
    """Our layers everywhere, attention where the others are compiled too."""
    monkeypatch.setattr(eager, "missing_capture", lambda: None)
    cases = [case for case in eager.cases(on_gpu()) if case.name.endswith("capture")]
    names = [case.name for case in cases]
    assert names == [
        *(["S4D, capture", "S4, capture", "attention, capture"] + ["S4D, capture", "S4, capture"] * 2),
        *(["S4D, capture", "S4, capture", "attention, capture"] + ["S4D, capture", "S4, capture"] * 4),
        "S4D, AdamW step, capture",
    ]
    assert all(case.optional for case in cases)
    assert cases[-1].skip([]) is None


def test_all_in_float32():
    cases = list(eager.cases(on_gpu(dtype=torch.float32)))
    assert {case.setting["dtype"] for case in cases} == {"float32"}
    assert [case.name for case in cases].count("LSTM") == 7


def test_floors():
    """Per token of D features 5 D values move; 2 D outputs of the linear map, 8 D of an LSTM's, three products each."""
    floors = {case.name: case.floor for case in eager.cases(on_gpu()) if case.setting["shape"] == "16 × 4,096 × 256"}
    moved = 5 * 16 * 4096 * 256 * 2
    assert {floor.bytes for floor in floors.values()} == {moved}
    assert floors["S4"].flops == 6 * 16 * 4096 * 256 * 512
    assert floors["LSTM"].flops == 6 * 16 * 4096 * 256 * 2048
    assert floors["attention"].flops == 24 * 16 * 4096 * 256 * 256 + 6 * 16 * 4096 * 4096 * 256


def test_an_lstm_that_would_take_too_long_is_skipped():
    options = on_gpu()
    before = [BenchRow("LSTM", {"length": 1024}, time_ms=10.24), BenchRow("S4", {"length": 1024}, time_ms=1e6)]
    assert eager.too_long(options, 50_000)(before) is None
    assert eager.too_long(options, 65_536)(before) == (
        "65,536 steps one after another, about 655 ms a pass; the limit is 500 ms"
    )
    assert eager.too_long(options, 65_536)([]) is None


def test_a_captured_pass_is_compared_too(monkeypatch):
    calls = []
    monkeypatch.setattr(
        eager_work.statespan, "capture", lambda layer: lambda x: calls.append(x.shape) or 1.5 * layer(x), raising=False
    )
    work = eager_work.pass_work(lambda: S4D(8, 16), CPU, (2, 50, 8), variant=eager.CAPTURED)
    assert len(calls) == eager_work.WARM_UP
    assert (work.run.before, work.graph) == (None, False)
    assert (work.sample()["output"] / work.reference()["output"] - 1.5).abs().max() < 1e-3


def test_a_captured_step_is_compared_too(monkeypatch):
    monkeypatch.setattr(eager_work.statespan, "capture", lambda model: lambda x: 1.5 * model(x), raising=False)
    options = choose_options(find("eager"), device="cpu", quick=True)
    task = tasks(options)[0]
    torch.manual_seed(0)
    work = eager._step(options, task, eager.CAPTURED)
    assert (work.run()["output"] / work.reference()["output"] - 1.5).abs().max() < 1e-3


def test_capture_is_skipped_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(eager, "statespan", SimpleNamespace())
    assert eager.missing_capture() == "this version of statespan has no capture"
    monkeypatch.setattr(eager, "statespan", SimpleNamespace(capture=None))
    assert eager.missing_capture() is None


def measured(monkeypatch, work, *, graph):
    """The row of a work on a pretended GPU."""
    gpu = SimpleNamespace(device=SimpleNamespace(type="cuda"), quick=False)
    monkeypatch.setattr(eager_work, "waiting", lambda device: lambda: None)
    monkeypatch.setattr(eager_work, "measure_memory", lambda run, device: 3e6)
    monkeypatch.setattr(eager_work, "wall_times", lambda run, wait, quick: Times(2.0, 1.0, 3.0))
    monkeypatch.setattr(eager_work, "host_time", lambda run, wait, quick: 0.7)
    monkeypatch.setattr(eager_work, "graph_time", graph)
    monkeypatch.setattr(eager_work, "profile_kernels", lambda run, device: Kernels(0.6, 42.0))
    row = eager_work.measure(BenchRow("x", {}, floor_ms=0.5), work, gpu)
    assert (row.time_ms, row.low_ms, row.high_ms, row.ratio, row.memory_mb) == (2.0, 1.0, 3.0, 4.0, 3.0)
    return row, eager_work.measure_kernels(row, work, gpu)


def test_device_time_is_the_graph_s_where_there_is_one(monkeypatch):
    work = Work(dict, None, graph=True)
    first, last = measured(monkeypatch, work, graph=lambda run, device, quick: 0.5)
    assert (first.graph_ms, first.extra) == (0.5, {"host_ms": 0.7, "device_ms": 0.5})
    assert last.extra == {"host_ms": 0.7, "device_ms": 0.5, "launches": 42.0}
    assert last.notes == ""


def refuse(run, device, quick):
    raise RuntimeError("operation not permitted\nwhen stream is capturing")


@pytest.mark.parametrize(
    ("captured", "graph", "note"),
    [
        (True, refuse, "no CUDA graph: RuntimeError: operation not permitted; "),
        (True, lambda *a: None, ""),
        (False, lambda *a: pytest.fail("captured"), ""),
    ],
    ids=["refused", "waits", "not asked for"],
)
def test_device_time_is_else_the_sum_of_kernels(monkeypatch, captured, graph, note):
    first, last = measured(monkeypatch, Work(dict, None, graph=captured), graph=graph)
    assert (first.graph_ms, first.extra) == (None, {"host_ms": 0.7})
    assert last.extra == {"host_ms": 0.7, "device_ms": 0.6, "launches": 42.0}
    assert last.notes == f"{note}device: the sum of its kernels"


def test_a_cpu_has_only_wall_times(tmp_path):
    done, record = quick(tmp_path, "eager", "--no-plot", "--dtype", "bf16", "--size", "shapes=2x60x8")
    assert done.exit_code == 0
    rows = ok(record)
    assert [(row["name"], row["setting"]["dtype"]) for row in rows] == [
        *((name, dtype) for dtype in ("bfloat16", "float32") for name in EAGER_NAMES),
        ("S4D, AdamW step", "bfloat16"),
    ]
    assert all((row["extra"], row["graph_ms"]) == ({}, None) for row in rows)
    errors = {(row["name"], row["setting"]["dtype"]): row["error"] for row in rows}
    assert errors["S4D", "float32"] < 2e-5 < 1e-4 < errors["S4D", "bfloat16"] < 3e-2
    floors = {(row["name"], row["setting"]["dtype"]): row["floor_ms"] for row in rows}
    assert floors["S4D", "float32"] != floors["S4D", "bfloat16"]
    assert record["findings"][0].startswith("2 × 60 × 8, bfloat16, wall time over that of attention: S4D ")
    assert choose_options(find("eager"), device="cpu").sizes["shapes"] == ((4, 1024, 64), (1, 4096, 64))


def test_ratios():
    """Over attention at the same shape and dtype; a row whose base is missing has none."""
    result = simulated(on_gpu())
    for row in result.rows:
        if row.status == SKIPPED:
            assert row.extra == {}
            continue
        assert row.extra["wall_over_device"] == pytest.approx(2.5)
        if row.setting["shape"].startswith("sCIFAR"):
            assert "host_over_attention" not in row.extra
        else:
            assert row.extra["host_over_attention"] == (1.0 if row.name == "attention" else 2.0)
    assert result.findings[0].startswith(
        "64 × 1,024 × 512, bfloat16, wall time over that of attention: S4D 1.00; S4 1.00"
    )
    assert len(result.findings) == 8
    assert not any("torch.compile" in line or "reduce-overhead" in line for line in result.findings)


def test_the_table_fits_80_columns(monkeypatch):
    """Each row is one line: name and seven figures."""
    monkeypatch.setattr(bench_report, "device_name", lambda device: "a GPU")
    text = io.StringIO()
    result = simulated(on_gpu())
    bench_report.show(result, Console(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    heading = next(number for number, line in enumerate(lines) if line.split()[:2] == ["wall", "host"])
    assert lines[heading].split() == ["wall", "host", "device", "floor", "calls", "attn.", "device"]
    longest = next(line for line in lines if line.startswith("  attention, reduce-overhead"))
    assert longest.split()[2:] == ["2", "1", "0.8", "0.884", "120", "2", "2.5"]
    assert sum(line.startswith("  S4D ") for line in lines) == 8
    assert any(line.startswith("  LSTM") and line.split()[1] == "skipped" for line in lines)


@pytest.mark.filterwarnings("error")
def test_every_time_and_floor_is_a_dot():
    pytest.importorskip("matplotlib")
    result = simulated(on_gpu())
    figure = plot.draw(result, "a GPU")
    assert cut_text(figure) == []
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_visible()}
    timed = [row for row in result.rows if row.status != SKIPPED]
    assert list(panels) == list(dict.fromkeys(f"{r.setting['shape']}, {r.setting['dtype']}" for r in timed))
    for title, axes in panels.items():
        rows = [row for row in timed if f"{row.setting['shape']}, {row.setting['dtype']}" == title]
        assert [tick.get_text() for tick in axes.get_yticklabels()] == [row.name for row in rows]
        assert axes.get_xscale() == "log"
        for y, row in enumerate(rows):
            dots = [line.get_xdata()[0] for line in axes.lines if list(line.get_ydata()) == [y]]
            assert dots == [row.extra["host_ms"], 0.8, 2.0]
            (floor,) = [line for line in axes.lines if list(line.get_ydata()) == [y - 0.4, y + 0.4]]
            assert floor.get_xdata()[0] == row.floor_ms
            assert floor.get_color() == FLOOR
            low, high = axes.get_xlim()
            assert low < row.floor_ms < high
    colors = {}
    for axes in panels.values():
        for line in axes.lines:
            if len(line.get_ydata()) == 1:
                name = axes.get_yticklabels()[int(line.get_ydata()[0])].get_text().split()[0].rstrip(",")
                colors.setdefault(name, set()).add(line.get_color())
    assert all(len(found) == 1 for found in colors.values()), colors
    assert len({next(iter(found)) for found in colors.values()}) == len(colors) == 4
