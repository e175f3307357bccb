"""Hostile archives: nothing is written outside, nothing is left behind."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from statespan.data.extract import BadArchive, Limits, unpack


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
    "our temporary name": [member(".tmp-x", size=3)],
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
    for limits, word in ((Limits(count=4), "4 entries"), (Limits(size=49), "49 bytes")):
        with pytest.raises(BadArchive, match=word):
            unpack(tmp_path / "x.tar", tmp_path / "target", limits)
    assert unpack(tmp_path / "x.tar", tmp_path / "target", Limits(count=5, size=50)) == [f"f{i}" for i in range(5)]


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
