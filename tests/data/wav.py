"""WAV files for tests."""

import struct

import numpy as np

from statespan.data.formats.wav import FLOAT, PCM


def wav_bytes(samples: np.ndarray, rate: int) -> bytes:
    """The bytes of a WAV file of samples (length, channels) of dtype uint8, int16, int32 or float32."""
    width, channels = samples.dtype.itemsize, samples.shape[1]
    tag = FLOAT if samples.dtype == np.float32 else PCM
    head = struct.pack("<HHIIHH", tag, channels, rate, rate * width * channels, width * channels, 8 * width)
    data = samples.astype(samples.dtype.newbyteorder("<")).tobytes()
    body = b"WAVEfmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(data)) + data
    body += b"\0" * (len(data) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body
