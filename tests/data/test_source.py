"""Files of a dataset: found, unpacked, downloaded in parts and checked, or asked for in one message."""

import email.message
import hashlib
import io
import pickle
import tarfile
import urllib.error

import pytest

from statespan.data import source
from statespan.data.download import _opener, download
from statespan.data.source import MissingData, Source, fetch, missing

URL = "https://example.org/data.bin"
CONTENT = bytes(range(256)) * 4000  # a little over one MB: several blocks
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Answer(io.BytesIO):
    def __init__(self, content, status, headers):
        super().__init__(content)
        self.status, self.headers = status, headers


def server(content=CONTENT, ranges=True, cut=None):
    """An opener that answers as a server of this file does; ``cut`` ends the first answer early."""
    asked = []

    def open_url(request, timeout):
        begin = request.get_header("Range")
        asked.append(begin)
        first = int(begin.removeprefix("bytes=").rstrip("-")) if begin and ranges else 0
        if first >= len(content) and begin and ranges:
            raise urllib.error.HTTPError(request.full_url, 416, "", email.message.Message(), None)
        headers = {"Content-Length": str(len(content) - first)}
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        end = cut if cut is not None and len(asked) == 1 else None
        return Answer(content[first:end], 206 if first else 200, headers)

    return open_url, asked


def test_download_resumes_where_it_stopped(tmp_path):
    open_url, asked = server(cut=300_000)
    to, seen = tmp_path / "data.bin", []
    with pytest.raises(OSError, match="300000 of 1024000"):
        download(URL, to, DIGEST, open_url=open_url)
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin.part"]
    download(URL, to, DIGEST, open_url=open_url, progress=lambda *step: seen.append(step))
    assert asked == [None, "bytes=300000-"]
    assert to.read_bytes() == CONTENT
    assert seen[-1] == ("data.bin", 1024000, 1024000)
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


@pytest.mark.parametrize("left", [b"wrong" * 100, CONTENT, CONTENT + b"more"])
def test_download_trusts_no_part_that_was_left(tmp_path, left):
    (tmp_path / "data.bin.part").write_bytes(left)
    if left != CONTENT:  # a wrong part costs one refusal, and is gone
        with pytest.raises(OSError, match="SHA-256"):
            download(URL, tmp_path / "data.bin", DIGEST, open_url=server()[0])
        assert list(tmp_path.iterdir()) == []
    download(URL, tmp_path / "data.bin", DIGEST, open_url=server()[0])
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_download_starts_over_where_the_server_has_no_ranges(tmp_path):
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    download(URL, tmp_path / "data.bin", DIGEST, open_url=server(ranges=False)[0])
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("status", "begin"), [(206, "0"), (206, "10000"), (206, "100"), (206, None), (200, "1000"), (206, "-1000")]
)
def test_download_goes_on_only_where_the_answer_begins_at_the_byte_asked_for(tmp_path, status, begin):
    """A server that answers with the whole file, whatever it says of it."""

    def open_url(request, timeout):
        assert request.get_header("Range") == "bytes=1000-"
        headers = {} if begin is None else {"Content-Range": f"bytes {begin}-1023999/1024000"}
        return Answer(CONTENT, status, headers)

    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    download(URL, tmp_path / "data.bin", DIGEST, open_url=open_url)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_download_refuses_another_file_a_longer_one_and_http(tmp_path):
    to = tmp_path / "data.bin"
    with pytest.raises(OSError, match="SHA-256"):
        download(URL, to, DIGEST, open_url=server(CONTENT[:-1] + b"?")[0])
    with pytest.raises(OSError, match="more than the 1000 bytes"):
        download(URL, to, DIGEST, size=1000, open_url=server()[0])
    assert not to.exists()
    for url in ("http://example.org/x", "file:///etc/passwd", "ftp://example.org/x"):
        with pytest.raises(ValueError, match="https"):
            download(url, to, DIGEST, open_url=server()[0])
        with pytest.raises(urllib.error.URLError):  # nor is there a handler, for a redirection
            _opener().open(url)


def test_download_that_is_stopped_keeps_its_part(tmp_path):
    def stop(name, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(URL, tmp_path / "data.bin", DIGEST, progress=stop, open_url=server()[0])
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin.part"]
    download(URL, tmp_path / "data.bin", DIGEST, open_url=server()[0])
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def archive(path, names=("train", "test")):
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(f"inner/{name}.bin")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sources(digest, url="https://example.org/all.tar.gz"):
    return [Source(f"inner/{n}.bin", url=url, sha256=digest, size=99, also=(f"{n}.bin",)) for n in ("train", "test")]


def test_an_archive_that_lies_there_is_checked_and_unpacked(tmp_path, monkeypatch):
    monkeypatch.setenv("STATESPAN_OFFLINE", "1")
    wanted = sources(archive(tmp_path / "all.tar.gz"))
    fetch("toy", wanted, tmp_path)
    assert missing(wanted, tmp_path) == []
    assert (tmp_path / "inner" / "test.bin").read_bytes() == b"abc"


def test_a_damaged_archive_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setenv("STATESPAN_OFFLINE", "1")
    archive(tmp_path / "all.tar.gz")
    with pytest.raises(MissingData, match=r"all\.tar\.gz is damaged"):
        fetch("toy", sources("0" * 64), tmp_path)
    assert not (tmp_path / "inner").exists()


def test_an_archive_is_downloaded_once_and_unpacked(tmp_path, monkeypatch):
    digest = archive(tmp_path / "copy.tar.gz")
    content, calls = (tmp_path / "copy.tar.gz").read_bytes(), []

    def pretend(url, to, wanted, *, size, progress):
        calls.append((url, wanted, size))
        to.write_bytes(content)

    monkeypatch.delenv("STATESPAN_OFFLINE", raising=False)
    monkeypatch.setattr(source, "download", pretend)
    fetch("toy", sources(digest), tmp_path / "toy")
    assert calls == [("https://example.org/all.tar.gz", digest, 99)]
    assert (tmp_path / "toy" / "inner" / "train.bin").exists()


def test_what_cannot_be_had_is_asked_for_in_one_message(tmp_path, monkeypatch):
    monkeypatch.setenv("STATESPAN_OFFLINE", "1")
    wanted = [*sources("a" * 64), Source("notes.csv", origin="the authors' page"), Source("more.csv", optional=True)]
    with pytest.raises(MissingData) as caught:
        fetch("toy", wanted, tmp_path / "toy")
    message = str(caught.value)
    for word in (
        "'toy'",
        f"Put into {tmp_path / 'toy'}",
        "inner/train.bin, inner/test.bin, from https://example.org/all.tar.gz",
        "as it is), 99 bytes",
        "a" * 64,
    ):
        assert word in message
    assert "notes.csv, from the authors' page" in message
    assert "STATESPAN_OFFLINE" in message
    assert "more.csv" not in message
    assert not (tmp_path / "toy").exists()  # nothing is made where nothing can be put


def test_a_failed_download_is_a_reason_in_the_message(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise urllib.error.URLError("no network")

    monkeypatch.delenv("STATESPAN_OFFLINE", raising=False)
    monkeypatch.setattr(source, "download", fail)
    with pytest.raises(MissingData, match="no network"):
        fetch("toy", sources("a" * 64), tmp_path / "toy")


def test_missing_data_says_what_is_missing_in_fields(tmp_path, monkeypatch):
    monkeypatch.setenv("STATESPAN_OFFLINE", "1")
    wanted = [*sources("a" * 64), Source("more.csv", optional=True)]
    with pytest.raises(MissingData) as caught:
        fetch("toy", wanted, tmp_path / "toy")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.dataset, error.folder) == ("toy", tmp_path / "toy")
        assert [file.path for file in error.files] == ["inner/train.bin", "inner/test.bin"]
        assert error.reasons == ("nothing is downloaded with STATESPAN_OFFLINE set",)
        assert str(error) == str(caught.value)
        assert error.advice == (
            f"the files of dataset 'toy' are not in {tmp_path / 'toy'} (nothing is downloaded with STATESPAN_OFFLINE "
            "set); what to put there: statespan data toy"
        )
