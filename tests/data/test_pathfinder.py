"""Pathfinder: what is drawn, and the reader of the release."""

import numpy as np
import pytest

from statespan.data import load, pathfinder, snakes
from statespan.data.augment import Turn
from statespan.data.strokes import STYLES, tables


def distance(a, b, length):
    """Of two dashes (end, unit vector) by brute force."""
    steps = np.linspace(0, length, 21)[:, None]
    p, q = (end - steps * unit for end, unit in (a, b))
    return np.sqrt(((p[:, None] - q[None]) ** 2).sum(-1)).min()


@pytest.mark.parametrize("size", [32, 128])
def test_contours_are_chains_that_keep_their_distance(size, monkeypatch):
    style = STYLES[size]
    margin = style.margins[-1]
    t = tables(style, margin)
    keys = np.arange(1, 4, dtype=np.uint64) * np.uint64(7919)
    long = snakes._contours(t, keys)
    dashes = snakes._distractors(t, snakes.Streams(keys), long)
    assert dashes.end.shape == (2, 3, 28 + 4 * style.distractors)
    for row in range(3):
        placed = np.flatnonzero(dashes.end[0, row] != snakes.NOWHERE)
        assert len(placed) >= 28 + 4
        chain = {i: i % 2 if i < 28 else 2 + (i - 28) // 4 for i in placed}
        for i in placed:
            end, unit = dashes.end[:, row, i], dashes.unit[:, row, i]
            assert (end >= 1 + margin * (i < 28)).all()
            assert (end <= size - 2 - margin * (i < 28)).all()
            for j in placed[placed < i]:
                other = dashes.end[:, row, j], dashes.unit[:, row, j]
                gap = distance((end, unit), other, style.dash)
                if chain[i] == chain[j] and i - j == (2 if i < 28 else 1):
                    assert gap <= 2 * margin + 1.5  # they follow each other
                    turn = np.degrees(np.arccos(np.clip(unit @ other[1], -1, 1)))
                    assert turn <= 90 / style.continuity + 1e-3
                else:
                    assert gap > 2 * margin


def test_an_image_depends_on_its_seed_and_number_alone(monkeypatch):
    x, y = snakes.images(STYLES[32], 5, np.arange(6))
    monkeypatch.setattr(snakes, "TOGETHER", 100)
    alone, label = snakes.images(STYLES[32], 5, np.array([4]))
    assert (alone[0] == x[4]).all()
    assert label[0] == y[4]
    assert (snakes.images(STYLES[32], 6, np.array([4]))[0][0] != x[4]).any()


def test_images_are_balanced_and_have_two_discs():
    x, y = snakes.images(STYLES[32], 0, np.arange(300))
    assert x.max((1, 2)).min() == 255
    assert y.mean() == pytest.approx(0.5, abs=0.09)
    assert x.mean() == pytest.approx(24, abs=1.5)
    # a disc is brighter than anything else in a square of 3 x 3: at most two such places, at least one (they may touch)
    square = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2)).mean((3, 4)) / 255
    bright = square.max((1, 2))
    assert bright.min() > 0.65


@pytest.mark.parametrize("size", [32, 128])
def test_labels_say_whether_the_discs_are_on_one_contour(size):
    style = STYLES[size]
    t = tables(style, style.margins[0])
    keys = np.arange(1, 9, dtype=np.uint64) * np.uint64(104729)
    long = snakes._contours(t, keys)
    x, y = snakes._finish(t, snakes.Streams(keys), long)
    beginnings = long.end[..., :2] - t.body[long.direction[:, :2]].transpose(2, 0, 1)
    for row in range(8):
        marked = []
        for tips in (beginnings, long.end[..., -2:]):
            places = [tips[:, row, snake].astype(int) for snake in range(2)]
            around = [x[row, down - 1 : down + 2, right - 1 : right + 2].astype(float).mean() for down, right in places]
            assert max(around) > 1.3 * min(around)  # one of both has a disc
            marked.append(int(np.argmax(around)))
        assert (marked[0] == marked[1]) == bool(y[row])
    assert 0 < y.sum() < 8


def test_drawn_data_is_cached_and_complete(tmp_path, monkeypatch):
    monkeypatch.setitem(pathfinder.PIECE, 32, 20)
    monkeypatch.setattr(pathfinder.subprocess, "run", run_here)
    data = load("pathfinder", tmp_path, train=50, valid=20, test=10)
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


def test_augmented_training_images_are_turned_and_mirrored(tmp_path):
    counts = {"train": 5, "valid": 3, "test": 2}
    assert load("pathfinder", tmp_path, **counts).augment is None
    assert load("pathfinder", tmp_path, **counts, augment=True).augment == Turn(32)


def run_here(command, stdout, check, env):
    """What the process would do, without starting one."""
    size, seed, first, count = map(int, command[3:])
    x, y = snakes.images(STYLES[size], seed, np.arange(first, first + count))

    class Done:
        stdout = y.tobytes() + x.tobytes()

    return Done


def test_a_process_of_its_own_draws_the_same(monkeypatch):
    monkeypatch.setitem(pathfinder.PIECE, 32, 3)
    labels = []
    pieces = list(pathfinder._pieces(32, 9, 4, labels.append))
    x, y = snakes.images(STYLES[32], 9, np.arange(4))
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
