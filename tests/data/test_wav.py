"""The WAV reader: every format against scipy's, and damaged files."""

import struct
from contextlib import suppress

import numpy as np
import pytest
from scipy.io import wavfile

from statespan.data.formats.wav import read_wav, to_float
from tests.data.wav import wav_bytes

KINDS = ("uint8", "int16", "int32", "float32")


def some(kind, shape=(37, 2)):
    values = np.random.default_rng(0).uniform(-1, 1, shape)
    full = {"uint8": 127, "int16": 2**15 - 1, "int32": 2**31 - 1, "float32": 1}[kind]
    return (values * full + (128 if kind == "uint8" else 0)).astype(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_reads_what_scipy_writes_and_writes_what_scipy_reads(tmp_path, kind):
    x = some(kind)
    wavfile.write(tmp_path / "theirs.wav", 8000, x)
    (tmp_path / "ours.wav").write_bytes(wav_bytes(x, 8000))
    for name in ("theirs.wav", "ours.wav"):
        samples, rate = read_wav(tmp_path / name)
        assert rate == 8000
        assert samples.dtype == x.dtype
        assert (samples == x).all()
        assert (wavfile.read(tmp_path / name)[1] == x).all()


def pcm24(values, extensible=False, extra=b""):
    data = b"".join(struct.pack("<i", v)[:3] for v in values)
    head = struct.pack("<HHIIHH", 0xFFFE if extensible else 1, 1, 44100, 132300, 3, 24)
    if extensible:
        head += struct.pack("<HHIH", 22, 24, 4, 1) + b"\0" * 14
    chunks = b"fmt " + struct.pack("<I", len(head)) + head + extra + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks + b"\0" * (len(data) % 2)


@pytest.mark.parametrize("extensible", [False, True])
def test_24_bits_extensible_headers_and_other_chunks(tmp_path, extensible):
    values = [0, 1, -1, 2**23 - 1, -(2**23)]
    note = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # of an odd length, so padded
    (tmp_path / "a.wav").write_bytes(pcm24(values, extensible, note))
    samples, rate = read_wav(tmp_path / "a.wav")
    assert (samples[:, 0] == np.array(values) * 256).all()
    assert rate == 44100
    assert to_float(samples)[:, 0].tolist() == [v / 2**23 for v in values]


@pytest.mark.parametrize("kind", KINDS)
def test_full_scale_is_one(kind):
    least = {"uint8": 0, "int16": -(2**15), "int32": -(2**31), "float32": -1.0}[kind]
    silence = 128 if kind == "uint8" else 0
    assert to_float(np.array([[least], [silence]], kind)).tolist() == [[-1.0], [0.0]]


good = wav_bytes(some("int16"), 8000)
BAD = {
    "empty": b"",
    "text": b"this is not a sound file at all",
    "cut short": good[:-3],
    "no data": good[:36],
    "mu-law": good[:20] + struct.pack("<H", 7) + good[22:],
    "64 bits": good[:34] + struct.pack("<H", 64) + good[36:],
    "no channels": good[:22] + struct.pack("<H", 0) + good[24:],
    "half a block": good[:40] + struct.pack("<I", 147) + good[44:],
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_error_that_names_it(tmp_path, case):
    (tmp_path / "bad.wav").write_bytes(BAD[case])
    with pytest.raises(ValueError, match=r"bad\.wav cannot be read as a WAV file: "):
        read_wav(tmp_path / "bad.wav")


def test_no_cut_or_flipped_byte_of_the_header_crashes(tmp_path):
    file = tmp_path / "a.wav"
    rng = np.random.default_rng(1)
    damaged = [good[:n] for n in range(60)]
    for _ in range(300):
        content = bytearray(good)
        content[rng.integers(44)] = rng.integers(256)
        damaged.append(bytes(content))
    for content in damaged:
        file.write_bytes(content)
        with suppress(ValueError):  # and nothing else
            assert read_wav(file)[0].ndim == 2
