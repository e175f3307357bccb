"""MFCC against scipy's transforms and the definition written out."""

import numpy as np
import pytest
import scipy.fft
import scipy.signal
import torch

from statespan.papers.datasets.mfcc import dct, mel_filters, mfcc


def by_definition(x, rate, n_mfcc, n_fft, n_mels):
    """One signal (L,), frame by frame and triangle by triangle, with scipy's window, FFT and DCT."""
    hop = n_fft // 2
    padded = np.pad(x, hop, mode="reflect")
    window = scipy.signal.get_window("hann", n_fft)
    hertz = np.arange(n_fft // 2 + 1) * rate / n_fft
    mels = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), n_mels + 2)
    corners = 700 * (10 ** (mels / 2595) - 1)
    rows = []
    for frame in range(len(x) // hop + 1):
        power = np.abs(scipy.fft.rfft(padded[frame * hop : frame * hop + n_fft] * window)) ** 2
        bands = [power @ np.interp(hertz, corners[m : m + 3], [0, 1, 0], left=0, right=0) for m in range(n_mels)]
        rows.append(scipy.fft.dct(np.log(np.array(bands) + 1e-6), type=2, norm="ortho")[:n_mfcc])
    return np.array(rows)


@pytest.mark.parametrize(
    ("length", "options"),
    [
        (16000, {}),
        (1600, {"rate": 8000, "n_mfcc": 13, "n_fft": 64, "n_mels": 20}),
        (777, {"rate": 44100, "n_mfcc": 5, "n_fft": 128, "n_mels": 5}),
    ],
)
def test_equals_the_definition(length, options):
    x = 0.1 * np.random.default_rng(0).standard_normal(length)
    wanted = by_definition(x, **{"rate": 16000, "n_mfcc": 20, "n_fft": 200, "n_mels": 64} | options)
    found = mfcc(torch.from_numpy(x), **options)
    assert found.dtype == torch.float64
    assert np.abs(found.numpy() - wanted).max() < 1e-11


def test_of_speech_commands_clips():
    assert mfcc(torch.zeros(2, 3, 16000)).shape == (2, 3, 161, 20)
    silence = mfcc(torch.zeros(16000))
    assert torch.allclose(silence[:, 0], torch.tensor(np.log(1e-6) * 8.0))  # √64 times the logarithm of the floor
    assert silence[:, 1:].abs().max() < 1e-12


def test_filters_and_transform():
    filters = mel_filters(16000, 200, 64)
    assert filters.min() == 0
    assert filters.max() <= 1
    assert filters[0].sum() == 0  # no weight at zero frequency
    assert torch.allclose(dct(20, 64).T @ dct(20, 64), torch.eye(20, dtype=torch.float64), atol=1e-14)


@pytest.mark.parametrize("options", [{"n_mfcc": 65}, {"n_fft": 201}, {"n_mels": 0}, {"n_fft": 4000}])
def test_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        mfcc(torch.zeros(1000), **options)
