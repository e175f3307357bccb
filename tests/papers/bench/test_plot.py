"""Pictures of runs: what is drawn is what was measured, and a reader can see all of it."""

from pathlib import Path

import pytest

from statespan.papers.bench import plot
from statespan.papers.bench.case import BenchRow
from statespan.papers.bench.record import read_record
from tests.pictures import cut_text

RESULTS = Path(__file__).parents[3] / "results/bench"
RECORDS = sorted(path.stem for path in RESULTS.glob("*.json") if path.with_suffix(".png").exists())


def row(name, batch, rate, ratio, **setting):
    time = 1e3 * batch / rate
    return BenchRow(
        name, {"batch": batch, "part": "throughput", **setting}, time_ms=time, ratio=ratio, extra={"tokens_per_s": rate}
    )


def drawn(name):
    """The figure of a committed record."""
    pytest.importorskip("matplotlib")
    result, device = read_record(RESULTS / f"{name}.json")
    return plot.draw(result, device)


def bars(figure):
    """The bars of each panel of a figure: label, width and colour; a bar as a CUDA graph has its bar's label too."""
    from matplotlib.colors import to_hex

    panels = []
    for axes in figure.axes:
        row = axes.get_subplotspec().rowspan.start
        first = next(other for other in figure.axes if other.get_subplotspec().rowspan.start == row)
        labels = [tick.get_text() for tick in first.get_yticklabels()]
        if bars := [(round(bar.get_y() + 0.36), bar.get_width(), to_hex(bar.get_facecolor())) for bar in axes.patches]:
            panels.append([(labels[place], width, color) for place, width, color in bars])
    return panels


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", RECORDS)
def test_all_text_is_in_the_picture(name):
    figure = drawn(name)
    assert cut_text(figure) == []


def test_cut_text_is_found():
    """The heading of the cpu picture as it once was: one line, wider than the figure."""
    figure = drawn("cpu-cpu")
    figure._suptitle.set_wrap(False)
    assert cut_text(figure) == [figure._suptitle.get_text()]


def test_there_are_records():
    assert len(RECORDS) >= 10


@pytest.mark.parametrize("name", ["cpu-cpu", "layer-cuda", "model-cuda", "op-cuda", "s4_table2-cuda", "s4_table3-cuda"])
def test_floors_are_seen(name):
    """A floor has a colour of its own, one colour is one model, and each row with a time has a line at its floor."""
    from matplotlib.colors import to_hex

    figure = drawn(name)
    result, _ = read_record(RESULTS / f"{name}.json")
    floors = sorted(row.floor_ms for row in result.rows if row.status == "ok" and row.setting.get("part") != "copy")
    lines = [line for axes in figure.axes for line in axes.lines]
    assert sorted(line.get_xdata()[0] for line in lines) == pytest.approx(floors)
    models = {color: set() for panel in bars(figure) for _, _, color in panel}
    assert not {to_hex(line.get_color()) for line in lines} & set(models)
    for panel in bars(figure):
        for label, _, color in panel:
            models[color].add(label.split()[0].rstrip(","))
    assert all(len(names) == 1 for names in models.values()), models
    for axes in figure.axes:
        assert not axes.spines["left"].get_visible()  # it is black, and would hide a floor near 0


def test_the_loop_is_shown_by_the_step():
    """Every recipe and mode has its bar, as long as the ms per step that the record and docs/training.md give."""
    figure = drawn("loop-cuda")
    result, _ = read_record(RESULTS / "loop-cuda.json")
    widths = [width for panel in bars(figure) for _, width, _ in panel]
    assert widths == pytest.approx([row.extra["step_ms"] for row in result.rows])
    floors = [line.get_xdata()[0] for axes in figure.axes for line in axes.lines]
    assert floors == pytest.approx([row.floor_ms / 40 for row in result.rows])
    assert figure.axes[-1].get_xlabel().startswith("time per step, ms")
    titles = [axes.get_title(loc="left").split(",")[0] for axes in figure.axes]
    assert titles == ["scifar-s4d-legs", "lra-listops-s4d-legs"]


def test_an_exponent_stands_beside_the_line_it_is_fitted_to():
    times, memory = drawn("scaling-cuda").axes
    labels = {line.get_label(): line.get_linestyle() for line in times.lines}
    assert labels["S4D"] == "-"
    assert labels["S4D, CUDA graph  ~ L$^{0.84}$"] == ":"
    assert "S4D  ~ L$^{0.87}$" in {line.get_label() for line in memory.lines}
    for axes in (times, memory):
        (shade,) = axes.patches
        assert (shade.get_x(), shade.get_x() + shade.get_width()) == (32768, 1048576)


@pytest.mark.parametrize("name", ["s4_table7-cuda", "s4_table8-cuda"])
def test_no_two_lines_of_rates_look_alike(name):
    lines = [line for line in drawn(name).axes[0].lines if line.get_linestyle() == "-"]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == len(lines) > 4
    models = {}
    for line in lines:
        models.setdefault(line.get_color(), set()).add(line.get_label().partition(" at ")[0])
    assert all(len(names) == 1 for names in models.values()), models


@pytest.mark.filterwarnings("error")
def test_rates_and_their_floors():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    rows = [row("ours", 1, 10.0, 4.0), row("ours", 8, 40.0, 2.0), row("theirs", 8, 5.0, 1.25)]
    rows += [row(f"after {n}", 1, 10.0, 4.0, part="context", context=n) for n in (100, 1000)]
    plot._rates(figure, rows, "tokens_per_s")
    rates, after = figure.axes
    drawn = [(line.get_label(), *(v.tolist() for v in line.get_data())) for line in rates.lines]
    assert [d[1:] for d in drawn] == [
        ([1, 8], [10.0, 40.0]), ([1, 8], [40.0, 80.0]), ([8], [5.0]), ([8], [6.25])
    ]  # fmt: skip
    assert [d[0] for d in drawn[::2]] == ["ours", "theirs"]
    assert after.lines[0].get_data()[0].tolist() == [100, 1000]
    assert after.lines[0].get_data()[1].tolist() == [100.0, 100.0]
    assert after.get_ylim() == (0.0, 150.0)
