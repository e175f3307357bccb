"""Hostile archives: nothing is written outside, nothing is left behind."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from statespan.data import extract
from statespan.data.extract import BadArchive, unpack
from tests.data.peak import peak


def member(name, kind=tarfile.REGTYPE, link="", size=0):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def make_tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as tar:
        for info in members:
            tar.addfile(info, io.BytesIO(b"x" * info.size) if info.isreg() else None)


def make_zip(path, entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(info, content)


def snapshot(folder):
    return {str(path.relative_to(folder)): path.is_symlink() or path.stat().st_size for path in folder.rglob("*")}


HOSTILE_TAR = {
    "traversal": [member("a/ok", size=3), member("../out", size=3)],
    "deep traversal": [member("a/../../out", size=3)],
    "absolute": [member("/tmp/statespan-out", size=3)],
    "symlink": [member("link", tarfile.SYMTYPE, "../..")],
    "symlink then file": [member("d", tarfile.SYMTYPE, ".."), member("d/out", size=3)],
    "hardlink": [member("h", tarfile.LNKTYPE, "../secret")],
    "hardlink inside": [member("a", size=3), member("h", tarfile.LNKTYPE, "a")],
    "device": [member("dev", tarfile.CHRTYPE)],
    "pipe": [member("fifo", tarfile.FIFOTYPE)],
    "twice": [member("a", size=3), member("a", size=4)],
    "twice spelled otherwise": [member("a", size=3), member("./a", size=4)],
    "file as folder": [member("a", size=3), member("a/b", size=3)],
    "folder as file": [member("a/b", size=3), member("a", size=3)],
    "backslash": [member("..\\out", size=3)],
    "drive": [member("C:out", size=3)],
    "our temporary name": [member(".statespan-tmp-x", size=3)],
    "bomb": [member("big", size=3 << 20)],
    "nothing": [],
}


@pytest.mark.parametrize("case", HOSTILE_TAR)
def test_hostile_tar_is_refused_and_leaves_nothing(tmp_path, case):
    archive, target = tmp_path / "x.tar.gz", tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    make_tar(archive, HOSTILE_TAR[case])
    before = snapshot(tmp_path)
    with pytest.raises(BadArchive, match=r"x\.tar\.gz"):
        unpack(archive, target)
    assert snapshot(tmp_path) == before


HOSTILE_ZIP = {
    "traversal": [("../out", b"x", 0)],
    "absolute": [("/out", b"x", 0)],
    "symlink": [("link", b"../..", stat.S_IFLNK | 0o777)],
    "device": [("dev", b"", stat.S_IFCHR)],
    "bomb": [("big", b"\0" * (3 << 20), 0)],
    "folder that is a file": [("d/", b"", stat.S_IFREG)],
}


@pytest.mark.parametrize("case", HOSTILE_ZIP)
def test_hostile_zip_is_refused_and_leaves_nothing(tmp_path, case):
    archive, target = tmp_path / "x.zip", tmp_path / "target"
    target.mkdir()
    make_zip(archive, HOSTILE_ZIP[case])
    before = snapshot(tmp_path)
    with pytest.raises(BadArchive, match=r"x\.zip"):
        unpack(archive, target)
    assert snapshot(tmp_path) == before


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_zip_with_a_name_twice_is_refused(tmp_path):
    make_zip(tmp_path / "x.zip", [("a", b"1", 0), ("a", b"2", 0)])
    with pytest.raises(BadArchive, match="twice"):
        unpack(tmp_path / "x.zip", tmp_path / "target")


def test_zip_that_lies_about_its_size_is_stopped_while_unpacking(tmp_path):
    archive = tmp_path / "x.zip"
    make_zip(archive, [("big", b"\0" * (3 << 20), 0)])
    data = archive.read_bytes()
    archive.write_bytes(data.replace((3 << 20).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(BadArchive):
        unpack(archive, tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []


def test_limits_of_count_and_size(tmp_path):
    make_tar(tmp_path / "x.tar", [member(f"f{i}", size=10) for i in range(5)], "w")
    for limits, word in (({"count": 4}, "4 entries"), ({"size": 49}, "49 bytes")):
        with pytest.raises(BadArchive, match=word):
            unpack(tmp_path / "x.tar", tmp_path / "target", **limits)
    assert unpack(tmp_path / "x.tar", tmp_path / "target", count=5, size=50) == [f"f{i}" for i in range(5)]


def test_good_archives_unpack_with_plain_permissions_and_replace_what_was_there(tmp_path):
    setuid = member("d/run", size=3)
    setuid.mode = 0o4777
    make_tar(tmp_path / "x.tgz", [member("./", tarfile.DIRTYPE), member("d/", tarfile.DIRTYPE), setuid])
    target = tmp_path / "target"
    (target / "d").mkdir(parents=True)
    (target / "d" / "old").touch()
    assert unpack(tmp_path / "x.tgz", target) == ["d"]
    assert [path.name for path in (target / "d").iterdir()] == ["run"]
    assert not (target / "d" / "run").stat().st_mode & 0o4111
    make_zip(tmp_path / "x.zip", [("e/", b"", 0), ("e/f", b"hello", 0)])
    unpack(tmp_path / "x.zip", target)
    assert (target / "e" / "f").read_bytes() == b"hello"
    (tmp_path / "g.txt.gz").write_bytes(gzip.compress(b"hello"))
    assert unpack(tmp_path / "g.txt.gz", target) == ["g.txt"]
    assert (target / "g.txt").read_bytes() == b"hello"


def test_damaged_archives_are_one_error(tmp_path):
    make_tar(tmp_path / "good.tar.gz", [member("a", size=100_000)])
    data = (tmp_path / "good.tar.gz").read_bytes()
    for i, bad in enumerate((b"", b"not an archive", data[:60], data[:-8], data[:40] + b"\xff" * 8 + data[48:])):
        path = tmp_path / f"{i}.tar.gz"
        path.write_bytes(bad)
        with pytest.raises(BadArchive):
            unpack(path, tmp_path / "target")
        assert list((tmp_path / "target").iterdir()) == []


def header(name, kind, size):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def padded(data):
    return data + b"\0" * (-len(data) % 512)


def record(key, value):
    """One record of a PAX header: its length, key and value."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + len(str(len(body)))
    length = len(body) + len(str(length))
    return str(length).encode() + body


def entry(name=b"a", content=b"hello"):
    return header(name.decode(), tarfile.REGTYPE, len(content)) + padded(content)


def extended(kind, body):
    return header("x", kind, len(body)) + padded(body)


MEGABYTES = b"n" * (24 << 20)  # 24 kB when it is packed
HOLES = b"1000000000\n" + (b"0" * 127 + b"\n") * (1 << 16)
LONG_HEADERS = {
    "PAX": extended(tarfile.XHDTYPE, record(b"path", MEGABYTES)),
    "global PAX": extended(tarfile.XGLTYPE, record(b"comment", MEGABYTES)),
    "Solaris PAX": extended(tarfile.SOLARIS_XHDTYPE, record(b"path", MEGABYTES)),
    "GNU name": extended(tarfile.GNUTYPE_LONGNAME, MEGABYTES),
    "GNU link": extended(tarfile.GNUTYPE_LONGLINK, MEGABYTES),
    "many in a row": extended(tarfile.XHDTYPE, record(b"comment", b"n" * 40_000)) * 300,
    "PAX holes": extended(tarfile.XHDTYPE, record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.minor", b"0"))
    + header("a", tarfile.REGTYPE, len(HOLES))
    + padded(HOLES),
    "global PAX over many entries": b"".join(
        extended(tarfile.XGLTYPE, record(b"key%d" % i, b"n" * 40_000)) + entry(b"a%d" % i) for i in range(200)
    ),
}


@pytest.mark.parametrize("case", LONG_HEADERS)
def test_headers_of_a_tar_are_refused_before_they_are_read(tmp_path, case):
    """A 408 kB archive of this kind took 1.2 GB."""
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(LONG_HEADERS[case] + entry() + b"\0" * 1024, 1))

    def attack():
        with pytest.raises(BadArchive, match=r"x\.tar\.gz"):
            unpack(path, tmp_path / "target")

    assert peak(attack) < 4 << 20
    assert list((tmp_path / "target").iterdir()) == []


def test_headers_of_ordinary_length_are_read(tmp_path):
    name = "/".join(["d" * 90] * 9)
    with tarfile.open(
        tmp_path / "x.tar.gz", "w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": "c" * 9000}
    ) as t:
        for number in range(3):
            info = member(f"{name}/{number}", size=5)
            info.pax_headers = {"comment": "c" * 9000}
            t.addfile(info, io.BytesIO(b"hello"))
    unpack(tmp_path / "x.tar.gz", tmp_path / "target")
    assert (tmp_path / "target" / name / "2").read_bytes() == b"hello"


def test_entries_count_as_bytes(tmp_path, monkeypatch):
    """Millions of empty files would be memory and inodes, whatever the limit of bytes says."""
    assert extract.ENTRY == 1 << 10
    monkeypatch.setattr(extract, "ENTRY", 1 << 15)
    make_tar(tmp_path / "x.tar.gz", [member(f"f{i}") for i in range(40)])
    with pytest.raises(BadArchive, match="more than 32 entries"):
        unpack(tmp_path / "x.tar.gz", tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []


def test_the_list_of_a_zip_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(extract, "LARGEST_DIRECTORY", 1 << 17)
    make_zip(tmp_path / "x.zip", [(f"f{i}", b"", 0) for i in range(3000)])

    def attack():
        with pytest.raises(BadArchive, match="longer than 131072 bytes"):
            unpack(tmp_path / "x.zip", tmp_path / "target")

    assert peak(attack) < 1 << 20


def test_zip_members_are_stored_or_deflated(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("a", b"hello")
    with pytest.raises(BadArchive, match="neither stored nor deflated"):
        unpack(tmp_path / "x.zip", tmp_path / "target")


def old_sparse():
    """GNU's oldest form: five bytes, and a hole up to byte 1000."""
    head = bytearray(header("a", tarfile.GNUTYPE_SPARSE, 5))
    head[386:410] = b"00000000000\x0000000000005\0"
    head[483:495] = b"00000001750\0"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + padded(b"hello")


def new_sparse(records, content):
    return extended(tarfile.XHDTYPE, b"".join(record(*pair) for pair in records)) + entry(content=content)


SPARSE = {
    "old": old_sparse(),
    "0.1": new_sparse([(b"GNU.sparse.map", b"0,5"), (b"GNU.sparse.size", b"1000")], b"hello"),
    "1.0": new_sparse(
        [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"1000")],
        padded(b"1\n0\n5\n") + b"hello",
    ),
}


@pytest.mark.parametrize("form", SPARSE)
def test_files_with_holes_are_refused(tmp_path, form):
    """A few bytes that stand for as many as they like."""
    (tmp_path / "x.tar").write_bytes(SPARSE[form] + b"\0" * 1024)
    with tarfile.open(tmp_path / "x.tar") as tar:
        (info,) = tar.getmembers()
        assert info.isreg()
        assert info.size == 1000  # it is what it should be
    with pytest.raises(BadArchive, match="neither a file nor a folder"):
        unpack(tmp_path / "x.tar", tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []


def test_limits_of_a_zip_are_met_by_what_its_files_really_hold(tmp_path):
    """By all together, and by those that say they are smaller."""
    make_zip(tmp_path / "x.zip", [(f"f{i}", b"x" * 10, 0) for i in range(5)])
    for limits, word in (({"count": 4}, "4 entries"), ({"size": 49}, "49 bytes"), ({"size": 9}, "9 bytes")):
        with pytest.raises(BadArchive, match=word):
            unpack(tmp_path / "x.zip", tmp_path / "target", **limits)
        assert list((tmp_path / "target").iterdir()) == []
    assert unpack(tmp_path / "x.zip", tmp_path / "target", count=5, size=50) == [f"f{i}" for i in range(5)]
    (tmp_path / "y.txt.gz").write_bytes(gzip.compress(b"x" * 50))  # which does not say how much it holds
    with pytest.raises(BadArchive, match="more than 49 bytes"):
        unpack(tmp_path / "y.txt.gz", tmp_path / "other", size=49)
    assert list((tmp_path / "other").iterdir()) == []
    assert unpack(tmp_path / "y.txt.gz", tmp_path / "other", size=50) == ["y.txt"]


def test_limits_without_being_asked_for(tmp_path):
    assert unpack.__kwdefaults__ == {"count": 1_000_000, "size": 1 << 37, "ratio": 100.0}
    (tmp_path / "big.gz").write_bytes(gzip.compress(b"\0" * (1 << 20)))
    assert unpack(tmp_path / "big.gz", tmp_path / "target") == ["big"]  # 1 MiB always may be
    (tmp_path / "more.gz").write_bytes(gzip.compress(b"\0" * (1 << 20 | 1)))
    with pytest.raises(BadArchive, match="more than 1048576 bytes"):
        unpack(tmp_path / "more.gz", tmp_path / "target")
    unpack(tmp_path / "more.gz", tmp_path / "target", ratio=2000)


def test_names_have_an_end(tmp_path):
    for length, good in ((1000, True), (1001, False)):
        name = "/".join(["d" * 200] * 6)[:length].rstrip("/")
        assert len(name) == length
        make_tar(tmp_path / "x.tar", [member(name, size=1)], "w")
        if good:
            unpack(tmp_path / "x.tar", tmp_path / "target")
        else:
            with pytest.raises(BadArchive, match="not a relative path inside it"):
                unpack(tmp_path / "x.tar", tmp_path / "target")


def test_what_follows_an_archive_or_is_encrypted_is_refused(tmp_path):
    make_tar(tmp_path / "x.tar", [member("a", size=3)], "w")
    with (tmp_path / "x.tar").open("ab") as file:
        file.write(b"x" * (extract.BLOCK + 1))
    with pytest.raises(BadArchive, match="continues after its end"):
        unpack(tmp_path / "x.tar", tmp_path / "target")
    make_zip(tmp_path / "x.zip", [("a", b"hello", 0)])
    data = bytearray((tmp_path / "x.zip").read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(BadArchive, match="neither a plain file nor a folder"):
        unpack(tmp_path / "x.zip", tmp_path / "target")


def test_a_file_for_which_there_is_no_room_left_is_not_begun(tmp_path):
    """The second one's bytes are not even there."""
    (tmp_path / "x.tar").write_bytes(entry(b"a", b"x" * 40) + header("b", tarfile.REGTYPE, 40))
    with pytest.raises(BadArchive, match="unpacks to more than 60 bytes"):
        unpack(tmp_path / "x.tar", tmp_path / "target", size=60)
    with pytest.raises(BadArchive, match="is damaged"):
        unpack(tmp_path / "x.tar", tmp_path / "target", size=80)
