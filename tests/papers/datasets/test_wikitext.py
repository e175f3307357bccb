"""WikiText: vocabulary, windows, and every word predicted once."""

import numpy as np
import pytest

from statespan.data.registry import load
from statespan.papers.datasets import wikitext
from tests.data.real import real

TRAIN = " \n = A title = \n \n the cat and the dog <unk> \n"
VALID = " the dog \n"
TEST = " \n the new\u2028 cat \n"  # a separator that is no end of line; "new" is unknown


def files(folder, train=TRAIN, valid=VALID, test=TEST):
    folder.mkdir(parents=True)
    for name, text in (("train", train), ("valid", valid), ("test", test)):
        (folder / f"wiki.{name}.tokens").write_text(text, encoding="utf8")


@pytest.mark.parametrize("name", ["wikitext2", "wikitext103"])
def test_words_lines_and_windows(tmp_path, name):
    files(tmp_path / name)
    data = load(name, tmp_path, length=3, eval_length=2)
    words = data.info.classes
    assert words == ("<eos>", "=", "the", "A", "title", "cat", "and", "dog", "<unk>")
    assert (data.info.vocabulary, data.info.d_output, data.info.length) == (9, 9, 3)
    text = data.train.arrays["text"]
    assert " ".join(words[i] for i in text) == "<eos> = A title = <eos> <eos> the cat and the dog <unk> <eos>"
    assert text.dtype == np.int32
    train = data.train.batch([0, 1, 2, 3])
    assert len(data.train) == 4
    assert train.lengths is None
    assert (train.x.flatten() == train.x.new_tensor(text[:12].astype(np.int64))).all()
    assert (train.y.flatten() == train.x.new_tensor(text[1:13].astype(np.int64))).all()
    assert [words[i] for i in data.test.arrays["text"]] == ["<eos>", "the", "<unk>", "cat", "<eos>"]


def test_each_word_is_evaluated_once(tmp_path):
    files(tmp_path / "wikitext2", valid=" the cat and the dog <unk> \n the dog \n")
    for length in (1, 2, 3, 4, 9, 100):
        data = load("wikitext2", tmp_path, length=2, eval_length=length)
        text = data.valid.arrays["text"]
        batch = data.valid.batch(list(range(len(data.valid))))
        seen = [int(t) for y, n in zip(batch.y, batch.lengths) for t in y[:n]]
        assert seen == text[1:].tolist()
        assert batch.x.shape == batch.y.shape == (-(-9 // length), length)


def test_files_in_the_folder_of_the_archive(tmp_path):
    files(tmp_path / "wikitext103" / "wikitext-103")
    assert load("wikitext103", tmp_path, length=2).info.vocabulary == 9


def test_bad_texts_and_lengths(tmp_path):
    files(tmp_path / "wikitext2")
    with pytest.raises(ValueError, match="length must be at most 13"):
        load("wikitext2", tmp_path, length=14)
    with pytest.raises(ValueError, match="length must be an integer >= 1"):
        load("wikitext2", tmp_path, length=0)
    files(tmp_path / "b" / "wikitext2", train=" the cat \n", test=" the mouse \n")
    with pytest.raises(ValueError, match=r"wiki.valid.tokens, line 1: 'dog' is not in the vocabulary"):
        load("wikitext2", tmp_path / "b", length=1)


def test_large_files_are_encoded_in_pieces(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("".join(f" w{i % 7} \n" for i in range(50)))
    words = wikitext.vocabulary(tmp_path / "a")
    whole = wikitext.encode(tmp_path / "a", words)
    monkeypatch.setattr(wikitext, "LINES", 4)
    assert (wikitext.encode(tmp_path / "a", words) == whole).all()
    assert len(whole) == 100


@pytest.mark.real_data
def test_the_real_wikitext2(tmp_path):
    data = load("wikitext2", real(tmp_path, "wikitext2"), length=512)
    sizes = [len(part.arrays["text"]) for part in (data.train, data.valid, data.test)]
    assert sizes == [2088628, 217646, 245569]
    assert data.info.vocabulary == 33278
    assert data.info.classes[:3] == ("the", ",", ".")
    assert (np.diff(np.bincount(data.train.arrays["text"])) <= 0).all()  # sorted by frequency
    assert int(data.test.arrays["lengths"].sum()) == 245568
