"""Streams: the same bits alone and among others, added, removed, reset, saved and restored."""

import pytest
import torch

from statespan.generation import Stream, rows
from statespan.generation.tree import leaves
from statespan.models import LoadError
from tests.mistakes import assert_one_clear_line
from tests.models.make import inputs, make
from tests.nn.make import peak_error

f32 = torch.float32
CASES = {
    "classifier": {"layer": "s4", "d_model": 32},
    "regressor": {},
    "mean of tokens": {},
    "one SSM": {"norm": "layer"},
    "language": {},
    "pixels": {},
}


def model_of(case, **options):
    return make(case, dtype=f32, **CASES[case], **options)


def alone(model, x):
    """All outputs of one stream, sample by sample."""
    stream = Stream(model)
    return torch.stack([stream.push(x[None, t])[0] for t in range(len(x))])


def interleave(case, count, length, looked_at):
    """Streams that come and go at random, in calls of random size."""
    model = model_of(case)
    x, _ = inputs(model, count, length)
    stream, found = Stream(model, streams=20), {}
    names = dict(enumerate(stream.ids))  # which stream reads which row of x
    for number in range(20, count):
        if number % 5 == 0:
            stream.remove([names.pop(number - 20)])
        names[number] = stream.add()[0]
    done = dict.fromkeys(names, 0)
    while left := [n for n in names if done[n] < length]:
        chosen = [left[i] for i in torch.randperm(len(left))[: int(torch.randint(1, len(left) + 1, ()))].tolist()]
        y = stream.push(torch.stack([x[n, done[n]] for n in chosen]), [names[n] for n in chosen])
        for n, one in zip(chosen, y, strict=True):
            found.setdefault(n, []).append(one)
            done[n] += 1
    for n in looked_at:
        assert torch.equal(torch.stack(found[n]), alone(model, x[n]))


@pytest.mark.parametrize("case", CASES)
def test_same_bits_alone_and_among_others(case):
    interleave(case, 50, 8, (1, 19, 21, 33, 49))


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
def test_same_bits_among_a_thousand(case):
    interleave(case, 1250, 40, [n for n in range(1, 1250, 41) if n % 5])


@pytest.mark.parametrize("case", ["classifier", "pixels"])
def test_blocks_and_threads_change_no_bit(case):
    model = model_of(case)
    x, _ = inputs(model, 3, 11)
    wanted = torch.stack([alone(model, one) for one in x])
    stream = Stream(model, 3)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        got = [stream.push(x[:, :4]), stream.push(x[:, 4:])]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    if case == "pixels":
        assert torch.equal(torch.cat(got, 1), wanted)
    else:
        assert torch.equal(got[0], wanted[:, 3])
        assert torch.equal(got[1], wanted[:, -1])
    other = Stream(model, 3)
    y = other.prefill(x)
    whole = wanted if case == "pixels" else wanted[:, -1]
    assert peak_error(y, whole) < 2e-6
    assert peak_error(model(x), whole) < 2e-6
    for one, same in zip(
        leaves(other._gather(other._rows(None))), leaves(stream._gather(stream._rows(None))), strict=True
    ):
        torch.testing.assert_close(one, same, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("features", [1, 3, 6, 7, 16, 33])
@pytest.mark.parametrize("dtype", [f32, torch.float64])
def test_products_have_the_same_bits_in_every_row(features, dtype):
    """Some libraries sum a row in another order where it begins in the middle of a vector."""
    row, weight = torch.randn(1, features, dtype=dtype), torch.randn(5, features, dtype=dtype)
    whole = torch.cat([torch.zeros(1, dtype=dtype), row.expand(48, features).flatten()])
    x = whole[1:].view(48, features)  # begins in the middle of one, too
    y = rows.tiled_linear(x, weight)
    assert torch.equal(y, rows.tiled_linear(row, weight).expand(48, 5))
    torch.testing.assert_close(y[0], (weight * row).sum(1))


@pytest.mark.parametrize("by", ["their number", "their place"])
def test_rows_that_depend_on_each_other_run_alone(by, monkeypatch):
    """Where a library's products differ even so, each stream is computed by itself."""

    def product(x, weight, bias=None):
        off = len(x) if by == "their number" else torch.arange(len(x))[:, None] % 2
        return tiled_linear(x, weight, bias) * (1 + off * 1e-3)

    tiled_linear, model = rows.tiled_linear, model_of("classifier", d_output=5)
    x, _ = inputs(model, 3, 6)
    monkeypatch.setattr(rows, "tiled_linear", product)
    stream = Stream(model, 3)
    assert stream._alone
    y = stream.push(x)
    for i in range(3):
        assert torch.equal(Stream(model).push(x[i : i + 1])[0], y[i])


def test_reset_and_removed_rows_are_clean():
    model = model_of("regressor")
    x, _ = inputs(model, 2, 6)
    stream = Stream(model, 2)
    first = stream.push(x)
    stream.reset([1])
    assert torch.equal(stream.push(x[1:], ids=[1]), first[1:])
    stream.remove([0])
    (new,) = stream.add()
    assert new == 2
    assert stream.ids == (1, 2)
    assert torch.equal(stream.push(x[:1], ids=[new]), first[:1])
    stream.reset()
    assert torch.equal(stream.push(x.flip(0)), first.flip(0))


@pytest.mark.parametrize("case", ["classifier", "pixels"])
def test_save_and_restore(case, tmp_path):
    model = model_of(case)
    x, _ = inputs(model, 3, 14)
    stream = Stream(model, 3)
    stream.push(x[:, :5])
    stream.save(tmp_path / "all.safetensors")
    stream.save(tmp_path / "one.safetensors", ids=[2])
    wanted = stream.push(x[:, 5:])
    other = Stream(model, 4)
    other.restore(tmp_path / "all.safetensors", ids=[1, 3, 0])
    assert torch.equal(other.push(x[:, 5:], ids=[1, 3, 0]), wanted)
    other.restore(tmp_path / "one.safetensors", ids=[2])
    assert torch.equal(other.push(x[2:, 5:], ids=[2]), wanted[2:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.safetensors", "one.safetensors"]


def test_files_that_do_not_fit(tmp_path):
    model = model_of("regressor")
    stream, path = Stream(model, 2), tmp_path / "state"
    stream.save(path)
    raw = path.read_bytes()
    damaged = bytearray(raw)
    damaged[-3] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    (tmp_path / "short").write_bytes(raw[:100])
    other = Stream(model_of("regressor", d_state=8), 2)
    for name, place, words in (
        ("damaged", stream, ["damaged"]),
        ("short", stream, ["safetensors"]),
        ("missing", stream, ["missing"]),
        ("state", other, ["this model"]),
        ("state", Stream(model), ["shape", "(1,", "(2,"]),
        ("state", Stream(model, 2, dt_scale=2.0), ["dt_scale 2", "dt_scale 1"]),
        ("state", Stream(model, 2, state_dtype=f32), ["float32", "float64"]),
    ):
        assert_one_clear_line(lambda name=name, place=place: place.restore(tmp_path / name), LoadError, words)


@pytest.mark.parametrize("use", ["push", "prefill"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38], ids=str)
def test_what_is_not_finite_is_refused_and_changes_no_state(use, bad):
    """3e38 is finite itself, but what comes of it is not."""
    model = model_of("classifier")
    x, _ = inputs(model, 2, 9)
    stream, untouched = Stream(model, 2), Stream(model, 2)
    for one in (stream, untouched):
        one.push(x[:, :4])
    wrong = x[:, 4:7].clone()
    wrong[1, 1, 0] = bad
    words = ["x must be finite", "(1, 1, 0)"] if abs(bad) != 3e38 else ["3e+38", "float32", "no stream has changed"]
    assert_one_clear_line(lambda: getattr(stream, use)(wrong), ValueError, words)
    assert torch.equal(stream.push(x[:, 4:]), untouched.push(x[:, 4:]))


def test_a_state_that_is_not_finite_is_refused(tmp_path):
    model = model_of("regressor")
    stream, path = Stream(model, 2), tmp_path / "state"
    leaves(stream._state)[0][1, 0, 0] = float("nan")
    stream.save(path)
    other, untouched = Stream(model, 2), Stream(model, 2)
    assert_one_clear_line(lambda: other.restore(path), LoadError, ["finite states", "new file"])
    x, _ = inputs(model, 2, 3)
    assert torch.equal(other.push(x), untouched.push(x))


MISTAKES = {
    "both ways": (lambda: Stream(model_of("classifier", bidirectional=True)), ValueError, ["causal", "bidirectional"]),
    "training mode": (lambda: Stream(model_of("classifier").train()), ValueError, ["eval()"]),
    "pairs": (lambda: Stream(make("retrieval")), TypeError, ["Retrieval", "pairs"]),
    "forecaster": (lambda: Stream(make("forecaster")), TypeError, ["Forecaster", "generate"]),
    "no model": (lambda: Stream(torch.nn.Linear(2, 2)), TypeError, ["model", "Linear"]),
    "no id": (lambda: Stream(model_of("regressor")).push(torch.zeros(1, 3), ids=[1]), ValueError, ["ids", "got 1"]),
    "an id twice": (
        lambda: Stream(model_of("regressor")).push(torch.zeros(2, 3), ids=[0, 0]), ValueError, ["at most once"],
    ),
    "too few": (lambda: Stream(model_of("regressor"), 2).push(torch.zeros(1, 3)), ValueError, ["(2, 3)", "(1, 3)"]),
    "too many features": (lambda: Stream(model_of("regressor")).push(torch.zeros(1, 4)), ValueError, ["x", "(1, 4)"]),
    "none": (lambda: Stream(model_of("regressor")).push(torch.zeros(1, 0, 3)), ValueError, ["at least one sample"]),
    "a list": (lambda: Stream(model_of("regressor")).push([0.0]), TypeError, ["torch.Tensor", "list"]),
    "bfloat16 states": (
        lambda: Stream(model_of("regressor"), state_dtype=torch.bfloat16), ValueError, ["float32", "bfloat16"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    assert_one_clear_line(*MISTAKES[name])
