"""Recordings changed at random: against a slow version, by as much as is said, and targets that follow the speed."""

import math

import numpy as np
import pytest
import torch

from statespan.data.augment import Compose, Crop, Vary
from statespan.data.base import Batch

L = 37


def recordings(n: int, signals: int = 2) -> torch.Tensor:
    return torch.randn(n, L, signals, generator=torch.Generator().manual_seed(1))


def run(vary: Crop | Compose | Vary, x: torch.Tensor, y: torch.Tensor | None = None, seed: int = 3) -> Batch:
    return vary(Batch(x, torch.zeros(len(x), 1) if y is None else y), torch.Generator().manual_seed(seed))


def slow(x: np.ndarray, faster: float, move: int, around: bool) -> np.ndarray:
    """One signal read at other places, sample by sample."""
    out = np.empty_like(x)
    for t in range(len(x)):
        place = (len(x) - 1) / 2 + faster * (t - (len(x) - 1) / 2) - move
        before = math.floor(place)

        def at(i: int) -> float:
            return x[i % len(x)] if around else x[i] if 0 <= i < len(x) else 0.0

        out[t] = (1 - (place - before)) * at(before) + (place - before) * at(before + 1)
    return out


@pytest.mark.parametrize("around", [True, False])
def test_matches_the_slow_version(around: bool) -> None:
    x, vary = recordings(6), Vary(move=20, around=around, speed=0.4, rate=(70.0, 10.0))
    changed = run(vary, x)
    generator = torch.Generator().manual_seed(3)
    move = torch.randint(-20, 21, (6, 1), generator=generator)
    faster = (0.4 * (2 * torch.rand(6, 1, generator=generator) - 1)).exp()
    assert len(set(move.flatten().tolist())) > 3
    for row in range(6):
        for signal in range(2):
            want = slow(x[row, :, signal].double().numpy(), float(faster[row]), int(move[row]), around)
            np.testing.assert_allclose(changed.x[row, :, signal].numpy(), want, atol=2e-5)
    torch.testing.assert_close(70.0 + 10.0 * changed.y, 70.0 * faster, atol=1e-4, rtol=0)


def test_a_wave_that_goes_faster_has_a_higher_rate() -> None:
    """The rate of the changed wave, measured by its spectrum, is the one its target says."""
    t = torch.arange(4000) / 125
    x = torch.sin(2 * math.pi * 1.25 * t).expand(64, 4000)[..., None]  # 75 a minute
    changed = run(Vary(speed=0.3, rate=(60.0, 5.0)), x, torch.full((64, 1), 3.0))
    spectrum = torch.fft.rfft(changed.x[..., 0] * torch.hann_window(4000), n=2**17).abs()
    measured = spectrum.argmax(1) * 125 / 2**17 * 60
    told = 60.0 + 5.0 * changed.y[:, 0]
    assert 55 < told.min() < 65 < 85 < told.max() < 102
    torch.testing.assert_close(measured, told, atol=0.6, rtol=0)


def test_moves_up_to_what_it_says_and_leaves_silence() -> None:
    x = torch.arange(1.0, L + 1).expand(500, L)[..., None]
    moved = run(Vary(move=3), x).x[..., 0]
    seen = set()
    for row in moved:
        by = 18 - (int(row[18]) - 1)  # later by so many positions
        want = torch.zeros(L)
        want[max(0, by) : L + min(0, by)] = x[0, max(0, -by) : L - max(0, by), 0]
        assert torch.equal(row, want)
        seen.add(by)
    assert seen == set(range(-3, 4))


def test_each_signal_has_a_gain_of_its_own_and_targets_stay() -> None:
    x, y = recordings(400), torch.randn(400, 1)
    changed = run(Vary(gain=0.5), x, y)
    gain = (changed.x / x).log()
    assert (gain - gain[:, :1]).abs().max() < 1e-5  # the same along a recording
    assert -0.5 <= gain.min() < -0.45
    assert 0.45 < gain.max() <= 0.5
    assert abs(np.corrcoef(gain[:, 0].T.numpy())[0, 1]) < 0.2
    assert torch.equal(changed.y, y)


def test_noise_is_relative_to_the_signal() -> None:
    x = recordings(300)
    x[..., 1] = 100 * x[..., 1] + 5000  # far from 0, as some sensors are
    added = (run(Vary(noise=0.2), x).x - x).std(1) / x.std(1)
    assert 0.15 < added.max() < 0.27  # 0.2, as estimated from 37 samples
    assert added.min() < 0.02
    torch.testing.assert_close(added[:, 0].mean(), added[:, 1].mean(), atol=0.01, rtol=0)


def test_nothing_to_change_and_the_same_seed() -> None:
    x = recordings(4)
    assert torch.equal(run(Vary(), x).x, x)
    everything = Vary(move=5, around=True, speed=0.1, gain=0.1, noise=0.1)
    assert torch.equal(run(everything, x).x, run(everything, x).x)
    assert (run(everything, x).x - run(everything, x, seed=4).x).abs().max() > 0.1
    twice = run(everything, x[:1].expand(2, -1, -1)).x
    assert (twice[0] - twice[1]).abs().max() > 0.1


def test_parts_of_any_length_from_anywhere_are_what_was_recorded() -> None:
    x = torch.arange(1.0, L + 1).expand(2000, L)[..., None] + torch.tensor([0.0, 100.0])
    parts = run(Crop(L - 4), x, torch.randn(2000, 1))
    assert parts.lengths is not None
    first = parts.x[:, 0, 0] - 1
    seen = set()
    for part, begin, length in zip(parts.x, first.long().tolist(), parts.lengths.tolist(), strict=True):
        assert torch.equal(part[:length], x[0, begin : begin + length])
        assert not part[length:].any()
        seen.add((length, begin))
    assert seen == {(length, begin) for length in range(L - 4, L + 1) for begin in range(L - length + 1)}
    counts = torch.bincount(parts.lengths - (L - 4)) / 2000
    torch.testing.assert_close(counts, torch.full((5,), 0.2), atol=0.04, rtol=0)
    whole = run(Crop(L), x)
    assert torch.equal(whole.x, x)
    assert whole.lengths is not None
    assert set(whole.lengths.tolist()) == {L}


def test_changes_in_turn_draw_from_one_generator() -> None:
    x, y = recordings(5), torch.randn(5, 1)
    generator = torch.Generator().manual_seed(3)
    want = Crop(20)(Vary(move=9, around=True)(Batch(x, y), generator), generator)
    found = run(Compose((Vary(move=9, around=True), Crop(20))), x, y)
    assert want.lengths is not None
    assert found.lengths is not None
    assert torch.equal(found.x, want.x)
    assert torch.equal(found.lengths, want.lengths)
    assert torch.equal(found.y, y)
