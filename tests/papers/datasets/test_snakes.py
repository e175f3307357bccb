"""What Pathfinder images are made of: contours that grow, distractors and discs, by the benchmark's rules."""

from math import ceil, cos, pi, sin

import numpy as np
import pytest

from statespan.papers.datasets.pathfinder import snakes
from statespan.papers.datasets.pathfinder.clearance import NOWHERE, clearance
from statespan.papers.datasets.pathfinder.strokes import STYLES, disc, step, tables


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
    t, here = tables(STYLES[size], margin), clearance(STYLES[size], margin)
    rng = np.random.default_rng(size + margin)
    count = 300
    at = rng.integers(0, size, (count, 12, 2)).astype(np.int32)
    direction = rng.integers(-1, len(t.space), (count, 12))
    onward = rng.integers(0, len(here.least), count)
    # most near one of the dashes, and some anywhere
    head = np.where(
        rng.random((count, 1)) < 0.7, at[:, 0] + rng.integers(-2 * t.half, 2 * t.half + 1, (count, 2)), at[:, 1]
    )
    head = np.clip(head, 0, size - 1).astype(np.int32)
    degree, kind = rng.integers(0, 360, count), here.kind[direction]
    found = here.fits(onward, head, at, kind)
    steps = rng.integers(-t.margin, t.margin + 1, (count, 3, 2))
    around = here.around(head, steps, at, kind)
    free = here.free(degree, head, at, kind)
    for i in range(count):
        taken = painted(t, at[i], direction[i])
        assert found[i] == fits(t, taken, head[i], 360 + onward[i])
        edge = 2 * t.half
        for point, most in zip(head[i] + steps[i], around[i]):
            inside = (point >= 0).all() and (point < size).all()
            near = [taken[down, right] for down, right in point + edge + disc(margin)] if inside else [255]
            assert most == max(near)
        assert free[i] == (max(taken[down, right] for down, right in head[i] + edge + t.solid[degree[i]]) <= 76)
    assert 0.2 < found.mean() < 0.9
    assert 0.05 < free.mean() < 0.9
    assert 0.1 < (around == 0).mean() < 0.9


def moved(point, by):
    """A point moved by a step: whole number and float are added, and the sum is rounded up."""
    return np.array([ceil(int(x) + float(dx)) for x, dx in zip(point, by)])


def slow_extension(t, stream, others, pivot, before):
    """The next dash of one contour by the rules alone: its pivot, head and direction, or None."""
    pivot = moved(pivot, t.forward[before])
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
    first, chosen = t.starts[stream.below(len(t.starts))[0]], stream.draw()[0]
    turn, second = stream.below(360)[0] * pi / 180, stream.below(360)[0]
    tails = [t.begin[first, int(chosen * t.begins[first])]]
    tails.append([round(int(x) + style.apart * f(turn)) for x, f in zip(tails[0], (sin, cos))])
    dashes = [(np.array(tail), way) for tail, way in zip(tails, (first, second))]
    pivots = [moved(moved(tail, t.body[way]), t.back[way]) for tail, way in dashes]
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
    here = clearance(STYLES[size], margin)
    keys = snakes._mix(np.arange(1, 41, dtype=np.uint64))
    rows, dashes = snakes._grow(here, snakes.Streams(keys))
    lengths = []
    for row, key in enumerate(keys):
        count = (dashes.direction[row] != NOWHERE).sum()
        wanted = slow_contours(here.t, key)
        assert count == len(wanted)
        assert dashes.direction[row, :count].tolist() == [way for _, way in wanted]
        assert dashes.at[row, :count].tolist() == [list(at) for at, _ in wanted]
        assert (row in rows) == (count == 28)
        lengths.append(count)
    assert min(lengths) < 12 < max(lengths)


@pytest.mark.parametrize(("size", "margin", "count", "places"), [(32, 1, 16, 256), (32, 1, 8, 2), (128, 2, 2, 256)])
def test_distractors_are_those_of_the_rules(size, margin, count, places, monkeypatch):
    """Also where two places alone are tried at random before all are looked at."""
    monkeypatch.setattr(snakes, "PLACES", places)
    here = clearance(STYLES[size], margin)
    t, keys = here.t, snakes._mix(np.arange(1, count + 1, dtype=np.uint64))
    long = snakes.contours(here, keys)
    dashes = snakes.with_distractors(here, snakes.Streams(keys), long)
    failed = 0
    for row, key in enumerate(keys):
        stream = snakes.Streams(np.array([key]))
        there = [(long.at[row, i], long.direction[row, i]) for i in range(28) if i != 26]
        for first in range(28, 28 + 4 * t.style.distractors, 4):
            for _ in range(5):
                own = slow_distractor(t, stream, there, places)
                if own:
                    break
            failed += not own
            there += own
            assert dashes.direction[row, first : first + 4].tolist() == ([way for _, way in own] or [NOWHERE] * 4)
            assert not own or dashes.at[row, first : first + 4].tolist() == [list(at) for at, _ in own]
    assert 0 < failed < count * t.style.distractors


def slow_distractor(t, stream, there, places):
    """One attempt at a short contour: its dashes, or none."""
    taken = painted(t, *zip(*there))
    own = slow_beginning(t, stream, taken, places)
    pivot = own and moved(moved(own[0][0], t.body[own[0][1]]), t.back[own[0][1]])
    while own and len(own) < 4:
        found = slow_extension(t, stream, there + own[:-1], pivot, own[-1][1])
        if found is None:
            return []
        pivot = found[0]
        own.append(found[1:])
    return own


def slow_beginning(t, stream, taken, places):
    """Its first dash, in a list, or none."""
    size, edge = t.style.size, 2 * t.half

    def is_free(tail, way):
        return max(taken[down, right] for down, right in tail + edge + t.solid[way]) <= 76

    for _ in range(3):
        way = stream.below(360)[0]
        if not t.works[way]:
            return []
        for _ in range(places):
            tail = np.array([stream.below(size)[0], stream.below(size)[0]])
            if is_free(tail, way):
                break
        else:
            chosen = stream.draw()[0]
            free = [tail for tail in np.ndindex(size, size) if is_free(np.array(tail), way)]
            if not free:
                return []
            tail = np.array(free[int(chosen * len(free))])
        head = moved(tail, t.body[way])
        if all((end >= 0).all() and (end < size).all() for end in (head, moved(head, t.back[way]))):
            return [(tail, way)]
    return []


@pytest.mark.parametrize(("size", "share"), [(32, 0.285), (128, 0.147)])
def test_the_tips_of_both_contours_cross_in_some_images(size, share):
    style = STYLES[size]
    here = clearance(style, style.margins[0])
    long = snakes.contours(here, snakes._mix(np.arange(1, 201, dtype=np.uint64)))
    crossed = np.zeros(200, bool)
    for n in range(2, 28):
        tip = long.at[:, [n - 1]], here.kind[long.direction[:, [n - 1]]]
        crossed |= ~here.fits(long.direction[:, n] - 360, long.at[:, n], *tip)
    assert crossed.mean() == pytest.approx(share, abs=0.08)  # 2.5 standard errors


def test_space_is_counted_in_pixels():
    """Level dashes of 32 x 32 images may be two pixels apart and not one; at an edge one pixel is free."""
    here = clearance(STYLES[32], 1)
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


@pytest.mark.parametrize(("size", "margin", "count"), [(32, 1, 30), (128, 2, 354), (128, 3, 360)])
def test_first_dashes_have_the_directions_in_which_the_benchmark_finds_places(size, margin, count):
    t = tables(STYLES[size], margin)
    assert t.works.sum() == count
    if size == 32:
        assert (np.flatnonzero(t.works) - 180).tolist() == list(range(-150, -120))  # to the upper left
        assert {tuple(tail) for way in t.starts for tail in t.begin[way, : t.begins[way]]} == (
            {(down, right) for down in (14, 15, 16) for right in (14, 15, 16)}
        )
    for way in range(0, 360, 7):
        reached = np.zeros((size, size), bool)  # pixels from which one of the offsets stays in the image
        for down, right in t.solid[way]:
            rows, columns = (np.arange(size) + offset for offset in (down, right))
            reached |= ((rows >= 0) & (rows < size))[:, None] & ((columns >= 0) & (columns < size))
        assert t.works[way] == reached.all()


def test_sums_of_places_and_steps_are_rounded_up_with_their_errors():
    """The sine of 180 degrees is 1.2e-16: going to the left moves a pivot down, where float64 can hold the sum."""
    t = tables(STYLES[32], 1)
    left = next(i for i in range(360, len(t.forward)) if t.forward[i, 1] == -4)
    rows = np.stack([np.arange(32), np.full(32, 20)], 1)
    after = step(rows, t.forward[left])
    assert (after[:, 1] == 16).all()
    assert (after[:, 0] - np.arange(32)).tolist() == [1] * 8 + [0] * 24


def drawn_by_pillow(style, margin, dashes, tips):
    """An image as the benchmark draws it: every dash as a small image of its own, the discs as large ones."""
    image, draw = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.ImageDraw")
    lanczos, t = image.Resampling.LANCZOS, tables(style, margin)
    size, half = style.size, t.half
    canvas = np.zeros((size + 2 * half,) * 2)
    for i, (at, way) in enumerate(dashes):
        if way == NOWHERE:
            continue
        angle = (way - 180) * pi / 180
        if way >= 360:  # drawn from the head backwards
            angle = np.arctan2(*(t.forward[way] / (style.dash + 2 * margin)))
            angle += pi if angle < 0 else -pi
        fine = image.new("F", (4 * half + 1,) * 2, "black")
        end = moved((2 * half, 2 * half), (2 * style.dash * sin(angle), 2 * style.dash * cos(angle)))
        points = [(2 * half, 2 * half), tuple(end[::-1].tolist())]
        draw.Draw(fine).line(points, fill="white", width=round(2 * style.thickness))
        small = np.asarray(fine.resize((2 * half + 1,) * 2, lanczos)) / 255 * style.bright[0 if i < 28 else 1]
        there = canvas[at[0] : at[0] + 2 * half + 1, at[1] : at[1] + 2 * half + 1]
        np.maximum(there, small, out=there)
    pixels = canvas[half:-half, half:-half]
    pixels = pixels / pixels.max()
    down, right = np.ogrid[: 2 * size, : 2 * size]
    for y, x in tips:
        fine = (down - 2 * y) ** 2 + (right - 2 * x) ** 2 <= (2 * style.disc) ** 2
        spot = image.fromarray(fine.astype(np.float32)).resize((size, size), lanczos)
        pixels = np.maximum(pixels, np.asarray(spot))
    return 255 * pixels / pixels.max()


@pytest.mark.parametrize(("size", "margin", "count"), [(32, 1, 20), (128, 2, 3), (128, 3, 3)])
def test_images_are_drawn_as_the_benchmark_does(size, margin, count):
    style, here = STYLES[size], clearance(STYLES[size], margin)
    keys = snakes._mix(np.arange(1, count + 1, dtype=np.uint64))
    long = snakes.contours(here, keys)
    streams = snakes.Streams(keys)
    dashes = snakes.with_distractors(here, streams, long)
    label, first = streams.below(2), streams.below(2)
    x, y = snakes.finish(here, snakes.Streams(keys), long)
    assert y.tolist() == label.tolist()
    for row in range(count):
        tips = long.at[row, first[row]], long.at[row, (first[row] if label[row] else 1 - first[row]) - 2]
        wanted = drawn_by_pillow(style, margin, list(zip(dashes.at[row], dashes.direction[row])), tips)
        assert np.abs(np.floor(wanted + 1e-4) - x[row]).max() <= 1
        assert (np.floor(wanted) == x[row]).mean() > 0.999  # float32 may come out on the other side of a whole number


@pytest.mark.parametrize(("margin", "count"), [(2, 401), (3, 409)])
def test_the_space_of_every_dash_at_128_is_that_of_pillows_lines(margin, count):
    image, draw = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.ImageDraw")
    t = tables(STYLES[128], margin)
    half, ways = t.half, np.concatenate([np.arange(-180, 180) * pi / 180, np.arctan2(*t.forward[360:].T)])
    assert len(ways) == count
    for i, way in enumerate(ways):
        angle = way if i < 360 else way + (pi if way < 0 else -pi)
        fine = image.new("L", (4 * half + 1,) * 2)
        end = moved((2 * half, 2 * half), (10 * sin(angle), 10 * cos(angle)))
        draw.Draw(fine).line([(2 * half, 2 * half), tuple(end[::-1].tolist())], fill=255, width=3)
        points = np.argwhere(np.asarray(fine))
        wide = np.zeros((4 * half + 1,) * 2, np.uint8)
        for down, right in disc(2 * margin):
            wide[points[:, 0] + down, points[:, 1] + right] = 255
        small = image.fromarray(wide).resize((2 * half + 1,) * 2, image.Resampling.LANCZOS)
        assert (np.asarray(small) == t.space[i].reshape(2 * half + 1, -1)).all(), i


def test_an_image_depends_on_its_seed_and_number_alone(monkeypatch):
    x, y = snakes.images(STYLES[32], 5, np.arange(6))
    monkeypatch.setattr(snakes, "TOGETHER", 100)
    alone, label = snakes.images(STYLES[32], 5, np.array([4]))
    assert (alone[0] == x[4]).all()
    assert label[0] == y[4]
    assert (snakes.images(STYLES[32], 6, np.array([4]))[0][0] != x[4]).any()


def test_a_single_image_has_one_of_the_margins():
    x, y = snakes.images(STYLES[128], 5, np.arange(4))
    for number in range(4):
        alone, label = snakes.images(STYLES[128], 5, np.array([number]))
        assert (alone[0] == x[number]).all()
        assert label[0] == y[number]


@pytest.mark.parametrize("size", [32, 128])
def test_labels_say_whether_the_discs_are_on_one_contour(size):
    style = STYLES[size]
    here = clearance(style, style.margins[0])
    keys = np.arange(1, 9, dtype=np.uint64) * np.uint64(7907)
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
