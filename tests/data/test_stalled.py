"""Servers that stall or lie: a download ends with one OSError, soon, and keeps what has come."""

import contextlib
import hashlib
import socket
import threading
import time
import urllib.request

import pytest

from statespan.data.download import download

CONTENT = b"abc" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
HEAD = b"HTTP/1.1 200 OK\r\n"


@contextlib.contextmanager
def server(answer):
    """A port on this machine that sends ``answer`` to the first that asks, and then nothing more."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with contextlib.suppress(OSError), listening.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(answer)
                done.wait(5)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        done.set()


@contextlib.contextmanager
def full_port():
    """A port whose queue is full, so that nobody is connected."""
    with socket.socket() as listening, contextlib.ExitStack() as waiting:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(listening.getsockname())
        yield listening.getsockname()[1]


def plainly(port):
    """Opens what is asked for without TLS at this port."""

    def open_url(request, timeout=None):
        request.full_url = f"http://127.0.0.1:{port}/data.bin"
        options = {} if timeout is None else {"timeout": timeout}
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, **options)

    return open_url


def refused(tmp_path, port, **options):
    begun = time.monotonic()
    with pytest.raises(OSError, match=r"https://example\.org/data\.bin|https://127\.0\.0\.1") as caught:
        download(options.pop("url", "https://example.org/data.bin"), tmp_path / "data.bin", DIGEST, **options)
    assert time.monotonic() - begun < 2.0
    assert not (tmp_path / "data.bin").exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (b"", None),
        (HEAD, None),
        (HEAD + b"Content-Length: 3000\r\n\r\n" + CONTENT[:1000], CONTENT[:1000]),
    ],
    ids=["before the headers", "in the headers", "in the body"],
)
def test_a_server_that_stalls_is_left_after_the_timeout(tmp_path, answer, kept):
    with server(answer) as port:
        message = refused(tmp_path, port, timeout=0.2, open_url=plainly(port))
    assert "did not answer for 0.2 s" in message
    part = tmp_path / "data.bin.part"
    assert (part.read_bytes() if part.exists() else None) == kept


@pytest.mark.parametrize("stall", [full_port, lambda: server(b"")], ids=["connecting", "greeting"])
def test_the_real_opener_has_the_timeout(tmp_path, monkeypatch, stall):
    monkeypatch.setenv("no_proxy", "*")
    with stall() as port:
        message = refused(tmp_path, port, url=f"https://127.0.0.1:{port}/data.bin", timeout=0.2)
    assert "did not answer for 0.2 s" in message


@pytest.mark.parametrize("length", [b"many", b"-5", b"1_000", b"1e3", b"9" * 5000, "٣".encode()])
def test_a_bad_content_length_is_an_os_error(tmp_path, length):
    with server(HEAD + b"Content-Length: " + length + b"\r\n\r\n" + CONTENT) as port:
        assert "Content-Length" in refused(tmp_path, port, timeout=0.5, open_url=plainly(port))


@pytest.mark.parametrize(
    "answer",
    [b"no HTTP at all\r\n\r\n", HEAD + b"A: " + b"x" * (1 << 17) + b"\r\n\r\n", HEAD + b"A: b\r\n" * 200 + b"\r\n"],
    ids=["no status", "a long line", "many headers"],
)
def test_what_is_no_http_is_an_os_error(tmp_path, answer):
    with server(answer) as port:
        refused(tmp_path, port, timeout=0.5, open_url=plainly(port))
