"""Pathfinder as a dataset: images that are drawn and kept, and the reader of the release."""

import numpy as np
import pytest

from statespan.data import load
from statespan.data.augment import Turn
from statespan.papers.datasets.pathfinder import dataset as pathfinder
from statespan.papers.datasets.pathfinder import snakes
from statespan.papers.datasets.pathfinder.strokes import STYLES, style_of


def test_drawn_data_is_cached_and_complete(tmp_path, monkeypatch):
    monkeypatch.setitem(pathfinder.PIECE, 32, 20)
    monkeypatch.setattr(pathfinder.subprocess, "run", run_here)
    seen = []
    data = load("pathfinder", tmp_path, train=50, valid=20, test=10, progress=lambda *step: seen.append(step))
    assert seen[:3] == [("pathfinder32", 1024 * done, 51200) for done in (20, 40, 50)]
    assert [len(part) for part in (data.train, data.valid, data.test)] == [50, 20, 10]
    batch = data.train.batch([45])
    x, y = snakes.images(STYLES[32], 126, np.array([45]))
    assert (batch.x[0, :, 0] * 255).round().int().tolist() == x[0].reshape(-1).tolist()
    assert batch.y.tolist() == y.tolist()
    assert batch.x.max() == 1.0
    centred = load("pathfinder", tmp_path, train=50, valid=20, test=10, center=True).train.batch([45]).x
    assert centred.min() == -1.0
    assert centred.max() == 1.0
    assert (data.valid.arrays["x"][0] != data.train.arrays["x"][0]).any()


def test_images_that_an_earlier_version_kept_are_not_used(tmp_path, monkeypatch):
    counts = {"train": 3, "valid": 1, "test": 1}
    blank, labels = np.zeros((3, 32, 32), np.uint8), np.zeros(3, np.uint8)
    with monkeypatch.context() as earlier:
        earlier.setattr(pathfinder, "VERSION", 2)
        earlier.setattr(
            pathfinder, "images", lambda style, seed, numbers: (blank[: len(numbers)], labels[: len(numbers)])
        )
        assert load("pathfinder", tmp_path, **counts).train.arrays["x"].max() == 0
    assert load("pathfinder", tmp_path, **counts).train.arrays["x"].max() == 255


def test_augmented_training_images_are_turned_and_mirrored(tmp_path):
    counts = {"train": 5, "valid": 3, "test": 2}
    assert load("pathfinder", tmp_path, **counts).augment is None
    assert load("pathfinder", tmp_path, **counts, augment=True).augment == Turn(32)


def run_here(command, stdout, check, env):
    """What the process would do, without starting one."""
    size, contour, seed, first, count = map(int, command[3:])
    x, y = snakes.images(style_of(size, contour), seed, np.arange(first, first + count))

    class Done:
        stdout = y.tobytes() + x.tobytes()

    return Done


@pytest.mark.share(3)
@pytest.mark.parametrize("contour", [9, 14])
def test_a_process_of_its_own_draws_the_same(monkeypatch, contour):
    monkeypatch.setitem(pathfinder.PIECE, 32, 3)
    labels, style = [], style_of(32, contour)
    pieces = list(pathfinder._pieces(style, 9, 4, labels.append))
    x, y = snakes.images(style, 9, np.arange(4))
    assert (np.concatenate(pieces) == x.reshape(4, -1)).all()
    assert (np.concatenate(labels) == y).all()


@pytest.fixture
def release(tmp_path):
    image = pytest.importorskip("PIL.Image")
    base = tmp_path / "pathfinder32" / "curv_contour_length_14"
    (base / "metadata").mkdir(parents=True)
    for k in range(3):
        (base / "imgs" / str(k)).mkdir(parents=True)
        lines = []
        for i in range(10):
            number = 10 * k + i
            pixels = np.zeros((32, 32), np.uint8)
            pixels[0, 0], pixels[1, 2] = number, 200
            image.fromarray(pixels).save(base / "imgs" / str(k) / f"sample_{i}.png")
            lines.append(f"imgs/{k} sample_{i}.png {i} {number % 2} 1.0 14 4 2 0.5 1 1\n")
        (base / "metadata" / f"{k}.npy").write_text("".join(lines))
    (base / "imgs" / "0" / "sample_7.png").write_bytes(b"")  # as one is in the release
    return tmp_path


def test_the_release_is_read_with_its_labels(release):
    data = load("pathfinder", release)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [25, 2, 2]
    numbers = []
    for part in (data.train, data.valid, data.test):
        batch = part.batch(list(range(len(part))))
        number = (batch.x[:, 0, 0] * 255).round().int()
        assert batch.y.tolist() == (number % 2).tolist()
        assert (batch.x[:, 34, 0] * 255).round().unique().tolist() == [200]
        numbers += number.tolist()
    assert sorted(numbers) == [n for n in range(30) if n != 7]


def test_metadata_as_the_script_writes_it_and_paths_that_lead_outside(release):
    base = release / "pathfinder32" / "curv_contour_length_14"
    rows = [line.split() for line in (base / "metadata" / "1.npy").read_text().splitlines()]
    np.save(base / "metadata" / "1.npy", np.array(rows))
    assert len(load("pathfinder", release).train) == 25
    (base / "metadata" / "2.npy").write_text("../.. secret.png 0 1 1.8\n")
    with pytest.raises(ValueError, match=r"2\.npy, row 1"):
        load("pathfinder", release)


def test_easier_levels_have_shorter_contours(tmp_path):
    """Lengths of contours as the benchmark's metadata has them; the rest is as in the level of the papers."""
    assert [style_of(32, n) for n in (6, 9, 14)][-1] == STYLES[32]
    assert style_of(128, 14) == STYLES[128]
    found = [(s.contour, s.short, s.distractors) for s in (style_of(size, n) for size in (32, 128) for n in (6, 9, 14))]
    assert found == [(6, 2, 10), (9, 3, 10), (14, 4, 10), (6, 2, 18), (9, 3, 18), (14, 4, 18)]
    counts = {"train": 60, "valid": 3, "test": 2}
    bright = [
        (load("pathfinder", tmp_path, **counts, contour=n).train.arrays["x"] > 0).sum(1).mean() for n in (6, 9, 14)
    ]
    assert bright[0] < bright[1] < bright[2]  # three sets, each with a cache of its own
    assert load("pathfinder", tmp_path, **counts).train.arrays["x"].tolist() == (
        load("pathfinder", tmp_path, **counts, contour=14).train.arrays["x"].tolist()
    )
    with pytest.raises(ValueError, match=r"contour must be one of \(6, 9, 14\), the levels of the benchmark, got 7"):
        load("pathfinder", tmp_path, contour=7)


def test_each_level_of_the_release_is_read_from_its_folder(release):
    base = release / "pathfinder32"
    (base / "curv_contour_length_14").rename(base / "curv_baseline")
    data = load("pathfinder", release, contour=6)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [25, 2, 2]
    assert len(load("pathfinder", release, train=4, valid=1, test=1).train) == 4  # is not here, so it is drawn
