"""Damaged and hostile .npy and .npz files: one ValueError that names the file, and no memory for what is not there."""

import gzip
import io
import random
import struct
import zipfile

import numpy as np
import pytest

from statespan.data.formats import npy
from statespan.data.formats.idx import read_idx
from statespan.data.formats.samples import read_sample
from tests.data.peak import peak


def npy_file(text, values=b"", version=1, length=None):
    head = text.encode("latin1")
    size = struct.pack("<H" if version == 1 else "<I", len(head) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + head + values


def described(shape, dtype="<f8", order=False):
    return f"{{'descr': {dtype!r}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def good(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


BAD = {
    "nothing": b"",
    "cut in the magic": good(np.arange(3.0))[:5],
    "cut in the header": good(np.arange(3.0))[:40],
    "cut in the values": good(np.arange(3.0))[:-1],
    "more behind its end": good(np.arange(3.0)) + b"0",
    "another version": npy_file(described((1,)), bytes(8), 7),
    "no header": npy_file("", bytes(8)),
    "a header that is no Python": npy_file("{'descr': ", bytes(8)),
    "a header of brackets": npy_file("(" * 500, bytes(8)),
    "a header of minus signs": npy_file("-" * 9000 + "1", bytes(8)),
    "a header that calls": npy_file("__import__('os').getcwd()", bytes(8)),
    "a long header": npy_file(described((1,)) + " " * 10_000, bytes(8), 2),
    "a header of 4 GB": npy_file("", b"", 2, 0xFFFFFFFF),
    "a shape of 8 TB": npy_file(described((10**12,))),
    "a shape of 8 TB with some values": npy_file(described((10**12,)), bytes(800)),
    "a shape beyond 64 bits": npy_file(described((2**40, 2**40)), bytes(8)),
    "a shape that wraps to 1": npy_file(described((2**32, 2**32 + 1)), bytes(8)),
    "a negative shape": npy_file(described((-1,)), bytes(8)),
    "two negative sizes": npy_file(described((-1, -1)), bytes(8)),
    "a shape that is no tuple": npy_file(described([1]), bytes(8)),
    "a shape of words": npy_file(described(("1",)), bytes(8)),
    "a shape of 40 dimensions": npy_file(described((1,) * 40), bytes(8)),
    "no entries in a huge shape": npy_file(described((0, 2**62, 2**62)), b""),
    "entries without bytes": npy_file(described((10**12,), "|S0"), b""),
    "objects": npy_file(described((1,), "|O"), bytes(8)),
    "records": npy_file(described((1,), [("a", "<f4"), ("b", "<f4")]), bytes(8)),
    "raw bytes": npy_file(described((1,), "|V8"), bytes(8)),
    "a dtype that is none": npy_file(described((1,), "<q99"), bytes(8)),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_npy_is_a_value_error_that_names_it(tmp_path, case):
    path = tmp_path / "x.npy"
    path.write_bytes(BAD[case])

    def attack():
        with pytest.raises(ValueError, match=r"x\.npy is not a \.npy file"):
            read_sample(path)

    assert peak(attack) < 4 << 20


@pytest.mark.parametrize("case", BAD)
def test_a_bad_member_of_an_npz_is_a_value_error_that_names_the_file(tmp_path, case):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", BAD[case])

    def attack():
        with pytest.raises(ValueError, match=r"x\.npz is not a \.npz file"):
            read_sample(path)

    assert peak(attack) < 4 << 20


def write_zip(path, members, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in members:
            file.writestr(name, content)


HOLLOW = {
    "values": good(np.zeros(1 << 20)),  # 8 MB, 8 kB when it is packed
    "a header of 8 MB": npy_file("", b"", 2, 8 << 20) + bytes(8 << 20),
    "no array": bytes(8 << 20),
}


@pytest.mark.parametrize("case", HOLLOW)
def test_an_npz_that_unpacks_to_too_much_is_refused_before_it_is_read(tmp_path, monkeypatch, case):
    assert npy.ALWAYS == 64 << 20
    monkeypatch.setattr(npy, "ALWAYS", 4 << 20)
    path = tmp_path / "x.npz"
    write_zip(path, [("x.npy", HOLLOW[case])])
    assert path.stat().st_size < 10_000

    def attack():
        with pytest.raises(ValueError, match="more than the 4194304 allowed"):
            read_sample(path)

    assert peak(attack) < 4 << 20


def test_an_npz_that_lies_about_its_size_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    write_zip(path, [("x.npy", good(np.zeros(1 << 17)))])
    size = len(good(np.zeros(1 << 17)))
    path.write_bytes(path.read_bytes().replace(size.to_bytes(4, "little"), (136).to_bytes(4, "little")))
    with pytest.raises(ValueError, match=r"x\.npz"):
        read_sample(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("members", "kind", "word"),
    [
        ([("x.npy", good(np.arange(3))), ("x.npy", good(np.arange(4)))], zipfile.ZIP_DEFLATED, "once"),
        ([("x.txt", b"hello")], zipfile.ZIP_DEFLATED, r"end in \.npy"),
        ([("x.npy", good(np.arange(3)))], zipfile.ZIP_LZMA, "stored or deflated"),
        ([(f"{i:060d}.npy", b"") for i in range(9600)], zipfile.ZIP_STORED, "headers are longer than 1048576"),
    ],
    ids=["twice", "another ending", "another compression", "many members"],
)
def test_other_members_are_refused(tmp_path, members, kind, word):
    write_zip(tmp_path / "x.npz", members, kind)
    with pytest.raises(ValueError, match=word):
        read_sample(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        np.array(["a", "Ω"]),
        np.array(7, np.uint8),
        np.zeros((0, 4096), ">f4"),
        np.array([True, False]),
    ],
    ids=str,
)
def test_good_arrays_are_read_as_numpy_reads_them(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    np.savez_compressed(tmp_path / "x.npz", a=array, b=array)
    for found in (npy.load(tmp_path / "x.npy"), *npy.load_all(tmp_path / "x.npz").values()):
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        assert (found == array).all()
    assert list(npy.load_all(tmp_path / "x.npz")) == ["a", "b"]


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_any_damage_is_a_value_error_or_no_damage(tmp_path, kind):
    path, draw = tmp_path / f"x.{kind}", random.Random(0)
    array = np.arange(50.0)
    np.save(path, array) if kind == "npy" else np.savez_compressed(path, x=array)
    content = path.read_bytes()
    messages = []
    for _ in range(300):
        data = bytearray(content)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(data[: draw.randint(0, len(data))] if draw.random() < 0.3 else data)
        try:
            read_sample(path)
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all(f"x.{kind}" in message for message in messages)


def test_an_idx_file_that_unpacks_to_too_much_is_refused(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\1" + (16 << 20).to_bytes(4, "big") + bytes(16 << 20)))

    def attack():
        with pytest.raises(ValueError, match=r"x\.gz must unpack to at most 1633\d\d\d bytes"):
            read_idx(path)

    assert peak(attack) < 8 << 20
