"""Speech Commands in parts: the same clips as from the folders, and one error for every kind of damage."""

import json
import pickle

import numpy as np
import pytest

from statespan.data.registry import load
from statespan.papers.datasets.speech_clips import SC10, SC30
from statespan.papers.datasets.speech_parts import PartError, Parts
from statespan.papers.datasets.speech_write import HEADER, MIB, main, write_parts
from tests.data.real import real
from tests.papers.datasets.test_speech import clip, tree

SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Ten words, nine clips of each, the first one short."""
    return tree(tmp_path_factory.mktemp("words"), SC10, 9)


@pytest.fixture
def parts(source, tmp_path):
    write_parts(source, tmp_path / "speech", mib=1)
    return tmp_path


def same(one, other):
    for name in SPLITS:
        a, b = getattr(one, name).arrays, getattr(other, name).arrays
        assert (np.asarray(a["x"]) == b["x"]).all()
        assert (np.asarray(a["y"]) == b["y"]).all()
    assert one.train.prepare == other.train.prepare


@pytest.mark.parametrize("options", [{}, {"split": "reference"}, {"split": "official", "whole": True}], ids=str)
def test_parts_are_read_as_the_folders_are(source, parts, options):
    same(load("sc10", parts, **options), load("sc10", source.parent, **options))


def test_what_is_written(source, parts):
    folder = parts / "speech"
    names = ["part-0000.npy", "part-0001.npy", "part-0002.npy", "parts.json", "testing_list.txt", "validation_list.txt"]
    assert sorted(path.name for path in folder.iterdir()) == names
    arrays = [np.load(folder / name) for name in names[:3]]
    assert [(array.dtype, len(array)) for array in arrays] == [(np.int16, 32), (np.int16, 32), (np.int16, 16)]
    assert all((folder / name).stat().st_size <= 1 << 20 for name in names[:3])
    wanted = np.stack([clip(100 * word + i)[:, 0] for word in range(10) for i in range(1, 9)])
    written = np.concatenate(arrays)  # by word and by name
    assert (written == wanted).all()
    again = write_parts(source, parts / "again", mib=1)
    assert [path.read_bytes() for path in again] == [(folder / name).read_bytes() for name in names]


def test_the_default_size_is_16_mib():
    """524 clips a part: 41 parts of the ten words, 112 of thirty."""
    rows = ((MIB << 20) - HEADER) // 32_000
    assert (rows, -(-21_312 // rows), -(-58_252 // rows)) == (524, 41, 112)
    assert rows * 32_000 + HEADER <= 16 * 2**20


def test_short_clips_only_on_request(source, tmp_path, capsys):
    main([str(source), str(tmp_path / "speech"), "--short", "--mib", "1"])
    assert capsys.readouterr().out == f"90 clips in 3 parts of at most 1 MiB in {tmp_path / 'speech'}\n"
    clips = Parts(tmp_path / "speech").clips(SC10)
    assert (Parts(tmp_path / "speech").lengths(clips) == np.array([9000, *[16000] * 8] * 10)).all()
    same(load("sc10", tmp_path, split="official"), load("sc10", source.parent, split="official"))
    same(load("sc10", tmp_path), load("sc10", source.parent))


def test_a_mistake_gets_one_line(tmp_path, capsys):
    for arguments, said in (
        ([tmp_path / "none", tmp_path / "x"], "source must have validation_list.txt and testing_list.txt"),
        ([tmp_path, tmp_path], "out must be a new folder"),
        ([tmp_path, tmp_path / "x", "--mib", "0"], "mib must be an integer >= 1, got 0"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(list(map(str, arguments)))
        last = capsys.readouterr().err.splitlines()[-1]
        assert said in last
    assert list(tmp_path.iterdir()) == []


def test_whole_clips_do_not_make_the_official_split_of_all(parts):
    with pytest.raises(ValueError, match=r"whole must be true with the parts in .*, got false"):
        load("sc10", parts, split="official")
    with pytest.raises(ValueError, match="must have clips of each of the 30 words, missing: bed, bird, cat"):
        load("sc30", parts, whole=True)


def test_thirty_words(tmp_path):
    source = tree(tmp_path / "a", SC30, 9)
    write_parts(source, tmp_path / "b" / "speech", words="sc30")
    for name, options in (("sc30", {"whole": True}), ("sc30", {"split": "reference"}), ("sc10", {})):
        same(load(name, tmp_path / "b", **options), load(name, tmp_path / "a", **options))


DAMAGE = {
    "missing": ("part-0001.npy", lambda path: path.unlink(), "is missing"),
    "cut": ("part-0002.npy", lambda path: path.write_bytes(path.read_bytes()[:-1]), "is damaged: it has 512127 bytes"),
    "a bit": ("part-0000.npy", lambda path: flip(path), "is damaged: its SHA-256 is"),
    "a list": ("testing_list.txt", lambda path: flip(path), "is damaged: its SHA-256 is"),
    "the list of parts": ("parts.json", lambda path: path.write_bytes(path.read_bytes()[:99]), "is damaged: JSONDec"),
    "another format": ("parts.json", lambda path: edit(path, format=2), "is not a list of parts of format 1"),
    "no parts": ("parts.json", lambda path: edit(path, parts=[]), "is not a list of parts of format 1"),
    "no digests": ("parts.json", lambda path: edit(path, parts=[{"file": "x"}]), "is damaged: KeyError"),
}


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", list(DAMAGE))
def test_damage_is_one_error_that_names_the_file(parts, name):
    file, damage, problem = DAMAGE[name]
    damage(parts / "speech" / file)
    with pytest.raises(PartError, match=problem) as caught:
        load("sc10", parts)
    assert caught.value.path == parts / "speech" / file
    assert str(caught.value).endswith("; copy it here again")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.path, copy.problem, str(copy)) == (caught.value.path, caught.value.problem, str(caught.value))


def test_a_part_outside_the_folder_or_of_another_kind_is_refused(parts):
    folder = parts / "speech"
    manifest = json.loads((folder / "parts.json").read_text())
    manifest["parts"][0]["file"] = "../part-0000.npy"
    edit(folder / "parts.json", parts=manifest["parts"])
    with pytest.raises(PartError, match="not a list of parts"):
        load("sc10", parts)
    manifest["parts"][0]["file"] = "part-0000.npy"
    manifest["parts"][0]["clips"].pop()
    manifest["parts"][0]["lengths"].pop()
    edit(folder / "parts.json", parts=manifest["parts"])
    with pytest.raises(PartError, match=r"part-0000.npy must be int16 of shape \(31, 16000\), got int16 \(32, 16000\)"):
        load("sc10", parts)


def test_a_part_that_was_copied_again_is_read(source, parts):
    path = parts / "speech" / "part-0001.npy"
    content = path.read_bytes()
    flip(path)
    with pytest.raises(PartError):
        load("sc10", parts)
    path.write_bytes(content)
    same(load("sc10", parts), load("sc10", source.parent))


def test_bad_arguments(source, tmp_path):
    with pytest.raises(ValueError, match="words must be one of"):
        write_parts(source, tmp_path / "x", words="sc9")
    with pytest.raises(ValueError, match="mib must be"):
        write_parts(source, tmp_path / "x", mib=0)
    with pytest.raises(FileExistsError, match="out must be a new folder"):
        write_parts(source, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"source must have validation_list.txt and testing_list.txt, missing"):
        write_parts(tmp_path, tmp_path / "x")
    short = tree(tmp_path / "short", SC10, 1)
    with pytest.raises(ValueError, match="source must have clips of 16,000 samples, got none in"):
        write_parts(short, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.real_data
def test_real_clips(tmp_path):
    folder = real(tmp_path, "speech")
    write_parts(folder / "speech", tmp_path / "parts" / "speech")
    same(load("sc10", tmp_path / "parts", split="reference"), load("sc10", folder, split="reference"))
