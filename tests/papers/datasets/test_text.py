"""Reviews and pairs of papers as tokens."""

import numpy as np
import pytest

from statespan.data import load
from statespan.data.tokens import encode, vocabulary
from tests.data.real import real


@pytest.fixture
def imdb(tmp_path):
    for part in ("train", "test"):
        for kind in ("pos", "neg"):
            folder = tmp_path / "imdb" / "aclImdb" / part / kind
            folder.mkdir(parents=True)
            for i in range(20):
                (folder / f"{i}_{7 if kind == 'pos' else 2}.txt").write_text(f"{kind} {part} é {i}", "utf8")
    return tmp_path


def decode(row, tokens):
    letters = {token: letter for letter, token in tokens.items()}
    return "".join(letters.get(int(token), "?") for token in row)


def test_text_keeps_validation_apart_from_test(imdb):
    data = load("text", imdb, least=1)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [36, 4, 40]
    tokens = vocabulary([f"{k} train é {i}" for k in ("pos", "neg") for i in range(20)])
    assert data.info.vocabulary == 3 + len(tokens)
    seen = []
    for part in (data.train, data.valid, data.test):
        batch = part.batch(list(range(len(part))))
        assert batch.x.shape == (len(part), 4096)
        texts = [decode(row[: n - 1], tokens) for row, n in zip(batch.x, batch.lengths)]
        assert all(row[n - 1] == 2 and not row[n:].any() for row, n in zip(batch.x, batch.lengths))
        assert [int(t.startswith("pos")) for t in texts] == batch.y.tolist()
        seen.append(set(texts))
    assert seen[0] | seen[1] == {f"{k} train é {i}" for k in ("pos", "neg") for i in range(20)}
    assert not seen[0] & seen[1]
    assert len(seen[2]) == 40
    assert all("t?st" in t or "test" in t for t in seen[2])
    assert data.valid.batch([0, 1, 2, 3]).y.sum() == 2


def test_text_cuts_and_has_unknown_letters_and_bytes(imdb):
    short = load("text", imdb, least=21, length=6).test.batch([0])
    assert short.lengths.tolist() == [6]
    assert short.x[0, -1] == 2
    data = load("text", imdb, level="byte")
    assert data.info.vocabulary == 259
    batch = data.test.batch([0])
    assert (batch.x[0, : batch.lengths[0] - 1] - 3).numpy().astype(np.uint8).tobytes() == "neg test é 0".encode()
    with pytest.raises(ValueError, match="level"):
        load("text", imdb, level="word")


def test_letters_that_are_rare_or_new_are_unknown():
    tokens = vocabulary(["aab", "ab", "c"], least=2)
    assert tokens == {"a": 3, "b": 4}
    arrays = encode(["abc\U0001f600", ""], tokens, length=10)
    assert arrays["tokens"].tolist() == [3, 4, 1, 1, 2, 2]
    assert arrays["starts"].tolist() == [0, 5]
    assert arrays["lengths"].tolist() == [5, 1]


@pytest.fixture
def aan(tmp_path):
    folder = tmp_path / "retrieval" / "tsv_data"
    folder.mkdir(parents=True)
    papers = [f"paper {letter} \"quoted' text" for letter in "abcdef"]
    for part, pairs in (("train", [(0, 1), (1, 2), (0, 2)]), ("eval", [(3, 0)]), ("test", [(4, 5), (5, 1)])):
        rows = [f"{(i + j) % 2}.0\tP{i}\tP{j}\t{papers[i]}\t{papers[j]}\n" for i, j in pairs]
        (folder / f"new_aan_pairs.{part}.tsv").write_text("".join(rows), "utf8")
    return tmp_path


def test_retrieval_stacks_first_and_second_documents(aan):
    data = load("retrieval", aan)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [3, 1, 2]
    assert len(data.train.arrays["tokens"]) == 6 * 22  # every paper once: 21 letters and <eos>
    batch = data.train.batch([2, 0])
    assert batch.x.shape == (4, 4000)
    assert batch.lengths.tolist() == [22] * 4
    assert batch.y.tolist() == [0, 1]
    assert (batch.x[0] == batch.x[1]).all()  # paper a is the first of both pairs
    assert (batch.x[3] == data.train.batch([1]).x[0]).all()  # paper b: second of pair 0, first of pair 1
    unknown = data.test.batch([0]).x[:, 6]
    assert unknown[0] > 2  # an e, which "paper" has
    assert unknown[1] == 1  # an f, which no training paper has
    assert load("retrieval", aan, length=5).test.batch([0]).x.shape == (2, 5)


def test_retrieval_names_a_bad_line(aan):
    path = aan / "retrieval" / "tsv_data" / "new_aan_pairs.eval.tsv"
    path.write_text("1.0\tA\tB\tone text only\n")
    with pytest.raises(ValueError, match=r"eval\.tsv, line 1"):
        load("retrieval", aan)


@pytest.mark.real_data
def test_real_reviews(tmp_path):
    data = load("text", real(tmp_path, "imdb"))
    assert [len(part) for part in (data.train, data.valid, data.test)] == [22_500, 2_500, 25_000]
    assert 130 <= data.info.vocabulary <= 140
    assert data.test.arrays["y"].mean() == 0.5
    assert data.valid.arrays["y"].mean() == 0.5
    assert data.test.arrays["lengths"].max() == 4096
    assert data.test.arrays["lengths"].mean() == pytest.approx(1240, rel=0.05)
