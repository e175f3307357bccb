"""ListOps: the grammar, the values, the reader, and the generator against the benchmark's own."""

import itertools

import numpy as np
import pytest

from statespan.data import load
from statespan.papers.datasets.listops import SPECIAL, TOKENS, expressions, text
from tests.data.real import real


def evaluate(words):
    """Value and depth of an expression, computed the slow way; fails if it is not one."""
    stack, deepest = [], 0
    for word in words:
        if word == "]":
            arguments = list(itertools.takewhile(lambda x: not isinstance(x, str), reversed(stack)))
            operator = stack[-len(arguments) - 1]
            assert 2 <= len(arguments) <= 10
            functions = {"[MIN": min, "[MAX": max, "[SM": lambda a: sum(a) % 10, "[MED": lambda a: int(np.median(a))}
            stack[-len(arguments) - 1 :] = [functions[operator](arguments)]
        else:
            stack.append(word if word.startswith("[") else int(word))
            deepest = max(deepest, sum(isinstance(x, str) for x in stack))
    assert len(stack) == 1
    return stack[0], deepest


def test_expressions_follow_the_grammar_and_have_the_right_values():
    for tokens, value in itertools.islice(expressions(3), 40):
        assert 500 < len(tokens) < 2000
        found, depth = evaluate(text(tokens).split())
        assert found == value
        assert 3 <= depth <= 9  # operators; with the values, 10
    for tokens, value in itertools.islice(expressions(4, shortest=3, longest=60), 500):
        assert evaluate(text(tokens).split())[0] == value


def test_expressions_depend_on_the_seed_alone():
    first, again, other = (list(itertools.islice(expressions(seed), 5)) for seed in ((1, 2), (1, 2), (1, 3)))
    assert all((a[0] == b[0]).all() and a[1] == b[1] for a, b in zip(first, again))
    assert any(len(a[0]) != len(b[0]) for a, b in zip(first, other))


def test_generated_data_is_cached_padded_and_has_three_different_splits(tmp_path):
    data = load("listops", tmp_path, train=30, valid=20, test=20)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [30, 20, 20]
    assert (data.info.vocabulary, data.info.length, data.info.d_output) == (18, 2048, 10)
    batch = data.train.batch([5, 2])
    assert batch.x.shape == (2, 2048)
    for row, length, label in zip(batch.x, batch.lengths, batch.y):
        assert row[length - 1] == 2  # <eos>
        assert (row[length:] == 0).all()
        assert (row[: length - 1] >= SPECIAL).all()
        assert evaluate(text(row[: length - 1].numpy()).split())[0] == label
    texts = [{text(part.batch([i]).x[0].numpy()) for i in range(20)} for part in (data.train, data.valid, data.test)]
    assert not texts[0] & texts[1]
    assert not texts[1] & texts[2]
    more = load("listops", tmp_path, train=31, valid=20, test=20)  # other sizes change no other split
    assert (more.valid.arrays["tokens"] == data.valid.arrays["tokens"]).all()
    assert (more.train.batch([29]).x == data.train.batch([29]).x).all()


def write(folder, name, rows):
    lines = [f"{source}\t{target}\r\n" for source, target in rows]  # the benchmark's csv writer ends lines so
    (folder / f"basic_{name}.tsv").write_text("Source\tTarget\r\n" + "".join(lines), newline="")


def test_the_benchmarks_files_win(tmp_path):
    folder = tmp_path / "listops"
    folder.mkdir()
    nested = "( ( ( ( [MAX 2 ) ( ( ( [MIN 4 ) 7 ) ] ) ) 0 ) ] )"
    for name in ("train", "val", "test"):
        write(folder, name, [(nested, 4), ("( ( ( [SM 9 ) 8 ) ] )", 7)])
    data = load("listops", tmp_path)
    batch = data.test.batch([0, 1])
    assert text(batch.x[0].numpy()) == "[MAX 2 [MIN 4 7 ] 0 ]"
    assert batch.lengths.tolist() == [9, 5]
    assert batch.y.tolist() == [4, 7]
    assert batch.x[1, :5].tolist() == [3 + TOKENS.index("[SM"), 12, 11, 17, 2]
    short = load("listops", tmp_path, length=4).test.batch([0])
    assert short.x.tolist() == [[3 + TOKENS.index("[MAX"), 5, 3 + TOKENS.index("[MIN"), 2]]
    assert len(load("listops", tmp_path, train=3, valid=1, test=1, generate=True).train) == 3


@pytest.mark.parametrize("row", ["( ( [MAX 2 ) ] )", "( [AVG 2 ) ] )\t3", "[MAX 2 ]\t12", "\t3"])
def test_a_bad_line_is_named(tmp_path, row):
    folder = tmp_path / "listops"
    folder.mkdir()
    for name in ("train", "val", "test"):
        (folder / f"basic_{name}.tsv").write_text(f"Source\tTarget\n[MAX 1 2 ]\t2\n{row}\n")
    with pytest.raises(ValueError, match=r"basic_train\.tsv, line 3"):
        load("listops", tmp_path)


@pytest.mark.real_data
def test_generated_data_is_like_the_benchmarks(tmp_path):
    folder = real(tmp_path, "listops")
    ours = load("listops", folder, generate=True, train=4000, valid=1, test=1).train.arrays
    theirs = load("listops", folder).train.arrays
    lengths = [arrays["lengths"] for arrays in (ours, theirs)]
    assert all(n.min() > 501 and n.max() < 2001 for n in lengths)
    assert lengths[0].mean() == pytest.approx(lengths[1].mean(), rel=0.02)
    for quantile in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert np.quantile(lengths[0], quantile) == pytest.approx(np.quantile(lengths[1], quantile), rel=0.04)
    classes = [np.bincount(arrays["y"], minlength=10) / len(arrays["y"]) for arrays in (ours, theirs)]
    assert np.abs(classes[0] - classes[1]).max() < 0.02
    tokens = [np.bincount(arrays["tokens"], minlength=18) / len(arrays["tokens"]) for arrays in (ours, theirs)]
    assert np.abs(tokens[0] - tokens[1]).max() < 0.001
    depths = []
    for arrays in (ours, theirs):
        level = np.where(np.isin(arrays["tokens"], range(13, 17)), 1, np.where(arrays["tokens"] == 17, -1, 0))
        total = np.cumsum(level)
        assert total[-1] == 0
        depths.append(np.maximum.reduceat(total, arrays["starts"]))
    assert max(d.max() for d in depths) == 9
    shares = [np.bincount(d, minlength=10) / len(d) for d in depths]
    assert np.abs(shares[0] - shares[1]).max() < 0.03
