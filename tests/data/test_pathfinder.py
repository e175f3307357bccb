"""Pathfinder: what is drawn, and the reader of the release."""

import numpy as np
import pytest

from statespan.data import load, pathfinder, snakes
from statespan.data.augment import Turn
from statespan.data.room import NOWHERE, room
from statespan.data.strokes import STYLES, disc, shrink, style_of, tables


def painted(t, at, direction):
    """How much of each pixel is taken by some dashes and by the image's edge; nothing beyond it."""
    size, half = t.style.size, t.half
    taken = np.zeros((size + 4 * half,) * 2, int)
    for (down, right), way in zip(at, direction):
        if way != NOWHERE:
            where = slice(down + half, down + 3 * half + 1), slice(right + half, right + 3 * half + 1)
            taken[where] = np.maximum(taken[where], t.space[way].reshape(2 * half + 1, -1))
    taken[: 2 * half] = taken[-2 * half :] = 0
    taken[:, : 2 * half] = taken[:, -2 * half :] = 0
    inside = taken[2 * half : -2 * half, 2 * half : -2 * half]
    inside[[0, -1]] = inside[:, [0, -1]] = 255
    return taken


def fits(t, taken, head, direction):
    """Whether there is room for a dash: of no pixel 1.8 times or more."""
    half = t.half
    there = taken[head[0] + half : head[0] + 3 * half + 1, head[1] + half : head[1] + 3 * half + 1]
    own = t.space[direction].reshape(2 * half + 1, -1) * np.ones_like(there)
    size = t.style.size
    rows, columns = (np.arange(x - half, x + half + 1) for x in head)
    own[(rows < 0) | (rows >= size)] = 0
    own[:, (columns < 0) | (columns >= size)] = 0
    return (there + own).max() / 255 < 1.8 - 1e-9


MARGINS = [(32, 1), (128, 2), (128, 3)]


@pytest.mark.parametrize(("size", "margin"), MARGINS)
def test_room_is_what_painting_every_dash_says(size, margin):
    t, here = tables(STYLES[size], margin), room(STYLES[size], margin)
    rng = np.random.default_rng(size + margin)
    count = 300
    at = rng.integers(0, size, (count, 12, 2)).astype(np.int32)
    direction = rng.integers(-1, len(t.space), (count, 12))
    onward = rng.integers(0, len(here.clash), count)
    # most near one of the dashes, and some anywhere
    head = np.where(
        rng.random((count, 1)) < 0.7, at[:, 0] + rng.integers(-2 * t.half, 2 * t.half + 1, (count, 2)), at[:, 1]
    )
    head = np.clip(head, 0, size - 1).astype(np.int32)
    degree, kind = rng.integers(0, 360, count), here.kind[direction]
    found = here.fits(onward, head, at, kind)
    around = here.around(head[:, None], at, kind)[:, 0]
    free = here.free(degree, head, at, kind)
    for i in range(count):
        taken = painted(t, at[i], direction[i])
        assert found[i] == fits(t, taken, head[i], 360 + onward[i])
        edge = 2 * t.half
        near = [taken[down, right] for down, right in head[i] + edge + disc(margin)]
        assert around[i] == max(near)
        ends = [head[i] + t.body[degree[i]]]
        ends.append(ends[0] + t.back[degree[i]])
        inside = all((end >= 0).all() and (end < size).all() for end in ends)
        assert free[i] == (
            inside and max(taken[down, right] for down, right in head[i] + edge + t.solid[degree[i]]) <= 76
        )
    assert 0.2 < found.mean() < 0.9
    assert 0.05 < free.mean() < 0.9
    assert 0.1 < (around == 0).mean() < 0.9


def slow_extension(t, stream, others, pivot, before):
    """The next dash of one contour by the rules alone: its pivot, head and direction, or None."""
    pivot = pivot + t.forward[before]
    taken = painted(t, *zip(*others)) if others else painted(t, [], [])
    heads = pivot + t.head[before]
    free = []
    for head in heads:
        inside = (head >= 0).all() and (head < t.style.size).all()
        near = [taken[down, right] for down, right in head + 2 * t.half + disc(t.margin)] if inside else [255]
        free.append(1 - max(near) / 255)
    sums = np.cumsum(t.weight[before] * free)
    for _ in range(3):
        if sums[-1] <= 1e-4:
            break
        pick = int(np.searchsorted(sums, stream.draw()[0] * sums[-1], side="right"))
        if fits(t, taken, heads[pick], 360 + t.near[before, pick]):
            return pivot, heads[pick], 360 + t.near[before, pick]
    return None


def slow_contours(t, key):
    """One attempt at two long contours: their dashes, as many as there are before a dead end."""
    stream, style = snakes.Streams(np.array([key])), t.style
    first, chosen = stream.below(360)[0], stream.draw()[0]
    turn, second = np.radians(stream.below(360)[0]), stream.below(360)[0]
    tails = [t.begin[first, int(chosen * t.begins[first])]]
    tails.append(tails[0] + np.rint([style.apart * np.sin(turn), style.apart * np.cos(turn)]).astype(int))
    dashes = list(zip(tails, (first, second)))
    pivots = [tail + t.body[way] + t.back[way] for tail, way in dashes]
    while len(dashes) < 28:
        snake = len(dashes) % 2
        found = slow_extension(t, stream, dashes[:-2], pivots[snake], dashes[-2][1])
        if found is None:
            break
        pivots[snake] = found[0]
        dashes.append(found[1:])
    return dashes


@pytest.mark.parametrize(("size", "margin"), MARGINS)
def test_attempts_are_those_of_the_rules(size, margin):
    here = room(STYLES[size], margin)
    assert (here.t.begins > 0).any()
    keys = snakes._mix(np.arange(1, 41, dtype=np.uint64))
    rows, dashes = snakes._grow(here, snakes.Streams(keys))
    lengths = []
    for row, key in enumerate(keys):
        count = (dashes.direction[row] != NOWHERE).sum()
        if not here.t.begins[snakes.Streams(keys[[row]]).below(360)[0]]:
            assert count == 0  # there is no room in the middle in this direction
            continue
        wanted = slow_contours(here.t, key)
        assert count == len(wanted)
        assert dashes.direction[row, :count].tolist() == [way for _, way in wanted]
        assert dashes.at[row, :count].tolist() == [list(at) for at, _ in wanted]
        assert (row in rows) == (count == 28)
        lengths.append(count)
    assert min(lengths) < 12 < max(lengths)


def test_distractors_are_those_of_the_rules():
    here = room(STYLES[32], 1)
    t, keys = here.t, snakes._mix(np.arange(1, 25, dtype=np.uint64))
    long = snakes.contours(here, keys)
    dashes = snakes.with_distractors(here, snakes.Streams(keys), long)
    failed = 0
    for row, key in enumerate(keys):
        stream = snakes.Streams(np.array([key]))
        there = [(long.at[row, i], long.direction[row, i]) for i in range(28) if i != 26]
        for first in range(28, 48, 4):
            for _ in range(5):
                own = slow_distractor(t, stream, there)
                if own:
                    break
            failed += not own
            there += own
            assert dashes.direction[row, first : first + 4].tolist() == ([way for _, way in own] or [NOWHERE] * 4)
            assert not own or dashes.at[row, first : first + 4].tolist() == [list(at) for at, _ in own]
    assert 0 < failed < 60


def slow_distractor(t, stream, there):
    """One attempt at a short contour: its dashes, or none."""
    way, taken = stream.below(360)[0], painted(t, *zip(*there))
    for _ in range(256):
        tail = np.array([stream.below(32)[0], stream.below(32)[0]])
        head = tail + t.body[way]
        ends = [head, head + t.back[way]]
        needed = [taken[down, right] for down, right in tail + 2 * t.half + t.solid[way]]
        if max(needed) <= 76 and all((end >= 0).all() and (end < 32).all() for end in ends):
            break
    else:
        return []
    own, pivot = [(tail, way)], ends[1]
    while len(own) < 4:
        found = slow_extension(t, stream, there + own[:-1], pivot, own[-1][1])
        if found is None:
            return []
        pivot = found[0]
        own.append(found[1:])
    return own


@pytest.mark.parametrize(("size", "share"), [(32, 0.3), (128, 0.1)])
def test_the_tips_of_both_contours_cross_in_some_images(size, share):
    style = STYLES[size]
    here = room(style, style.margins[0])
    long = snakes.contours(here, np.arange(1, 201, dtype=np.uint64) * np.uint64(7919))
    crossed = np.zeros(200, bool)
    for n in range(2, 28):
        tip = long.at[:, [n - 1]], here.kind[long.direction[:, [n - 1]]]
        crossed |= ~here.fits(long.direction[:, n] - 360, long.at[:, n], *tip)
    assert crossed.mean() == pytest.approx(share, abs=0.07)


def test_space_is_counted_in_pixels():
    """Level dashes of 32 x 32 images may be two pixels apart and not one; at an edge one pixel is free."""
    here = room(STYLES[32], 1)
    level = next(i for i, ways in enumerate(here.t.head[360:]) if tuple(ways[0]) == (0, 2))
    one = np.array([[[15, 15]]], np.int32), here.kind[[[360 + level]]]
    apart = [bool(here.fits(np.array([level]), np.array([[15 + d, 15]], np.int32), *one)[0]) for d in (1, 2, 3)]
    assert apart == [False, True, True]
    edge = [bool(here.fits(np.array([level]), np.array([[d, 25]], np.int32), *one)[0]) for d in (0, 1, 2)]
    assert edge == [False, False, True]


def test_a_contour_begins_where_the_pixel_below_and_to_the_right_is_free():
    """So the benchmark's own search has it."""
    t = tables(STYLES[32], 1)
    assert {tuple(point) for point in t.solid[180]} == {(1, 1), (1, 2), (1, 3)}  # to the right


@pytest.mark.parametrize("size", [32, 128])
def test_discs_are_shrunk_from_twice_the_size(size):
    image = pytest.importorskip("PIL.Image")
    style = STYLES[size]
    t, middle = tables(style, style.margins[0]), size // 2
    down, right = np.ogrid[: 2 * size, : 2 * size]
    fine = (down - 2 * middle) ** 2 + (right - 2 * middle) ** 2 <= (2 * style.disc) ** 2
    whole = image.fromarray(255 * fine.astype(np.uint8)).resize((size, size), image.Resampling.LANCZOS)
    around = slice(middle - t.half, middle + t.half + 1)
    wanted = np.asarray(whole).astype(int)[around, around]
    assert np.abs(t.spot.reshape(wanted.shape) - wanted).max() <= 1


def test_images_are_shrunk_as_pillow_does():
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for n, size in [(17, 9), (18, 9), (41, 21)]:
        fine = rng.random((n, n)) < 0.3
        wanted = image.fromarray(255 * fine.astype(np.uint8)).resize((size, size), image.Resampling.LANCZOS)
        assert np.abs(shrink(fine, size).astype(int) - np.asarray(wanted)).max() <= 1


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
    assert x.mean() == pytest.approx(27.7, abs=1.5)
    # a disc is brighter than anything else in a square of 3 x 3: at most two such places, at least one (they may touch)
    square = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2)).mean((3, 4)) / 255
    bright = square.max((1, 2))
    assert bright.min() > 0.6


@pytest.mark.parametrize("size", [32, 128])
def test_labels_say_whether_the_discs_are_on_one_contour(size):
    style = STYLES[size]
    here = room(style, style.margins[0])
    keys = np.arange(1, 9, dtype=np.uint64) * np.uint64(104729)
    long = snakes.contours(here, keys)
    x, y = snakes.finish(here, snakes.Streams(keys), long)
    for row in range(8):
        marked = []
        for tips in (long.at[:, :2], long.at[:, -2:]):
            places = tips[row]
            around = [x[row, down - 1 : down + 2, right - 1 : right + 2].astype(float).mean() for down, right in places]
            assert max(around) > 1.3 * min(around)  # one of both has a disc
            marked.append(int(np.argmax(around)))
        assert (marked[0] == marked[1]) == bool(y[row])
    assert 0 < y.sum() < 8


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
    """Places and numbers of dashes as the benchmark's script has them; the rest is as in the level of the papers."""
    assert [style_of(32, n) for n in (6, 9, 14)][-1] == STYLES[32]
    assert style_of(128, 14) == STYLES[128]
    found = [(s.contour, s.short, s.distractors) for s in (style_of(size, n) for size in (32, 128) for n in (6, 9, 14))]
    assert found == [(6, 2, 10), (9, 3, 6), (14, 4, 5), (6, 2, 17), (9, 3, 11), (14, 4, 8)]
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
