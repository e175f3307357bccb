"""BIDMC: windows, labels, splits and scales, from made-up files of both releases and from the real records."""

import numpy as np
import pytest
import torch

from statespan.data.registry import load
from statespan.papers.datasets import bidmc  # noqa: F401 - registers its datasets
from statespan.papers.datasets.bidmc import read_archive, window_labels
from tests.data.real import real

SECONDS = 62  # 11 windows a record


def records(folder, count=10):
    """Records in PhysioNet's layout: PLETH is 10⁵ times the record's number plus the sample's, II its negative."""
    (folder / "bidmc").mkdir()
    for record in range(1, count + 1):
        t = np.arange(SECONDS * 125 + 1)
        pleth = 1e5 * record + t
        lines = [f"{k / 125:.3f}, 0.5, {p:.1f}, 0.1, 0.2, {-p:.1f}" for k, p in zip(t, pleth)]
        file = folder / "bidmc" / f"bidmc_{record:02d}_Signals.csv"
        file.write_text("\n".join(["Time [s], RESP, PLETH, V, AVR, II", *lines]) + "\n")
        rows = [f"{s}, {60 + record}, {60 + record}, {s}, {'NaN' if s < 40 else 97}" for s in range(SECONDS + 1)]
        file = folder / "bidmc" / f"bidmc_{record:02d}_Numerics.csv"
        file.write_text("\n".join(["Time [s], HR, PULSE, RESP, SpO2", *rows]) + "\n")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bidmc")
    records(folder)
    return folder


def everything(data, part="train"):
    split = getattr(data, part)
    return split.batch(list(range(len(split))))


def test_windows_and_their_labels(small):
    data = load("bidmc-rr", small, standard="none", standard_targets=False)
    parts = [everything(data, part) for part in ("train", "valid", "test")]
    assert [len(part.x) for part in parts] == [78, 16, 16]  # of 110 windows
    assert parts[0].x.shape == (78, 4000, 2)
    begins = set()
    for part in parts:
        begin = part.x[:, 0, 0] % 1e5
        assert (begin % 375 == 0).all()
        assert ((part.x[:, :, 0] - part.x[:, :1, 0]) == np.arange(4000)).all()
        assert (part.x[:, :, 1] == -part.x[:, :, 0]).all()
        assert np.allclose(part.y[:, 0], begin / 125 + 15.5)  # the monitor's RESP is the second
        begins |= set(part.x[:, 0, 0].tolist())
    assert len(begins) == 110
    assert (data.info.length, data.info.d_input, data.info.d_output, data.info.sampling_rate) == (4000, 2, 1, 125.0)
    assert data.info.scale == (1.0,)


def test_patients_are_kept_apart(small):
    data = load("bidmc-hr", small, split="patients", standard="none", standard_targets=False)
    people = [set((everything(data, part).x[:, 0, 0] // 1e5).int().tolist()) for part in ("train", "valid", "test")]
    assert [len(p) for p in people] == [8, 1, 1]
    assert len(set.union(*people)) == 10
    assert (everything(data).y[:, 0] == 60 + everything(data).x[:, 0, 0] // 1e5).all()


def test_windows_without_enough_values_are_dropped(small):
    data = load("bidmc-spo2", small)
    # windows that begin at 24, 27 and 30 s have 16, 19 and 22 values
    assert sum(len(part) for part in (data.train, data.valid, data.test)) == 30
    assert data.info.target_mean == (97.0,)
    assert data.info.target_std == (97.0,)  # a constant has no other scale than its magnitude
    starts, labels = window_labels(np.r_[np.full(17, np.nan), np.arange(17.0, 40)], 40 * 125)
    assert starts.tolist() == [375, 750]  # the first has 15 values
    assert labels.tolist() == [25.5, 27.0]


def test_scales(small):
    data = load("bidmc-hr", small)
    raw = load("bidmc-hr", small, standard="none", standard_targets=False)
    y, original = everything(data).y, everything(raw).y
    assert abs(y.mean()) < 1e-5
    assert abs(y.std(unbiased=False) - 1) < 1e-5
    assert np.allclose(y * data.info.scale[0] + data.info.target_mean[0], original, atol=1e-4)
    assert abs(everything(data).x.mean()) < 0.05  # over records, not windows
    window = everything(load("bidmc-hr", small, standard="window"), "test").x
    assert window.mean(1).abs().max() < 1e-4
    assert (window.std(1, unbiased=False) - 1).abs().max() < 1e-4


def archive(path, rows, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((rows, 2, 50)).astype(np.float32), rng.uniform(50, 90, rows).astype(np.float32)
    lines = [":".join([*(",".join(map(repr, d.tolist())) for d in row), repr(t)]) for row, t in zip(x, y.tolist())]
    head = "# comment\n@problemName BIDMC32HR\n@univariate false\n@dimension 2\n@targetlabel true\n@data\n"
    path.write_text(head + "\n".join(lines) + "\n")
    return x.transpose(0, 2, 1), y


def test_the_regression_archive(tmp_path):
    (tmp_path / "bidmc").mkdir()
    pairs = [archive(tmp_path / "bidmc" / f"BIDMC32HR_{part}.ts", n, n) for part, n in (("TRAIN", 14), ("TEST", 6))]
    x, y = read_archive(tmp_path / "bidmc" / "BIDMC32HR_TRAIN.ts")
    assert (x == pairs[0][0]).all()
    assert (y == pairs[0][1]).all()
    data = load("bidmc-hr", tmp_path, standard="none", standard_targets=False)
    found = [everything(data, part) for part in ("train", "valid", "test")]
    assert [len(part.x) for part in found] == [14, 3, 3]
    assert sorted(np.concatenate([part.y[:, 0] for part in found])) == sorted(
        np.concatenate([pair[1] for pair in pairs])
    )
    with pytest.raises(ValueError, match="split must be 'windows' for the release 'tser'"):
        load("bidmc-hr", tmp_path, split="patients")


@pytest.mark.parametrize("line", ["1,2:3,x:5", "1,2:3:5", "1,2,3:4,5,6:7", "7"])
def test_a_bad_line_of_the_archive_is_named(tmp_path, line):
    (tmp_path / "a.ts").write_text(f"@data\n1,2:3,4:5\n{line}\n")
    with pytest.raises(ValueError, match=r"a\.ts, line 3"):
        read_archive(tmp_path / "a.ts")


def test_a_file_without_a_signal_is_named(tmp_path):
    records(tmp_path, 1)
    (tmp_path / "bidmc" / "bidmc_01_Signals.csv").write_text("Time [s],PLETH\n0,1\n")
    with pytest.raises(ValueError, match=r"bidmc_01_Signals.csv has no column 'II'"):
        load("bidmc-hr", tmp_path)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The real records."""
    return real(tmp_path_factory.mktemp("records"), "bidmc")


@pytest.mark.real_data
def test_real_records(unpacked):
    for name, windows, mean in (("hr", 7950, 89.18), ("rr", 7915, 17.50), ("spo2", 7926, 96.72)):
        data = load(f"bidmc-{name}", unpacked)
        counts = [len(part) for part in (data.train, data.valid, data.test)]
        assert sum(counts) == windows
        assert counts[1] == counts[2] == int(0.15 * windows)
        assert abs(data.info.target_mean[0] - mean) < 0.3
    patients = load("bidmc-hr", unpacked, split="patients")
    assert [len(part) for part in (patients.train, patients.valid, patients.test)] == [39 * 150, 7 * 150, 7 * 150]


def test_windows_of_the_training_vary(small):
    assert load("bidmc-hr", small).augment is None
    moved = load("bidmc-hr", small, augment=True)
    assert (moved.augment.move, moved.augment.around, moved.augment.speed) == (2000, True, 0.0)
    batch = moved.train.batch([4, 4])
    changed = moved.augment(batch, torch.Generator().manual_seed(0))
    begins = (changed.x[:, :, 0] == batch.x[0, 0, 0]).nonzero()[:, 1].tolist()
    assert begins[0] != begins[1]
    for row, begin in zip(changed.x, begins, strict=True):
        assert torch.equal(row, batch.x[0].roll(begin, 0))
    assert torch.equal(changed.y, batch.y)
    faster = load("bidmc-hr", small, speed=0.2)
    batch = faster.train.batch(list(range(40)))
    changed = faster.augment(batch, torch.Generator().manual_seed(0))
    mean, std = faster.info.target_mean[0], faster.info.target_std[0]
    by = ((mean + std * changed.y) / (mean + std * batch.y)).log()
    assert -0.2 <= by.min() < -0.15
    assert 0.15 < by.max() <= 0.2
    slopes = [x[:, 2100, 0] - x[:, 1900, 0] for x in (changed.x, batch.x)]  # PLETH goes up by one a sample
    torch.testing.assert_close(slopes[0] / slopes[1], by.exp()[:, 0], atol=0.01, rtol=0)
    assert load("bidmc-spo2", small, speed=0.2).augment.rate is None
    with pytest.raises(ValueError, match="speed must be"):
        load("bidmc-hr", small, speed=1.5)


def test_training_reads_parts_of_its_windows(small):
    cropped = load("bidmc-hr", small, crop=26, standard="none")
    batch = cropped.train.batch([4] * 200)
    parts = cropped.augment(batch, torch.Generator().manual_seed(0))
    begins = (parts.x[:, 0, 0] - batch.x[0, 0, 0]).long()  # PLETH goes up by one a sample
    assert 26 * 125 <= parts.lengths.min() < 26 * 125 + 50
    assert 4000 - 50 < parts.lengths.max() <= 4000
    for part, begin, length in zip(parts.x, begins, parts.lengths, strict=True):
        assert torch.equal(part[:length], batch.x[0, begin : begin + length])
    assert begins.max() > 500
    assert torch.equal(parts.y, batch.y)
    assert cropped.valid.batch([0]).lengths is None
    assert cropped.test.batch([0]).x.shape == (1, 4000, 2)
    rolled = load("bidmc-hr", small, crop=16, augment=True).augment.changes
    assert (rolled[0].move, rolled[1].least) == (2000, 2000)
    assert load("bidmc-hr", small, crop=32).augment is None
    for wrong in (0, 33):
        with pytest.raises(ValueError, match="crop must be"):
            load("bidmc-hr", small, crop=wrong)
