"""A text of one's own from the command line: trained, evaluated, and continued without its file."""

import json
import shutil

import pytest
import torch

from statespan import generate, models
from statespan.data import Vocabulary
from statespan.data.vocabulary import UNKNOWN
from tests.cli.make import invoke, one_line

TEXT = "the cat sat.\n" * 60
TINY = ["model.d_model=16", "model.d_state=4", "model.n_layers=1", "data.length=16", "train.batch=8"]
QUICK = ["train.steps=150", "train.validate_every=50", "train.lr=0.02", "train.warmup=0", "train.tensorboard=false"]


def said(done):
    assert done.exit_code == 0, (done.stdout, done.stderr, done.exception)
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with runs of the recipe own-text on characters, bytes and longer tokens; the text is gone."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "cat.txt").write_text(TEXT)
    (folder / "tokens.json").write_text(json.dumps(["the ", "cat"]))
    train = ("train", "own-text", f"data.path={folder / 'cat.txt'}", *TINY, *QUICK, "--folder", folder / "runs")
    (folder / "said.txt").write_text(said(invoke(*train, "name=characters", "--device", "cpu")))
    said(invoke(*train, "name=bytes", "data.unit=bytes", "--device", "cpu"))
    said(invoke(*train, "name=tokens", f"data.tokens={folder / 'tokens.json'}", "--device", "cpu"))
    (folder / "cat.txt").rename(folder / "moved.txt")
    return folder


def test_train_shows_and_records_bits_per_character(home):
    text = (home / "said.txt").read_text()
    assert "702 / 39 / 39 characters, 10 tokens, 0 / 0 / 0 unknown characters" in text
    for name, metric in (("characters", "bits_per_character"), ("bytes", "bits_per_byte")):
        record = json.loads((home / "runs" / name / "result.json").read_text())
        assert record["metric"] == metric
        assert 0 < record["test"][metric] < 1
        assert record["test"][metric] == pytest.approx(record["test"]["loss"] / 0.6931472)
        assert f"valid_{metric}" in record["history"]
        assert f"valid_{metric}" in (home / "runs" / name / "log.csv").read_text().splitlines()[0]
    assert "bits per character" in text
    longer = json.loads((home / "runs" / "tokens" / "result.json").read_text())["test"]
    assert longer["bits_per_character"] < 0.8 * longer["loss"] / 0.6931472  # a token has several characters


def test_eval_measures_the_same(home):
    record = json.loads((home / "runs" / "characters" / "result.json").read_text())
    text = said(invoke("eval", home / "runs/characters", f"data.path={home / 'moved.txt'}", "--device", "cpu"))
    assert f"bits per character {record['test']['bits_per_character']:.4g}" in " ".join(text.split())


def test_eval_refuses_a_text_with_other_characters(home, tmp_path):
    """As many tokens, but others: the model would read them as those it knows."""
    (tmp_path / "other.txt").write_text(TEXT.replace("c", "d"))
    line = one_line(invoke("eval", home / "runs/characters", f"data.path={tmp_path / 'other.txt'}", "--device", "cpu"))
    assert line.endswith("got one with 10 tokens that differ from the 10 of the model\n")
    said(invoke("eval", home / "runs/bytes", f"data.path={tmp_path / 'other.txt'}", "--device", "cpu"))


@pytest.mark.parametrize("name", ["characters", "bytes", "tokens"])
def test_generate_continues_without_the_file_and_without_spaces(home, name, tmp_path):
    steps = {"characters": 26, "bytes": 26, "tokens": 16}[name]
    command = ("--prompt", "the cat sat.\n", "--steps", steps, "--temperature", 0, "--device", "cpu")
    text = said(invoke("generate", home / "runs" / name, *command))
    assert text == "the cat sat.\n" * 3 + "\n"
    shutil.copytree(home / "runs" / name / "model", tmp_path / "copy")  # the vocabulary is in the model
    assert said(invoke("generate", tmp_path / "copy", *command)) == text
    several = said(invoke("generate", tmp_path / "copy", *command, "--count", 3))
    assert several == f"{text}\n" * 3


def test_an_empty_prompt_starts_a_line(home):
    command = ("--steps", 7, "--temperature", 0, "--device", "cpu")
    assert said(invoke("generate", home / "runs/characters", *command)) == "the cat\n"
    assert said(invoke("generate", home / "runs/bytes", *command)) == "the cat\n"


def test_unknown_characters_of_a_prompt_are_named(home):
    line = one_line(invoke("generate", home / "runs/characters", "--prompt", "the Dog: é\x1b the D"))
    assert line.rstrip() == (
        "statespan: --prompt must be characters of the training text, got 'D' (U+0044), 'o' (U+006F), 'g' (U+0067), "
        "':' (U+003A), 'é' (U+00E9), '\\x1b' (U+001B)"
    )
    line = one_line(invoke("generate", home / "runs/characters", "--prompt", "".join(map(chr, range(200, 240)))))
    assert line.rstrip().endswith("'Û' (U+00DB) and 20 more")
    said(invoke("generate", home / "runs/bytes", "--prompt", "é", "--steps", 3, "--device", "cpu"))


def saved(folder, unit, tokens=(), vocabulary=256):
    torch.manual_seed(0)
    options = {"d_model": 8, "d_state": 4, "n_layers": 1, "layer": "s4d", "vocabulary": vocabulary}
    model = models.build("language", None, {**options, "unit": unit, "tokens": tokens}).eval()
    model.save_pretrained(folder)
    return model


def test_bytes_are_decoded_and_control_characters_escaped(tmp_path):
    model = saved(tmp_path, "bytes")
    text = said(invoke("generate", tmp_path, "--prompt", "aé", "--steps", 1500, "--device", "cpu", "--seed", 4))
    drawn = generate(model, torch.tensor([list("aé".encode())]), 1500, seed=4).values[0].tolist()
    assert set(drawn) > {27, 13, 10, 9}
    whole = "aé" + bytes(drawn).decode("utf-8", "replace").replace("\r", "") + "\n"
    shown = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in whole)
    assert text == shown
    assert "\x1b" not in text
    assert "\\x1b" in text
    assert "\ufffd" in text


def test_an_empty_prompt_needs_a_line_break_in_the_text(tmp_path):
    saved(tmp_path, "characters", (UNKNOWN, "a", "b"), 3)
    assert "--prompt must not be empty" in one_line(invoke("generate", tmp_path, "--device", "cpu"))
    text = said(invoke("generate", tmp_path, "--prompt", "ab", "--steps", 40, "--device", "cpu"))
    assert len(text) == 43
    assert set(text) == {"a", "b", UNKNOWN, "\n"}


def test_a_model_has_the_tokens_of_its_config(tmp_path):
    tokens = (UNKNOWN, "\n", "a", "é", "\U0001f600", "the ")
    saved(tmp_path, "characters", tokens, 6)
    config = models.from_pretrained(tmp_path).config
    assert config.tokens == tokens
    assert Vocabulary(config.unit, config.tokens).decode([5, 2, 4]) == "the a\U0001f600"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "characters"}, "tokens must be 5 texts for unit='characters', got 0"),
        ({"unit": "characters", "tokens": tuple("abcd")}, "tokens must be 5 texts for unit='characters', got 4"),
        ({"tokens": tuple("abcde")}, "tokens must be 0 texts for unit='', got 5"),
        ({"unit": "bytes"}, "vocabulary must be 256 for unit='bytes', got 5"),
        ({"unit": "words"}, "unit must be one of"),
        (
            {"unit": "characters", "tokens": tuple("abcde")},
            "tokens must begin with '\ufffd' for unit='characters', got 'a'",
        ),
        ({"unit": "characters", "tokens": tuple("aabcd")}, "tokens must be distinct texts"),
    ],
)
def test_configs_that_do_not_fit_their_text(options, message):
    with pytest.raises(ValueError, match=message):
        models.LanguageConfig(vocabulary=5, **options)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.txt", None, [], "path must be an existing text file, got "),
        ("a.txt", b"\xff" * 500, [], "a.txt must be text in UTF-8, got 0xff at byte 0; data.unit=bytes reads any file"),
        ("a.txt", b"a" * 100, [], "a.txt must have at least 257 tokens to train, got 90"),
        ("a.txt", b"a" * 100, ["data.unit=byte"], "unit must be one of ('characters', 'bytes'), got 'byte'"),
        ("a.txt", b"ab\n" * 1000, ["model.name=classifier"], "model"),
    ],
)
def test_mistakes_are_one_line(tmp_path, name, content, options, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = invoke("train", "own-text", f"data.path={tmp_path / name}", *options, "--folder", tmp_path / "runs")
    assert message in one_line(done)
    assert not (tmp_path / "runs").exists()
