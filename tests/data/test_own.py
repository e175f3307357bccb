"""A user's own data: folders, tables and arrays; mistakes are named."""

import numpy as np
import pytest
import torch

from statespan.data import load
from tests.data.wav import wav_bytes


def sine(pitch, n=80):
    return np.sin(2 * np.pi * pitch * np.arange(n) / n)


@pytest.fixture
def classes(tmp_path):
    for kind, pitch in (("low", 2), ("high", 9)):
        (tmp_path / "sounds" / kind).mkdir(parents=True)
        for i in range(10):
            samples = (20_000 * sine(pitch, 80 + i)).astype(np.int16)[:, None]
            (tmp_path / "sounds" / kind / f"{i}.wav").write_bytes(wav_bytes(samples, 8000))
    return tmp_path / "sounds"


def test_a_folder_of_classes_with_wav_files(classes):
    data = load("own", path=str(classes))
    assert data.info.classes == ("high", "low")
    assert (data.info.length, data.info.d_input, data.info.sampling_rate) == (89, 1, 8000.0)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [14, 2, 4]
    assert sorted(data.valid.batch([0, 1]).y.tolist()) == [0, 1]
    batch = data.train.batch(list(range(14)))
    assert sorted(batch.lengths.tolist())[0] >= 80
    inside = torch.arange(89) < batch.lengths[:, None]
    assert (batch.x[~inside] == 0).all()
    assert batch.x[inside].mean().abs() < 1e-4
    assert batch.x[inside].std() == pytest.approx(1.0, abs=1e-2)
    half = load("own", path=str(classes), subsample=2, standardize=False)
    raw = load("own", path=str(classes), standardize=False)
    assert half.info.sampling_rate == 4000.0
    assert torch.equal(half.test.batch([1]).x[0, :40], raw.test.batch([1]).x[0, :80:2])
    assert raw.test.batch([0]).x.abs().max() == pytest.approx(20_000 / 32768, abs=0.01)


def test_a_folder_with_given_splits_and_other_formats(tmp_path):
    for part, count in (("train", 6), ("test", 3)):
        for kind in "ab":
            folder = tmp_path / part / kind
            folder.mkdir(parents=True)
            for i in range(count):
                x = np.full((5, 2), i + 10 * (part == "test"), np.float32)
                if i % 3 == 0:
                    np.save(folder / f"{i}.npy", x)
                elif i % 3 == 1:
                    np.savez(folder / f"{i}.npz", x=x, other=np.zeros(2))
                else:
                    np.savetxt(folder / f"{i}.csv", x, delimiter=",", header="left,right", comments="")
    data = load("own", path=str(tmp_path), valid=0.34, standardize=False)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [8, 4, 6]
    assert sorted(data.test.batch(list(range(6))).x[:, 0, 0].tolist()) == [10, 10, 11, 11, 12, 12]
    assert data.train.batch([0]).lengths is None  # all of one length
    assert data.train.batch([0]).x.shape == (1, 5, 2)


def test_one_table_to_classify_or_to_predict(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{i},{2 * i},{'ab'[i % 2]},{'test' if i > 15 else 'train'}" for i in range(20)]
    path.write_text("t0,t1,kind,split\n" + "\n".join(rows))
    data = load("own", path=str(path), target="kind", valid=0.25, standardize=False)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [12, 4, 4]
    batch = data.test.batch([0, 1, 2, 3])
    assert batch.x[..., 0].tolist() == [[16, 32], [17, 34], [18, 36], [19, 38]]
    assert batch.y.tolist() == [0, 1, 0, 1]
    rows = [f"{i},{2 * i},{i / 10},{-i}" for i in range(20)]
    path.write_text("t0,t1,mass,charge\n" + "\n".join(rows))
    data = load("own", path=str(path), target="mass,charge", task="regression", standardize=False)
    assert (data.info.task, data.info.d_output, data.info.classes) == ("regression", 2, ())
    assert [len(part) for part in (data.train, data.valid, data.test)] == [14, 2, 4]
    batch = data.train.batch([3])
    first = batch.x[0, 0, 0].item()
    assert batch.y[0].tolist() == pytest.approx([first / 10, -first])
    scaled = load("own", path=str(path), target="mass,charge", task="regression")
    y = scaled.train.batch(list(range(14))).y
    assert y.mean(0).abs().max() < 1e-6
    assert y.square().mean(0).tolist() == pytest.approx([1, 1], rel=1e-5)
    back = y * torch.tensor(scaled.info.target_std) + torch.tensor(scaled.info.target_mean)
    torch.testing.assert_close(back, data.train.batch(list(range(14))).y)
    assert scaled.info.columns == ("mass", "charge")
    assert scaled.info.scale == scaled.info.target_std  # errors are multiplied by it


def test_a_folder_with_labels(tmp_path):
    lines = ["file,y,split"]
    for i in range(6):
        np.save(tmp_path / f"{i}.npy", np.full(4, i))
        lines.append(f"{i}.npy,{i / 2},{('train', 'valid', 'test')[i % 3]}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    data = load("own", path=str(tmp_path), task="regression", standardize=False)
    assert data.valid.batch([0, 1]).y.tolist() == [[0.5], [2.0]]
    assert data.test.batch([0, 1]).x[:, 0, 0].tolist() == [2, 5]


def test_one_npz_file_with_lengths_and_classes_in_numerical_order(tmp_path):
    x = np.arange(40 * 6 * 2, dtype=np.float64).reshape(40, 6, 2)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(40) % 11, lengths=np.arange(40) % 6 + 1)
    data = load("own", path=str(tmp_path / "a.npz"), standardize=False)
    assert data.info.classes == tuple(str(i) for i in range(11))
    batch = data.train.batch(list(range(len(data.train))))
    first = (batch.x[:, 0, 0] / 12).int()
    assert batch.y.tolist() == (first % 11).tolist()
    assert batch.lengths.tolist() == (first % 6 + 1).tolist()


@pytest.mark.parametrize(
    ("make", "options", "word"),
    [
        (lambda p: None, {"path": "nowhere"}, "nowhere"),
        (lambda p: None, {}, "subfolder for each class"),
        (lambda p: None, {"task": "regression"}, r"labels\.csv"),
        (lambda p: None, {"task": "sorting"}, "task"),
        (lambda p: (p / "labels.csv").write_text("file,z\na.npy,1"), {}, "column 'y'"),
        (lambda p: (p / "labels.csv").write_text("file,y\na.npy,1"), {}, "a.npy"),
        (lambda p: (p / "t.csv").write_text("a,y\n1,2\n1\n"), {"path": "t.csv"}, "line 3"),
        (lambda p: (p / "t.csv").write_text("a,y\n1,2\nx,3\n"), {"path": "t.csv"}, "line 3.*'x'"),
        (lambda p: (p / "t.csv").write_text("1,2\n3,4\n"), {"path": "t.csv"}, "no header"),
        (lambda p: np.savez(p / "a.npz", x=np.zeros((3, 2))), {"path": "a.npz"}, "array y"),
        (lambda p: np.savez(p / "a.npz", x=np.zeros((3, 2)), y=np.zeros(4)), {"path": "a.npz"}, r"\(3, 2\)"),
        (lambda p: np.savez(p / "a.npz", x=np.zeros((3, 2)), y=np.zeros(3)), {"path": "a.npz"}, "two classes"),
        (lambda p: np.savez(p / "a.npz", x=np.full((3, 2), np.nan), y=np.arange(3)), {"path": "a.npz"}, "finite"),
        (lambda p: (p / "a.npz").write_bytes(b"PK not a zip"), {"path": "a.npz"}, r"a\.npz"),
        (
            lambda p: np.savez(p / "a.npz", x=np.zeros((4, 2)), y=np.array([{}, 1, 2, 3], dtype=object)),
            {"path": "a.npz"},
            r"a\.npz",
        ),
        (
            lambda p: np.savez(
                p / "a.npz", x=np.zeros((4, 2)), y=np.arange(4), split=np.array(["train"] * 3 + ["dev"])
            ),
            {"path": "a.npz"},
            "'dev'",
        ),
        (lambda p: np.savez(p / "a.npz", x=np.zeros((4, 2)), y=np.arange(4)), {"path": "a.npz"}, "no rows are left"),
    ],
)
def test_mistakes_are_named(tmp_path, make, options, word):
    make(tmp_path)
    options = {**options, "path": str(tmp_path / options.get("path", ""))}
    with pytest.raises((ValueError, FileNotFoundError), match=word):
        load("own", **options)


def test_a_sampling_rate_is_given_or_that_of_the_files(tmp_path):
    for folder, ending in (("arrays", "npy"), ("audio", "wav")):
        for i in range(12):
            place = tmp_path / folder / "ab"[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            x = np.arange(i, i + 20, dtype=np.int16)[:, None]
            if ending == "npy":
                np.save(place / f"{i}.npy", x)
            else:
                (place / f"{i}.wav").write_bytes(wav_bytes(x, 8000))
    arrays, audio = str(tmp_path / "arrays"), str(tmp_path / "audio")
    assert load("own", path=arrays).info.sampling_rate is None
    assert load("own", path=arrays, sampling_rate=50.0, subsample=2).info.sampling_rate == 25.0
    assert load("own", path=audio, sampling_rate=8000.0, subsample=2).info.sampling_rate == 4000.0
    with pytest.raises(ValueError, match=r"sampling_rate must be that of the files in .*audio, 8000, got 50"):
        load("own", path=audio, sampling_rate=50.0)
    with pytest.raises(ValueError, match=r"sampling_rate must be a number > 0, got -5\.0"):
        load("own", path=arrays, sampling_rate=-5.0)
