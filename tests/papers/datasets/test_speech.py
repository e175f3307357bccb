"""Speech Commands: splits, padding, scaling, features, on made-up trees and on real clips."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split

from statespan.data.registry import load
from statespan.papers.datasets import speech
from statespan.papers.datasets.mfcc import mfcc
from tests.data.real import real
from tests.data.wav import wav_bytes


def clip(seed, length=16000, size=2000):
    return np.random.default_rng(seed).integers(-size, size, (length, 1)).astype(np.int16)


def tree(folder, words, clips):
    """A tree in the public layout: clips of every word, the last two of each for validation and test."""
    root = folder / "speech"
    lists = {"validation": [], "testing": []}
    for number, word in enumerate(words):
        (root / word).mkdir(parents=True)
        for i in range(clips):
            length = 16000 if i else 9000  # the first clip of each word is short
            (root / word / f"{i:08x}_nohash_0.wav").write_bytes(wav_bytes(clip(100 * number + i, length), 16000))
        lists["validation"].append(f"{word}/{clips - 2:08x}_nohash_0.wav")
        lists["testing"].append(f"{word}/{clips - 1:08x}_nohash_0.wav")
    for name, lines in lists.items():
        (root / f"{name}_list.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    tree(folder, speech.SC35, 3)
    return folder


def test_sc35_has_the_official_split_padded_clips_and_one_scale(small):
    data = load("sc35", small)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [35, 35, 35]
    assert data.info.classes == tuple(sorted(speech.SC35))
    assert (data.info.length, data.info.d_input, data.info.d_output, data.info.sampling_rate) == (16000, 1, 35, 16000.0)
    train = data.train.batch(list(range(35)))
    assert train.x.shape == (35, 16000, 1)
    assert train.y.tolist() == list(range(35))
    assert abs(train.x.mean()) < 1e-6
    assert abs(train.x.std() - 1) < 1e-6
    original = np.concatenate([np.pad(clip(100 * word, 9000)[:, 0], (0, 7000)) for word in range(35)]).astype(float)
    wanted = (clip(302)[:, 0] - original.mean()) / original.std()  # third clip of the fourth word
    assert np.abs(data.test.batch([3]).x[0, :, 0].numpy() - wanted).max() < 1e-5
    assert data.train.arrays["x"].dtype == np.int16


def test_scaled_once_and_subsampled(small):
    plain = load("sc35", small, standard=False).valid.batch([7]).x
    assert (plain[0, :, 0].numpy() == clip(701)[:, 0] / 32768).all()
    half = load("sc35", small, standard=False, subsample=2)
    assert (half.info.length, half.info.sampling_rate) == (8000, 8000.0)
    assert torch.equal(half.valid.batch([7]).x, plain[:, ::2])
    assert load("sc35", small, subsample=3).valid.batch([0]).x.shape[1] == load("sc35", small, subsample=3).info.length


def test_mfcc_features(small):
    data = load("sc35", small, features="mfcc")
    assert (data.info.length, data.info.d_input, data.info.sampling_rate) == (161, 20, 160.0)
    train = data.train.batch(list(range(35))).x
    assert train.shape == (35, 161, 20)
    assert train.mean((0, 1)).abs().max() < 1e-5
    assert (train.std((0, 1)) - 1).abs().max() < 1e-3
    clips = torch.from_numpy(np.stack([np.pad(clip(100 * word, 9000)[:, 0], (0, 7000)) for word in range(35)]))
    raw = mfcc(clips / 32768)
    wanted = (mfcc(torch.from_numpy(clip(302)[:, 0]) / 32768) - raw.mean((0, 1))) / raw.std((0, 1), unbiased=False)
    assert (data.test.batch([3]).x[0] - wanted).abs().max() < 1e-4
    with pytest.raises(ValueError, match="subsample must be 1"):
        load("sc35", small, features="mfcc", subsample=2)


def test_sc10_by_the_papers_rule_takes_whole_clips_only(tmp_path):
    tree(tmp_path, speech.SC10, 21)
    data = load("sc10", tmp_path)
    parts = (data.train, data.valid, data.test)
    assert [len(part) for part in parts] == [140, 30, 30]  # 20 of 21 clips of each word
    seen = np.concatenate([part.arrays["x"] for part in parts])
    assert len(np.unique(seen, axis=0)) == 200
    for part in parts:
        assert len(set(np.bincount(part.arrays["y"]))) == 1
    official = load("sc10", tmp_path, split="official")
    assert [len(part) for part in (official.train, official.valid, official.test)] == [190, 10, 10]
    assert data.info.classes == speech.SC10


def test_the_split_of_the_reference_has_scikit_learns_rows(tmp_path):
    """Seeds 0 and 1, of the clips in the order of the words and of their names."""
    tree(tmp_path, speech.SC10, 21)
    data = load("sc10", tmp_path, split="reference")
    numbers = np.array([100 * word + i for word in range(10) for i in range(1, 21)])  # i = 0 is short
    train, rest = train_test_split(numbers, train_size=0.7, random_state=0, stratify=numbers // 100)
    valid, test = train_test_split(rest, train_size=0.5, random_state=1, stratify=rest // 100)
    for part, wanted in zip((data.train, data.valid, data.test), (train, valid, test)):
        assert (part.arrays["x"] == np.stack([clip(n)[:, 0] for n in sorted(wanted)])).all()
        assert part.arrays["y"].tolist() == [n // 100 for n in sorted(wanted)]
    assert [len(part) for part in (train, valid, test)] == [140, 30, 30]
    others = load("sc10", tmp_path).train.arrays["x"]
    assert (others != data.train.arrays["x"]).any()


def test_thirty_words_of_the_first_version(small):
    data = load("sc30", small)
    assert len(data.info.classes) == 30
    assert set(speech.SC35) - set(data.info.classes) == {"backward", "follow", "forward", "learn", "visual"}
    assert [len(part) for part in (data.train, data.valid, data.test)] == [30, 30, 30]
    assert data.valid.batch([1]).y.tolist() == [1]
    third = load("sc30", small, standard=False).valid.batch([2]).x[0, :, 0]  # "cat", the fourth of 35 words
    assert (third.numpy() == clip(301)[:, 0] / 32768).all()


def test_the_lists_without_short_clips(tmp_path):
    tree(tmp_path, speech.SC10, 5)
    data = load("sc10", tmp_path, split="official", whole=True)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [20, 10, 10]
    wanted = np.stack([clip(100 * word + i)[:, 0] for word in range(10) for i in (1, 2)])
    assert (data.train.arrays["x"] == wanted).all()


def test_trees_that_are_not_whole_are_refused(tmp_path):
    root = tree(tmp_path, speech.SC10, 3)
    with pytest.raises(ValueError, match="35 words, missing: backward, bed"):
        load("sc35", tmp_path)
    with pytest.raises(ValueError, match="split must be one of"):
        load("sc10", tmp_path, split="random")
    (root / "go" / "00000001_nohash_0.wav").unlink()
    with pytest.raises(ValueError, match=r"validation_list.txt lists 1 missing files, such as go/00000001"):
        load("sc10", tmp_path, split="official")
    (root / "go" / "00000001_nohash_0.wav").write_bytes(wav_bytes(clip(0), 8000))
    with pytest.raises(ValueError, match=r"go/00000001_nohash_0.wav must be mono, 16 bits, 16000 Hz"):
        load("sc10", tmp_path, split="official")


@pytest.mark.real_data
def test_real_clips(tmp_path):
    folder = real(tmp_path, "speech")
    official = load("sc10", folder, split="official")
    assert [len(part) for part in (official.train, official.valid, official.test)] == [1000, 200, 400]
    assert np.bincount(official.test.arrays["y"]).tolist() == [40] * 10
    x = official.train.arrays["x"].astype(float)
    assert official.train.prepare.std == pytest.approx(x.std(), rel=1e-9)
    papers = load("sc10", folder)
    assert [len(part) for part in (papers.train, papers.valid, papers.test)] == [1120, 240, 240]
    reference = load("sc10", folder, split="reference")
    assert [len(part) for part in (reference.train, reference.valid, reference.test)] == [1120, 240, 240]
    assert np.bincount(reference.train.arrays["y"]).tolist() == [112] * 10
    assert load("sc10", folder, features="mfcc").test.batch([0]).x.shape == (1, 161, 20)


def test_words_of_the_training_vary(small):
    plain, data = load("sc35", small), load("sc35", small, augment=True, subsample=2)
    assert plain.augment is None
    assert (data.augment.move, data.augment.around, data.augment.rate) == (800, False, None)
    batch = data.train.batch([5, 5])
    changed = data.augment(batch, torch.Generator().manual_seed(0))
    assert changed.x.shape == batch.x.shape
    assert torch.equal(changed.y, batch.y)
    assert (changed.x[0] - changed.x[1]).abs().max() > 0.5
    assert torch.equal(data.valid.batch([2]).x, plain.valid.batch([2]).x[:, ::2])
    with pytest.raises(ValueError, match="augment must be false with features 'mfcc'"):
        load("sc35", small, features="mfcc", augment=True)
