"""A strict reader of WAV files: PCM of 8, 16, 24 and 32 bits, and 32-bit floats."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # the format tags this reader knows


def read_wav(path: str | Path) -> tuple[np.ndarray, int]:
    """Read the samples (length, channels) of a WAV file, and its sampling rate in hertz.

    The dtype alone says what full scale is: uint8 (128 is silence), int16, int32 (32 bits, and 24 bits in the upper
    three bytes), or float32. ``to_float`` turns any of them into [-1, 1). A file that is damaged, cut short or of
    another kind is a ValueError that names it.

    Example:
        >>> import pathlib, tempfile, wave
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "three.wav")
        ...     with wave.open(str(file), "wb") as writer:
        ...         writer.setparams((1, 2, 16000, 0, "NONE", ""))
        ...         writer.writeframes(np.array([0, -5, 7], "<i2").tobytes())
        ...     samples, rate = read_wav(file)
        >>> samples[:, 0].tolist(), samples.dtype.name, rate
        ([0, -5, 7], 'int16', 16000)
    """
    path = Path(path)
    try:
        return decode_wav(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a WAV file: {error}") from None


def to_float(samples: np.ndarray) -> np.ndarray:
    """Scale what ``read_wav`` returned to float32 in [-1, 1), once.

    Example:
        >>> to_float(np.array([-32768, 0, 16384], np.int16)).tolist()
        [-1.0, 0.0, 0.5]
    """
    if samples.dtype == np.uint8:
        return ((samples.astype(np.float32) - 128.0) / 128.0).astype(np.float32)
    if samples.dtype in (np.int16, np.int32):
        return (samples * 2.0 ** (1 - 8 * samples.dtype.itemsize)).astype(np.float32)
    return samples.astype(np.float32)


def decode_wav(content: bytes) -> tuple[np.ndarray, int]:
    """What :func:`read_wav` returns, from the bytes of a file."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise ValueError("it does not begin with a RIFF/WAVE header")
    chunks = _chunks(content)
    if b"fmt " not in chunks or b"data" not in chunks:
        raise ValueError("it has no 'fmt ' chunk or no 'data' chunk")
    head, data = chunks[b"fmt "], chunks[b"data"]
    if len(head) < 16:
        raise ValueError(f"its 'fmt ' chunk has {len(head)} bytes; it needs at least 16")
    tag, channels, rate, _, block, bits = struct.unpack("<HHIIHH", head[:16])
    if tag == EXTENSIBLE and len(head) >= 26:
        tag = struct.unpack("<H", head[24:26])[0]  # the first two bytes of the sub-format are the real tag
    if (tag, bits) not in {(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32)}:
        raise ValueError(f"format {tag} with {bits} bits is not PCM of 8, 16, 24, 32 bits or float of 32 bits")
    if channels == 0 or rate == 0 or block != channels * bits // 8:
        raise ValueError(f"{channels} channels, {rate} samples per second and blocks of {block} bytes are inconsistent")
    if len(data) % block:
        raise ValueError(f"its data, {len(data)} bytes, is not a whole number of blocks of {block} bytes")
    if bits == 24:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        samples = wide.view("<i4").astype(np.int32)
    else:
        kind = "<f4" if tag == FLOAT else {8: "u1", 16: "<i2", 32: "<i4"}[bits]
        samples = np.frombuffer(data, kind).astype(np.dtype(kind).newbyteorder("="))
    return samples.reshape(-1, channels), rate


def _chunks(content: bytes) -> dict[bytes, bytes]:
    chunks: dict[bytes, bytes] = {}
    at = 12
    while at + 8 <= len(content):
        name, size = content[at : at + 4], struct.unpack("<I", content[at + 4 : at + 8])[0]
        if at + 8 + size > len(content):
            raise ValueError(f"its {name!r} chunk says {size} bytes, but {len(content) - at - 8} are there")
        chunks.setdefault(name, content[at + 8 : at + 8 + size])
        at += 8 + size + size % 2  # chunks begin at even places
    return chunks
