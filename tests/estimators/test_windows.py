"""Windows: which there are, and which are kept."""

import numpy as np
import pytest

from statespan.estimators.inputs.timeline import Form, TimeSeries
from statespan.estimators.inputs.windows import calendar_names, known_moments, make_windows, prepare, recent, thinned


def prepared(rows, masked=False):
    return prepare(TimeSeries(rows), Form("list"), np.zeros(rows.shape[1]), np.ones(rows.shape[1]), masked=masked)


@pytest.mark.parametrize(
    ("days", "names"),
    [(1, ()), (3, ("hour",)), (10, ("hour",)), (14, ("hour", "weekday")), (40, ("hour", "weekday")),
     (59, ("hour", "weekday", "day")), (500, ("hour", "weekday", "day")), (700, ("hour", "weekday", "day", "yearday"))],
)  # fmt: skip
def test_a_rhythm_has_to_be_seen_twice(days, names):
    times = np.datetime64("2020-01-01", "s") + 3600 * np.arange(24 * days + 1)
    long, short = TimeSeries(np.zeros((len(times), 1)), times), TimeSeries(np.zeros((2, 1)), times[:2])
    assert calendar_names([long, short], Form("frame", step=3600)) == names  # the longest counts


@pytest.mark.parametrize(("most", "kept"), [(None, 10), (10, 10), (9, 5), (4, 4), (3, 3), (1, 1)])
def test_no_more_windows_than_wanted(most, kept):
    windows = make_windows([prepared(np.arange(14.0)[:, None])], [(0, 14)], 3, 2)
    found = thinned(windows, most)
    assert len(found) == kept
    starts = [found.batch([i]).x[0, 0, 0].item() for i in range(len(found))]
    assert starts == np.arange(10)[:: -(-10 // (most or 10))].tolist()
    assert len(thinned(windows, every=5)) == 2


def test_answers_lie_in_the_span_and_reading_begins_with_the_series():
    windows = make_windows([prepared(np.arange(20.0)[:, None])], [(8, 15)], 3, 2)
    answers = [windows.batch([i]).y[0, :, 0].tolist() for i in range(len(windows))]
    assert answers == [[i, i + 1] for i in range(8, 14)]
    assert make_windows([prepared(np.arange(20.0)[:, None])], [(8, 9)], 3, 2) is None


def test_statistics_are_those_of_known_values_before_the_ends():
    values = np.array([[1.0, 7.0], [np.nan, 7.0], [3.0, np.nan], [99.0, 99.0]])
    mean, std = known_moments([TimeSeries(values), TimeSeries(values + 4)], [3, 1])
    assert mean.tolist() == [3.0, pytest.approx(25 / 3)]
    assert std == pytest.approx([np.std([1, 3, 5]), np.std([7, 7, 11])])
    with pytest.raises(ValueError, match="only NaN in column 1"):
        known_moments([TimeSeries(np.array([[1.0, np.nan], [2.0, 5.0]]))], [1])


def test_as_many_rows_are_kept_as_reach_a_known_value():
    values = np.arange(12.0).reshape(6, 2)
    values[3:, 1] = np.nan
    times = np.datetime64("2020-01-01", "s") + np.arange(6)
    for rows, wanted in ((1, 4), (4, 4), (5, 5), (6, 6)):
        found = recent(TimeSeries(values, times), rows)
        assert len(found.values) == len(found.times) == wanted
        assert np.isnan(found.values).sum() == 3
