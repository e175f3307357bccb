"""The table of all settings: right borders and numbers, and a command that goes on where it was stopped."""

import json

import numpy as np
import pytest
import torch

from statespan._version import __version__
from statespan.papers.tables.forecasting import harness, picture, table
from statespan.papers.tables.forecasting.harness import Budget, S4Variant
from statespan.papers.tables.forecasting.picture import draw
from statespan.papers.tables.forecasting.settings import Setting, paper, settings
from tests.pictures import cut_text


def write(folder, rows=14400, columns=("HUFL", "OT")):
    """A table like ETTh1.csv: a daily wave."""
    (folder / "ett").mkdir()
    start = np.datetime64("2016-07-01T00:00:00")
    rng = np.random.default_rng(0)
    lines = ["date," + ",".join(columns)]
    for hour in range(rows):
        values = [f"{np.sin(2 * np.pi * hour / 24) + 0.1 * rng.normal() + c:.4f}" for c in range(len(columns))]
        lines.append(",".join([str(start + np.timedelta64(hour, "h")).replace("T", " "), *values]))
    (folder / "ett" / "ETTh1.csv").write_text("\n".join(lines) + "\n")


def test_every_setting_has_the_papers_number():
    assert len(settings()) == 40
    for setting in settings(("etth1", "etth2", "ettm1", "weather", "ecl")):
        reached = paper(setting)
        assert reached is not None, setting.name
        assert 0 < reached.mse < 3
        assert 0 < reached.mae < 2
    assert paper(Setting("weather", "S", 720)).mse == 0.245
    assert paper(Setting("etth1", "S", 25)) is None


def test_the_command_goes_on_where_it_was_stopped(tmp_path, capsys, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(harness, "S4_VARIANTS", (S4Variant(context=48, d_model=4, d_state=2, n_layers=1),))
    monkeypatch.setattr(harness, "CONTEXT", 48)
    some = ["--data", str(tmp_path), "--out", str(tmp_path), "--device", "cpu", "--settings", "etth1-S-24,etth1-M-24"]
    some += ["--datasets", "etth1", "--steps", "2", "--batch", "8", "--every", "97"]
    table.main([*some, "--models", "NLinear,SeasonalNaive", "--seconds", "0"])
    assert "4 of 4 fits are left" in capsys.readouterr().err
    table.main([*some, "--models", "NLinear,SeasonalNaive"])
    assert "4/4" in capsys.readouterr().out
    table.main([*some, "--models", "S4,NLinear,SeasonalNaive"])
    said = capsys.readouterr().out
    assert "1/2 etth1-M-24       S4" in said  # the longer one
    record = json.loads((tmp_path / "forecast-cpu.json").read_text())
    assert len(record["fits"]) == 6
    (one, every) = record["rows"]
    assert one["name"] == "etth1, one series"
    assert one["extra"]["paper S4"] == 0.061
    assert record["findings"]["S4D-LegS at or below the paper's S4"].endswith("of 2")
    assert record["versions"]["statespan"] == __version__
    assert (tmp_path / "forecast-cpu.png").read_bytes().startswith(b"\x89PNG")
    naive = next(f for f in record["fits"] if f["model"] == "SeasonalNaive" and f["features"] == "S")
    assert naive["mse"] == pytest.approx(2 * 0.01 / (0.5 + 0.01), rel=0.15)  # noise of two days, in standard units
    assert every["setting"] == {"horizon": 24}
    with pytest.raises(SystemExit, match="2"):
        table.main(["--models", "GRU"])
    assert "--models must be of" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        table.main(["--settings", "etth1-S-24,etth1-S-25"])
    assert "--settings must be of etth1-S-24 … weather-M-720, got etth1-S-25" in capsys.readouterr().err


def test_the_picture_shows_each_number_where_it_is():
    rows = [
        {"name": name, "setting": {"horizon": horizon}, "extra": {"S4": error, "NLinear": None, "paper S4": 2 * error}}
        for name, horizon, error in (
            ("etth1, one series", 24, 0.1), ("etth1, one series", 48, 0.2), ("etth1, all series", 24, 0.3),
            ("ettm1, one series", 96, 0.4),
        )
    ]  # fmt: skip
    figure = draw({"rows": rows})
    axes = [panel for panel in figure.axes if panel.get_visible()]
    shown = {
        panel.get_title(loc="left"): {line.get_label(): line.get_xydata().tolist() for line in panel.lines}
        for panel in axes
    }
    assert shown == {
        "ETTh1, one series": {"S4D-LegS": [[24, 0.1], [48, 0.2]], "S4 in the paper": [[24, 0.2], [48, 0.4]]},
        "ETTm1, one series": {"S4D-LegS": [[96, 0.4]], "S4 in the paper": [[96, 0.8]]},
        "ETTh1, all series": {"S4D-LegS": [[24, 0.3]], "S4 in the paper": [[24, 0.6]]},
    }
    assert len({line.get_color() for line in axes[0].lines}) == 2
    assert cut_text(figure) == []


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"rows": [{}]}', '{"rows": []}'])
def test_a_file_that_is_no_record_is_named(text, tmp_path, capsys):
    path = tmp_path / "forecast.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        picture.main([str(path)])
    assert "records must be files that the forecasting table wrote, and" in capsys.readouterr().err
    assert not path.with_suffix(".png").exists()


def test_a_rhythm_must_have_been_seen_twice(tmp_path):
    write(tmp_path)
    dataset = harness.load(Setting("etth1", "S", 24), 48, tmp_path)
    assert harness._rhythms(dataset) == 3  # hour, weekday, day of the month; one year of training has no second year


class Constant(torch.nn.Module):
    """Always forecasts the same."""

    def __init__(self, context, value):
        super().__init__()
        self.context, self.value = context, torch.nn.Parameter(torch.tensor(value))

    def forward(self, x, *, marks=None):
        assert x.shape[1] == self.context + 24
        return self.value.expand(len(x), 24, 1)


def error(windows, value):
    """What a constant gets, one window after the other."""
    rows, length = windows.arrays["values"], windows.length
    return np.mean([(rows[s + length - 24 : s + length] - value) ** 2 for s in windows.arrays["starts"]])


@pytest.mark.parametrize(("values", "chosen"), [((1.0, -0.5), "mean"), ((1.0, 0.5), 1), ((0.5, 1.0), 0)])
def test_the_mean_of_all_variants_is_tested_iff_it_is_best_in_validation(values, chosen, tmp_path, monkeypatch):
    write(tmp_path)
    contexts, setting = (30, 48), Setting("etth1", "S", 24)
    dataset = harness.load(setting, 48, tmp_path)
    tried, tested = ([error(part, v) for v in (*values, sum(values) / 2)] for part in (dataset.valid, dataset.test))

    def fit(name, setting, dataset, variant, **_):
        number = contexts.index(variant.context)
        return tried[number], Constant(variant.context, values[number]), 7

    monkeypatch.setattr(harness, "_fit", fit)
    monkeypatch.setattr(harness, "S4_VARIANTS", tuple(S4Variant(context=context) for context in contexts))
    found = harness.run("S4", setting, Budget(), torch.device("cpu"), folder=tmp_path)
    assert [one["valid_mse"] for one in found["tried"]] == pytest.approx(tried, rel=0.02)  # not every window is judged
    assert found["mse"] == pytest.approx(tested[2 if chosen == "mean" else chosen])
    if chosen == "mean":
        assert (found["combined"], found["steps"], found["parameters"], found["context"]) == (2, 14, 2, 48)
        assert "variant" not in found
    else:
        assert found["variant"] == found["tried"][chosen]["variant"]
        assert (found["steps"], found["parameters"], found["context"]) == (7, 1, contexts[chosen])
        assert "combined" not in found


def test_of_several_variants_the_best_in_validation_is_tested(tmp_path, monkeypatch):
    write(tmp_path)
    setting, device = Setting("etth1", "S", 24), torch.device("cpu")
    small = {"d_model": 4, "d_state": 2, "n_layers": 1}
    variants = (S4Variant(context=30, **small), S4Variant(context=48, centre="none", **small))
    monkeypatch.setattr(harness, "S4_VARIANTS", variants)
    fit = harness.run("S4", setting, Budget(steps=3, batch=8, looks=1, every=97), device, folder=tmp_path)
    assert [sorted(one) for one in fit["tried"]] == 2 * [["steps", "valid_mse", "variant"]] + [
        ["combined", "steps", "valid_mse"]
    ]
    best = min(fit["tried"], key=lambda one: one["valid_mse"])
    assert {key: fit[key] for key in best} == best
    assert fit["context"] == best.get("variant", {"context": 48})["context"]
    assert fit["windows"] == -(-(14400 - 11520 - 24 + 1) // 97)  # every row of the test part is forecast


@pytest.mark.soak  # processes at work are in tests/forecasting/test_stop.py
def test_side_by_side_it_finds_the_same(tmp_path):
    write(tmp_path)
    some = ["--data", str(tmp_path), "--device", "cpu", "--settings", "etth1-S-24,etth1-M-24", "--datasets", "etth1"]
    some += ["--steps", "2", "--batch", "8", "--every", "97", "--models", "NLinear,SeasonalNaive"]
    for name, processes in (("one", "1"), ("two", "2")):
        (tmp_path / name).mkdir()
        table.main([*some, "--out", str(tmp_path / name), "--processes", processes])
    one, two = (json.loads((tmp_path / name / "forecast-cpu.json").read_text()) for name in ("one", "two"))
    assert len(one["fits"]) == 4
    assert two["rows"] == one["rows"]
