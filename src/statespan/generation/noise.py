"""Random numbers as a function of a seed, a row and a position alone.

So a sample does not depend on the rest of its batch, on how many steps are taken at a time, or on the device.
"""

from __future__ import annotations

from torch import Tensor

from statespan._check import check_int

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_WORD = 0xFFFFFFFF


def threefry(key: tuple[int, int], first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): two 32-bit words from a two-word counter.

    Words are in int64 tensors, whose shapes broadcast.

    Example:
        >>> import torch
        >>> zero = torch.zeros(1, dtype=torch.int64)
        >>> [hex(int(word)) for word in threefry((0, 0), zero, zero)]
        ['0x6b200159', '0x99ba4efe']
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x, y = (first + keys[0]) & _WORD, (second + keys[1]) & _WORD
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = (x + y) & _WORD
            y = (((y << rotation) & _WORD) | (y >> (32 - rotation))) ^ x
        x = (x + keys[(group + 1) % 3]) & _WORD
        y = (y + keys[(group + 2) % 3] + group + 1) & _WORD
    return x, y


def uniforms(seed: int, rows: Tensor, positions: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), float64 with 52 random bits, one for each row and position.

    Args:
        seed: At least 0 and less than 2⁶⁴.
        rows: Numbers of sequences below 2³², int64.
        positions: Likewise, of a shape that broadcasts with that of ``rows``.

    Example:
        >>> import torch
        >>> rows = torch.arange(3)
        >>> batch, part = uniforms(7, rows, torch.tensor(5)), uniforms(7, rows[1:], torch.tensor(5))
        >>> bool((batch[1:] == part).all())
        True
    """
    if check_int("seed", seed, minimum=0) >= 1 << 64:
        raise ValueError(f"seed must be an integer >= 0 and < 2**64, got {seed}")
    high, low = threefry((seed & _WORD, seed >> 32), rows, positions)
    return ((high >> 6) * (1 << 26) + (low >> 6)).double() * 2.0**-52
