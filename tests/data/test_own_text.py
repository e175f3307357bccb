"""A text of one's own: characters, longer tokens and bytes, in contiguous parts; mistakes are one clear error."""

import json
import math

import numpy as np
import pytest
import torch

from statespan import data
from statespan.data import own_text, vocabulary
from statespan.data.vocabulary import UNKNOWN, Vocabulary, of_text, read_tokens
from statespan.train.tasks import Objective, task_of

TEXT = "".join(f"line {i} of a text, ä\n" for i in range(100))


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(TEXT.encode())
    return path


def load(path, **options):
    return data.load("own-text", path=str(path), **{"length": 16, **options})


def text_of(split):
    """The tokens of a split as it stores them."""
    return split.arrays["text"].tolist()


def test_the_parts_follow_each_other_and_every_character_is_there(book):
    loaded = load(book)
    n = len(TEXT)
    words = Vocabulary("characters", loaded.info.tokens)
    parts = [words.decode(text_of(split)) for split in (loaded.train, loaded.valid, loaded.test)]
    assert "".join(parts) == TEXT
    assert [len(part) for part in parts] == [n - 2 * (n // 20), n // 20, n // 20]
    assert loaded.info.tokens == (UNKNOWN, *sorted(set(parts[0])))
    assert (loaded.info.task, loaded.info.unit, loaded.info.length) == ("language", "characters", 16)
    assert loaded.info.vocabulary == loaded.info.d_output == len(loaded.info.classes)
    assert loaded.train.arrays["text"].dtype == np.uint8
    counts = " / ".join(f"{len(part):,}" for part in parts)
    assert loaded.note == f"{counts} characters, {len(words)} tokens, 0 / 0 / 0 unknown characters"
    shares = load(book, valid=0.1, test=0.2)
    assert [len(text_of(split)) for split in (shares.valid, shares.test)] == [n // 10, n // 5]


def test_windows_read_on_and_predict_the_next_character(book):
    loaded = load(book, eval_length=40)
    batch = loaded.train.batch([0, 1])
    words = Vocabulary("characters", loaded.info.tokens)
    assert words.decode(batch.x.flatten().tolist()) == TEXT[:32]
    assert words.decode(batch.y.flatten().tolist()) == TEXT[1:33]
    for split in (loaded.valid, loaded.test):
        every = split.batch(list(range(len(split))))
        assert every.x.shape[1] == 40
        seen = [int(t) for y, n in zip(every.y, every.lengths) for t in y[:n]]
        assert seen == text_of(split)[1:]  # each but the first, once


def test_the_vocabulary_is_that_of_the_training_part(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("ab" * 90 + "abcbaababa" + "ab" * 4 + "dd", encoding="utf-8")
    loaded = load(path, length=4)
    assert loaded.info.tokens == (UNKNOWN, "a", "b")
    words = Vocabulary("characters", loaded.info.tokens)
    assert words.decode(text_of(loaded.valid)) == f"ab{UNKNOWN}baababa"
    assert words.decode(text_of(loaded.test)) == f"{'ab' * 4}{UNKNOWN * 2}"
    assert loaded.note == "180 / 10 / 10 characters, 3 tokens, 0 / 1 / 2 unknown characters"
    path.write_text("ab" * 80 + "c" + "ab" * 9 + "c" + "a" * 20, encoding="utf-8")
    rare = load(path, length=4, least=3)
    assert rare.info.tokens == (UNKNOWN, "a", "b")
    assert "2 / 0 / 0 unknown characters" in rare.note


def test_bytes_of_any_file(tmp_path):
    content = bytes(range(256)) * 4
    path = tmp_path / "program"
    path.write_bytes(content)
    loaded = load(path, unit="bytes")
    assert bytes(text_of(loaded.train) + text_of(loaded.valid) + text_of(loaded.test)) == content
    assert (loaded.info.unit, loaded.info.tokens, loaded.info.vocabulary) == ("bytes", (), 256)
    assert loaded.note == "922 / 51 / 51 bytes"
    assert loaded.train.arrays["text"].flags.writeable  # torch shares it without a copy


def test_longer_tokens_by_longest_match(tmp_path, book):
    (tmp_path / "tokens.json").write_text(json.dumps(["line ", "line", " of a text", "z", "a"]))
    loaded = load(book, tokens=str(tmp_path / "tokens.json"))
    tokens = loaded.info.tokens
    assert set(tokens) == {UNKNOWN, *TEXT, "line ", "line", " of a text", "z"}
    words = Vocabulary("characters", tokens)
    assert words.decode(text_of(loaded.train)[:7]) == "line 0 of a text, ä\n"
    assert [tokens[i] for i in text_of(loaded.train)[:4]] == ["line ", "0", " of a text", ","]
    assert "".join(words.decode(text_of(part)) for part in (loaded.train, loaded.valid, loaded.test)) == TEXT


def slow_match(text, tokens):
    """The longest token at each place, tried one after the other."""
    found = []
    while text:
        fits = [token for token in tokens if text.startswith(token)]
        best = max(fits, key=len, default=text[0])
        found.append(tokens.index(best) if fits else 0)
        text = text[len(best) :]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_encoding_equals_the_slow_one(seed):
    random = np.random.default_rng(seed)
    text = "".join(random.choice(list("abcé\U0001f600"), size=200))
    extra = ["".join(random.choice(list("abcé"), size=random.integers(1, 5))) for _ in range(seed)]
    tokens = (UNKNOWN, *dict.fromkeys(["a", "b", "\U0001f600", *extra]))
    assert Vocabulary("characters", tokens).encode(text).tolist() == slow_match(text, tokens)


def test_a_long_text_is_encoded_and_counted_in_blocks(monkeypatch):
    text = "".join(map(chr, range(32, 400))) * 3
    words = of_text(text)
    whole = words.encode(text)
    monkeypatch.setattr(vocabulary, "_BLOCK", 7)
    assert (words.encode(text) == whole).all()
    assert of_text(text) == words
    assert whole.dtype == np.int16
    assert words.decode(whole.tolist()) == text


def test_bytes_decode_when_their_character_is_complete():
    decoder = Vocabulary("bytes").decoder()
    assert [decoder.push(b) for b in "é€".encode()] == ["", "é", "", "", "€"]
    assert [decoder.push(b) for b in b"\xe2\x82"] == ["", ""]
    assert decoder.end() == UNKNOWN
    assert Vocabulary("bytes").unknown("日\udcff") == ""
    assert Vocabulary("bytes").encode("\udcff").tolist() == [255]  # as Python reads such an argument of a command


def test_unknown_characters_are_named_once_in_order():
    assert Vocabulary("characters", (UNKNOWN, "a", "ab")).unknown("caéac") == "cé"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, "must have text in it, got an empty file"),
        (b"text\0text" * 50, {}, r"must be a text file, got a zero at byte 4; data.unit=bytes"),
        ("ä".encode() * 600 + b"\xff", {}, r"must be text in UTF-8, got 0xff at byte 1,200; data.unit=bytes"),
        (b"abc" * 100 + b"\xc3", {}, r"must be text in UTF-8, got 0xc3 at byte 300"),
        (b"short", {}, "must have at least 17 tokens to train, got 5; use a shorter data.length or a longer text"),
        (b"ab" * 15, {}, "must have at least 2 tokens to validate, got 1; use a larger data.valid or a longer text"),
        (b"ab" * 15, {"valid": 0.1}, "must have at least 2 tokens to test, got 1; use a larger data.test"),
        (b"ab" * 15, {"unit": "bytes"}, "must have at least 2 tokens to validate, got 1"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, content, options, message):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load(path, **options)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"unit": "words"}, ValueError, r"unit must be one of \('characters', 'bytes'\), got 'words'"),
        ({"length": 0}, ValueError, "length must be an integer >= 1"),
        ({"eval_length": 0}, ValueError, "eval_length must be an integer >= 1"),
        ({"valid": 0.0}, ValueError, "valid must be a number > 0 and < 1, got 0.0"),
        ({"test": 1.0}, ValueError, "test must be a number > 0 and < 1, got 1.0"),
        ({"valid": 0.5, "test": 0.5}, ValueError, "valid and test must be less than 1 together, got 0.5 and 0.5"),
        ({"least": 0}, ValueError, "least must be an integer >= 1"),
        ({"unit": "bytes", "least": 2}, ValueError, "tokens and least must not be given with unit='bytes'"),
        ({"tokens": "no.json"}, FileNotFoundError, "tokens must be an existing JSON file, got no.json"),
    ],
)
def test_options_that_are_not_allowed(book, options, error, message):
    with pytest.raises(error, match=message):
        load(book, **options)


def test_a_missing_file_and_one_that_is_too_large(tmp_path, book, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"path must be an existing text file, got no\.txt, which is not in /"):
        load("no.txt")
    with pytest.raises(FileNotFoundError, match="path must be an existing text file"):
        load(tmp_path)
    monkeypatch.setattr(own_text, "LARGEST", book.stat().st_size)
    load(book)
    monkeypatch.setattr(own_text, "LARGEST", 1000)
    with pytest.raises(ValueError, match=r"book\.txt must have at most 1,000 bytes, got 2,"):
        load(book)


def test_a_byte_order_mark_is_not_text(tmp_path, book):
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf" + book.read_bytes())
    assert text_of(load(tmp_path / "marked.txt").train) == text_of(load(book).train)


def test_too_large_a_vocabulary(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(
        "".join(map(chr, range(0x4E00, 0x4E00 + 20_000))) * 2 + "".join(map(chr, range(0xAC00, 0xD700))) * 3
    )
    assert load(path).info.vocabulary > 20_000
    many = "".join(chr(i) for i in range(0x10000, 0x10000 + 40_000))
    path.write_text(many)
    with pytest.raises(
        ValueError, match=r"too large a vocabulary: .* at most 32768 texts, got 36001; use a larger data\.l"
    ):
        load(path)
    with pytest.raises(ValueError, match="tokens must have at most 524288 bytes as JSON, got"):
        Vocabulary("characters", (UNKNOWN, *(f"{i:060d}" for i in range(10_000))))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", r"must be a JSON list of texts, got \{\}"),
        ("[1]", r"must be a JSON list of texts, got \[1\]"),
        ("[", "must be a JSON list of texts: Expecting value"),
        ("[" * 100_000, "must be a JSON list of texts: "),
        ('["a", "a"]', "must be distinct texts that are not empty, got 'a' twice"),
        ('[""]', "must have tokens of 1 to 64 characters, got one of 0"),
        (json.dumps(["x" * 65]), "must have tokens of 1 to 64 characters, got one of 65"),
        (r'["a\ud800"]', "must be Unicode text, got "),
        (" " * (vocabulary.LARGEST_FILE + 1), "must have at most 1048576 bytes, got more"),
    ],
)
def test_files_of_tokens_that_cannot_be_used(tmp_path, content, message):
    path = tmp_path / "tokens.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_tokens(path)
    assert str(caught.value).startswith(str(path))


def test_vocabularies_that_are_none():
    with pytest.raises(ValueError, match="tokens must be none for bytes, got 1"):
        Vocabulary("bytes", (UNKNOWN,))
    with pytest.raises(ValueError, match=r"tokens must begin with"):
        Vocabulary("characters", ("a", UNKNOWN))
    with pytest.raises(ValueError, match="unit must be one of"):
        Vocabulary("words", (UNKNOWN,))


class Guess(torch.nn.Module):
    """Fixed log-probabilities of the next token, whatever came before."""

    def __init__(self, log_probs):
        super().__init__()
        self.log_probs = torch.nn.Parameter(log_probs)

    def forward(self, x, lengths=None):
        return self.log_probs.expand(*x.shape, -1)


@pytest.mark.parametrize("unit", ["characters", "bytes", "tokens"])
def test_bits_are_those_of_all_targets_over_all_their_characters(book, tmp_path, unit):
    options = {"unit": unit} if unit != "tokens" else {"tokens": str(tmp_path / "tokens.json")}
    (tmp_path / "tokens.json").write_text(json.dumps([" of a", "line "]))
    loaded = load(book, **options)
    task = task_of(loaded)
    assert task.metric == ("bits_per_byte" if unit == "bytes" else "bits_per_character")
    assert not task.larger_is_better
    random = torch.Generator().manual_seed(0)
    log_probs = torch.randn(loaded.info.vocabulary, generator=random).log_softmax(0)
    objective = Objective(Guess(log_probs), task).eval()
    split, sums = loaded.valid, torch.zeros(len(task.sums), dtype=torch.float64)
    for start in range(0, len(split), 3):  # the last batch is not full
        sums += objective(*split.batch(list(range(start, min(start + 3, len(split)))))).double()
    targets = text_of(split)[1:]
    nats = -sum(log_probs[token].item() for token in targets)
    sizes = [1 if unit == "bytes" else len(loaded.info.tokens[token]) for token in targets]
    assert (max(sizes) > 1) == (unit == "tokens")
    wanted = {"loss": nats / len(targets), task.metric: nats / math.log(2) / sum(sizes)}
    assert task.metrics(dict(zip(task.sums, sums.tolist()))) == pytest.approx(wanted, rel=1e-5)
    batch = loaded.train.batch([0, 1])
    training = Objective(Guess(log_probs), task)(*batch)
    assert training.item() == pytest.approx(-log_probs[batch.y].mean().item(), rel=1e-5)
