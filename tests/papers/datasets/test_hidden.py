"""Hidden characters: how many, which, and what is asked about them."""

import pytest
import torch

from statespan.data import load
from statespan.data.base import Batch, trim
from statespan.papers.datasets.text import Find, Hide
from tests.papers.datasets.test_text import imdb  # noqa: F401

PAD, UNK = 0, 1


def generator(seed):
    return torch.Generator().manual_seed(seed)


def batch(rows=40, length=500):
    lengths = torch.randint(1, length + 1, (rows,), generator=generator(0))
    tokens = torch.randint(2, 30, (rows, length), generator=generator(1))
    return Batch(torch.where(torch.arange(length) < lengths[:, None], tokens, PAD), torch.arange(rows), lengths)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_as_noise(share):
    """The share of what is there, other tokens each time, and nothing else changes."""
    given = batch()
    made, other = (Hide(share)(given, generator(seed)) for seed in (2, 3))
    changed = made.x != given.x
    assert (made.x[changed] == UNK).all()
    assert not changed[given.x == PAD].any()
    assert changed.sum() / (given.x != PAD).sum() == pytest.approx(share, abs=0.02)
    assert not torch.equal(made.x, other.x)
    assert torch.equal(made.x, Hide(share)(given, generator(2)).x)
    assert torch.equal(made.y, given.y)
    assert torch.equal(made.lengths, given.lengths)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_to_be_found(share):
    """What is told about each position is the token there, and whether it is hidden."""
    given = batch()
    find = Find(share)
    fixed = find({"tokens": given.x, "lengths": given.lengths, "y": given.y})
    real = given.x != PAD
    for made in (fixed, find.anew(fixed, generator(4)), find.anew(find.anew(fixed, generator(5)), generator(6))):
        hidden = made.y >= 0
        assert torch.equal(torch.where(hidden, made.y, -1 - made.y), given.x)
        assert torch.equal(made.x, torch.where(hidden, UNK, given.x))
        assert not hidden[~real].any()
        near = 0.05 if made is fixed else 0.02  # of 500 positions, and of all
        assert hidden.sum() / real.sum() == pytest.approx(share, abs=near)
    first, second = (find.anew(fixed, generator(seed)).y >= 0 for seed in (4, 5))
    assert not torch.equal(first, second)
    rows = (fixed.y >= 0) | ~real
    assert (rows == rows[given.lengths.argmax()])[real].all()  # the same positions in every row


def test_fixed_positions_have_no_rhythm():
    """No shift makes the pattern look like itself."""
    rows = {"tokens": torch.full((1, 4096), 5), "lengths": torch.tensor([4096]), "y": torch.tensor([0])}
    pattern = (Find(0.5)(rows).y[0] >= 0).double()
    pattern -= pattern.mean()
    for shift in range(1, 200):
        assert abs((pattern[shift:] * pattern[:-shift]).mean() / pattern.square().mean()) < 0.1


def test_text(imdb):  # noqa: F811
    """The labels are gone, the three parts are the same reviews, and only training draws anew."""
    plain, data = load("text", imdb, least=1), load("text", imdb, least=1, hide=0.3, find=True)
    assert (data.info.task, data.info.vocabulary, data.info.d_output) == ("masked", *[plain.info.vocabulary] * 2)
    for name in ("train", "valid", "test"):
        before, after = (getattr(one, name).batch([0, 1, 3]) for one in (plain, data))
        assert torch.equal(torch.where(after.y < 0, -1 - after.y, after.y), before.x)
        assert 0 < (after.y >= 0).sum() < (before.x != PAD).sum()
    some = data.train.batch([0, 1])
    assert not torch.equal(data.augment(some, generator(0)).x, some.x)
    cut = trim(some, 10)
    assert cut.y.shape == cut.x.shape == (2, 10)
    noisy = load("text", imdb, least=1, hide=0.3)
    assert noisy.info == plain.info
    assert torch.equal(noisy.train.batch([0]).x, plain.train.batch([0]).x)
    assert (noisy.augment(plain.train.batch([0]), generator(0)).x == UNK).any()
    assert load("text", imdb, least=1).augment is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hide": 1.0}, "hide must be a number >= 0 and < 1, got 1.0"),
        ({"hide": -0.1}, "hide must be a number >= 0 and < 1, got -0.1"),
        ({"find": True}, "hide must be a number > 0 and < 1, got 0.0"),
    ],
)
def test_mistakes(imdb, options, message):  # noqa: F811
    with pytest.raises(ValueError, match=message):
        load("text", imdb, **options)
