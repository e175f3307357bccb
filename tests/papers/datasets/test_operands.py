"""Shuffled operands: the same tree, all orders alike, whatever the depth and the length."""

import collections
import itertools

import pytest
import torch

from statespan.data import load
from statespan.data.base import Batch
from statespan.data.tokens import EOS, SPECIAL
from statespan.papers.datasets.listops import TOKENS, Shuffle, expressions, text
from tests.papers.datasets.test_listops import evaluate

CODES = {word: SPECIAL + i for i, word in enumerate(TOKENS)}


def batch(texts, length):
    """Expressions as a padded batch, closed by <eos> where there is room."""
    x = torch.zeros(len(texts), length, dtype=torch.long)
    for row, words in zip(x, texts):
        codes = [*(CODES[word] for word in words.split()), EOS][:length]
        row[: len(codes)] = torch.tensor(codes)
    return Batch(x, torch.zeros(len(texts), dtype=torch.long), (x > 0).sum(1))


def shuffled(made, levels, seed=0):
    return Shuffle(levels)(made, torch.Generator().manual_seed(seed))


def tree(words):
    """An expression without an order of operands: nested tuples, sorted."""
    stack = [[]]
    for word in words:
        if word.startswith("["):
            stack.append([word])
        elif word == "]":
            operator, *operands = stack.pop()
            stack[-1].append((operator, *sorted(operands, key=repr)))
        else:
            stack[-1].append(word)
    assert len(stack) == 1
    return stack[0]


def test_the_tree_stays_and_the_order_does_not():
    small = expressions(6, shortest=3, longest=40)
    made = [*itertools.islice(expressions(5), 12), *itertools.islice(small, 30)]
    texts = [text(tokens) for tokens, _ in made]
    before = batch(texts, 2048)
    levels = max(evaluate(words.split())[1] for words in texts)
    after = shuffled(before, levels)
    assert (after.lengths == before.lengths).all()
    for row, length, words, (_, value) in zip(after.x, after.lengths, texts, made):
        again = text(row.numpy())
        assert tree(again.split()) == tree(words.split())
        assert evaluate(again.split())[0] == value
        assert row[length - 1] == EOS
        assert (row[length:] == 0).all()
    moved = (after.x != before.x).float().mean(1)
    assert (moved[:12] > 0.1).all()  # of the long ones
    assert torch.equal(shuffled(before, levels + 5).x, after.x)  # more levels than there are change nothing
    assert not torch.equal(shuffled(before, levels, seed=1).x, after.x)


def test_all_orders_are_alike():
    count = 6000
    after = shuffled(batch(["[MAX 1 [MIN 5 7 ] 2 ]"] * count, 10), 2)
    found = collections.Counter(text(row.numpy()) for row in after.x)
    assert len(found) == 3 * 2 * 2  # of three operands, and of two inside
    spread = sum((n - count / 12) ** 2 / (count / 12) for n in found.values())
    assert spread < 31.3  # chi-square of 11 degrees, one in a thousand


@pytest.mark.parametrize("length", [6, 9])
def test_what_was_cut_short_stays(length):
    words = "[MAX 1 [MIN 5 7 ] 2 3 4 ]"
    made = batch([words, "[SM 1 2 ]"], length)
    seen = {tuple(map(tuple, shuffled(made, 2, seed).x.tolist())) for seed in range(20)}
    assert {rows[0] for rows in seen} == {tuple(made.x[0].tolist())}
    assert len({rows[1] for rows in seen}) == 2  # the whole one beside it


@pytest.mark.parametrize("words", ["] 1 [MAX 2 3", "[MAX 1 ] ] 2 [SM 3 4", "] ] ]", "[MAX 1 2 ] [SM 3"])
def test_brackets_that_do_not_match_stay(words):
    made = batch([words, "[SM 1 2 ]"], 9)
    for seed in range(5):
        assert torch.equal(shuffled(made, 1, seed).x[0], made.x[0])


def test_a_digit_alone_is_no_mistake():
    made = batch(["7", "[SM 1 2 ]"], 5)
    assert shuffled(made, 1).x[0].tolist() == [CODES["7"], EOS, 0, 0, 0]


def test_the_dataset_shuffles_if_asked_and_knows_how_deep(tmp_path):
    folder = tmp_path / "listops"
    folder.mkdir()
    lines = ["[MAX 1 [MIN 5 [SM 1 2 ] ] ]\t3", "[SM 1 2 ]\t3"]
    for name in ("train", "val", "test"):
        (folder / f"basic_{name}.tsv").write_text("Source\tTarget\n" + "\n".join(lines) + "\n", encoding="ascii")
    assert load("listops", tmp_path).augment is None
    assert load("listops", tmp_path, shuffle=True).augment == Shuffle(3)
    assert load("listops", tmp_path, shuffle=True, length=5).augment == Shuffle(2)  # the third was cut away
    for name in ("train", "val", "test"):
        (folder / f"basic_{name}.tsv").write_text("Source\tTarget\n7\t7\n", encoding="ascii")
    assert load("listops", tmp_path, shuffle=True).augment == Shuffle(1)
