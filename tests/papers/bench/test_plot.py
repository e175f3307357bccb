"""Rates over the batch: what is drawn is what was measured."""

import pytest

from statespan.papers.bench import plot
from statespan.papers.bench.case import BenchRow


def row(name, batch, rate, ratio, **setting):
    time = 1e3 * batch / rate
    return BenchRow(
        name, {"batch": batch, "part": "throughput", **setting}, time_ms=time, ratio=ratio, extra={"tokens_per_s": rate}
    )


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
