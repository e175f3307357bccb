"""Mel-frequency cepstral coefficients, in float64, from the definition.

Shapes: L samples, F frames (one every hop, centred, so F = L // hop + 1), Q = n_fft // 2 + 1 frequencies, M mels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statespan._check import check_int

FLOOR = 1e-6  # added before the logarithm, so that silence is finite


def mel_filters(rate: int, n_fft: int, n_mels: int) -> Tensor:
    """Triangles (Q, M), evenly spaced and overlapping by half on the scale mel(f) = 2595 log10(1 + f / 700).

    Narrow triangles that fall between two frequencies of the transform are zero.

    Example:
        >>> mel_filters(16000, 200, 64).shape
        torch.Size([101, 64])
    """
    frequencies = torch.linspace(0.0, rate / 2, n_fft // 2 + 1, dtype=torch.float64)
    top = 2595.0 * math.log10(1.0 + rate / 2 / 700.0)
    corners = 700.0 * (10.0 ** (torch.linspace(0.0, top, n_mels + 2, dtype=torch.float64) / 2595.0) - 1.0)
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies[:, None] - left) / (centre - left)  # (Q, M)
    falling = (right - frequencies[:, None]) / (right - centre)
    return torch.minimum(rising, falling).clamp_min(0.0)


def dct(n_mfcc: int, n_mels: int) -> Tensor:
    """The first n_mfcc columns (M, n_mfcc) of the orthonormal cosine transform of type 2.

    Example:
        >>> matrix = dct(8, 8)
        >>> torch.allclose(matrix.T @ matrix, torch.eye(8, dtype=torch.float64))
        True
    """
    at = (torch.arange(n_mels, dtype=torch.float64) + 0.5) * (math.pi / n_mels)
    matrix = torch.cos(at[:, None] * torch.arange(n_mfcc)) * math.sqrt(2.0 / n_mels)
    matrix[:, 0] /= math.sqrt(2.0)
    return matrix


def mfcc(x: Tensor, *, rate: int = 16000, n_mfcc: int = 20, n_fft: int = 200, n_mels: int = 64) -> Tensor:
    """Mel-frequency cepstral coefficients: cosine transform of the logarithm of mel-weighted power.

    A signal (..., L) with L > n_fft // 2 gives (..., L // (n_fft // 2) + 1, n_mfcc), float64. Frames of n_fft samples
    (an even number) come every n_fft // 2, centred, with the signal reflected at both ends, and have a periodic Hann
    window; log(power + 1e-6), natural. The defaults are those of the papers' Speech Commands features.

    Example:
        >>> mfcc(torch.zeros(3, 16000)).shape
        torch.Size([3, 161, 20])
    """
    check_int("n_fft", n_fft, minimum=2, even=True)
    check_int("n_mels", n_mels, minimum=1)
    check_int("n_mfcc", n_mfcc, minimum=1)
    if n_mfcc > n_mels:
        raise ValueError(f"n_mfcc must be at most n_mels, {n_mels}, got {n_mfcc}")
    half = n_fft // 2
    if x.shape[-1] <= half:
        raise ValueError(f"x must be longer than n_fft // 2 = {half} samples, got {x.shape[-1]}")
    x = x.to(torch.float64)
    x = torch.cat([x[..., 1 : half + 1].flip(-1), x, x[..., -half - 1 : -1].flip(-1)], -1)
    window = torch.hann_window(n_fft, periodic=True, dtype=torch.float64, device=x.device)
    frames = x.unfold(-1, n_fft, half) * window  # (..., F, n_fft)
    power = torch.fft.rfft(frames).abs().square()  # (..., F, Q)
    mels = power @ mel_filters(rate, n_fft, n_mels).to(x.device)  # (..., F, M)
    return torch.log(mels + FLOOR) @ dct(n_mfcc, n_mels).to(x.device)
