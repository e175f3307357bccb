"""The convolution view: long convolutions by FFT.

Shapes: B batch, L length, H heads, K channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statespan._check import check_int, check_tensor


def fftconv(u: Tensor, kernel: Tensor, backward: Tensor | None = None) -> Tensor:
    """Convolve every head of u with its kernel, and optionally with a second, anti-causal kernel.

    ``y_t = Σ_{j≤t} kernel_j u_{t-j} + Σ_{j≥0} backward_j u_{t+1+j}``: the second sum starts at the next sample, so that
    the present one is counted once.

    Args:
        u: (B, L, H), L ≥ 1, float32 or float64.
        kernel: (K, H, L).
        backward: (K, H, L) or None.

    Returns:
        y of shape (B, L, K, H).
    """
    check_tensor("u", u, ("batch", "length", "H"), kind="real")
    length, heads = check_int("the length of u", u.shape[1], minimum=1), u.shape[2]
    for name, k in (("kernel", kernel), ("backward", backward)):
        if k is not None:
            check_tensor(name, k, (kernel.shape[0], heads, length), kind="real")
            if k.dtype != u.dtype:
                raise TypeError(f"{name} must have the dtype of u, {u.dtype}, got {k.dtype}")
    if u.shape[0] == 0:  # FFT libraries refuse an empty batch
        return u.new_zeros(0, length, *kernel.shape[:2])
    n = fast_length(2 * length - 1)  # room for lags -(L-1) … L-1, so nothing wraps around
    spectrum = torch.fft.rfft(kernel, n=n)
    if backward is not None:
        # u_{t+1+j} is lag -(1+j), stored at n-1-j; lag -L reaches beyond every output and would need one more place
        spectrum = spectrum + torch.fft.rfft(
            torch.nn.functional.pad(backward[..., : length - 1].flip(-1), (n - length + 1, 0)), n=n
        )
    y = torch.fft.irfft(torch.fft.rfft(u.mT, n=n)[:, None] * spectrum, n=n)[..., :length]  # (B, K, H, L)
    return y.movedim(-1, 1)


def fast_length(n: int) -> int:
    """The smallest even number ≥ n with no prime factor above 5, for which FFTs are fast."""
    best = 1 << max(1, (n - 1).bit_length())
    five = 1
    while five < best:
        three = five
        while three < best:
            two = max(2, 1 << max(0, (-(-n // three) - 1).bit_length()))
            best = min(best, three * two)
            three *= 3
        five *= 5
    return best
