"""Who gets an answer, and what a client may cost."""

import contextlib
import json
import socket
import time

import pytest

from statespan.view import Api, server
from statespan.view.guard import is_loopback
from statespan.view.limits import LARGEST_FILE, LARGEST_HEADERS, LARGEST_JSON, MOST_CONNECTIONS
from statespan.view.receive import BoundedReader, TimedSocket
from tests.view.serve import port_of, post, raw, send, served

SMALL = {"d_state": 4, "length": 8}
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def plain():
    with served() as running:
        yield running


def test_the_page_and_its_files(plain):
    for path, (name, kind) in server.FILES.items():
        status, headers, body = send(plain, "GET", path)
        assert (status, headers["Content-Type"]) == (200, kind)
        assert len(body) > 500, name
        assert b"://" not in body.replace(b"http://127", b""), name  # nothing comes from elsewhere
        for key, value in server.HEADERS.items():
            assert headers[key] == value
        assert "unsafe" not in headers["Content-Security-Policy"]
    status, headers, body = send(plain, "HEAD", "/")
    assert (status, body) == (200, b"")
    page = send(plain, "GET", "/")[2].decode()
    assert "<script>" not in page
    assert "style=" not in page


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200), ("localhost:{port}", 200), ("LOCALHOST", 200), ("[::1]:{port}", 200),
        ("127.9.8.7", 200), ("localhost:9", 200),  # a port that ssh forwards
        ("evil.org", 403), ("evil.org:{port}", 403), ("localhost.evil.org", 403), ("127.0.0.1.evil.org", 403),
        ("10.0.0.7:{port}", 403), ("0.0.0.0:{port}", 403), ("0x7f000001", 403), ("2130706433", 403),
        ("", 400), ("127.0.0.1:{port}/", 400), ("user@127.0.0.1", 400), ("127.0.0.1:99999999", 400), ("a b", 400),
    ],
)  # fmt: skip
def test_other_hosts_are_refused(plain, host, status):
    headers = {"Host": host.format(port=port_of(plain))}
    assert send(plain, "GET", "/", headers=headers)[0] == status
    assert post(plain, "/api/curves", SMALL, **headers)[0] == status


def test_a_host_is_given_once(plain):
    assert b" 400 " in raw(plain, b"GET / HTTP/1.1\r\n\r\n")
    assert b" 400 " in raw(plain, b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.org\r\n\r\n")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200), ({"Origin": "http://{own}"}, 200), ({"Origin": "HTTP://{own}"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "null"}, 403), ({"Origin": ""}, 403), ({"Origin": "http://evil.org"}, 403),
        ({"Origin": "https://{own}"}, 403), ({"Origin": "http://{own}.evil.org"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403), ({"Origin": "http://{own}", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)  # fmt: skip
def test_other_origins_are_refused(plain, headers, status):
    own = f"127.0.0.1:{port_of(plain)}"
    headers = {key: value.format(own=own) for key, value in headers.items()}
    assert post(plain, "/api/curves", SMALL, **headers)[0] == status
    assert send(plain, "GET", "/", headers=headers)[0] == status


def test_no_other_origin_may_read(plain):
    """A preflight is refused, and nothing says that another origin may have the answer."""
    headers = {"Origin": "http://evil.org", "Access-Control-Request-Method": "POST"}
    status, answered, _ = send(plain, "OPTIONS", "/api/curves", headers=headers)
    assert status == 403
    assert not [name for name in answered if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404), ("GET", "/../server.py", 404), ("GET", "/page.css?x", 404),
        ("GET", "/api/curves", 405), ("POST", "/", 405), ("POST", "/api/none", 404), ("PUT", "/api/curves", 405),
        ("DELETE", "/", 405), ("GET", "//server.py", 404), ("GET", "/%2e%2e/server.py", 404),
        ("OPTIONS", "/api/curves", 405),
    ],
)  # fmt: skip
def test_other_addresses_and_methods(plain, method, path, status):
    got, _, body = send(plain, method, path)
    assert got == status
    assert [*json.loads(body)] == ["error"]


def test_bodies_are_json_of_a_known_length(plain):
    for content, said in (
        (b"", "must be JSON"), (b"[]", "must be a JSON object, got list"), (b'{"length": NaN}', "NaN is not JSON"),
        (b'{"a": "\xff"}', "must be JSON"), (b"[" * 100_000, "must be JSON"), (b'{"length": 1e999}', "got inf"),
    ):  # fmt: skip
        status, answer = post(plain, "/api/curves", content)
        assert status == 400
        assert said in answer["error"]
    for kind in ("text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert post(plain, "/api/curves", SMALL, kind=kind)[0] == 415  # what a form of another site can send
    head = b"POST /api/curves HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert b" 411 " in raw(plain, head + b"\r\n{}")
    assert b" 411 " in raw(plain, head + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}")
    for length in (b"-1", b"+2", b"2x", b"", b"1_0", b"9" * 30):
        assert b" 400 " in raw(plain, head + b"Content-Length: " + length + b"\r\n\r\n{}")
    assert b" 400 " in raw(plain, head + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}")
    assert b"got 1" in raw(plain, head + b"Content-Length: 2\r\n\r\n{")


def test_large_requests_are_refused_before_they_are_read(plain):
    json_head = POST % (b"/api/curves", b"application/json", LARGEST_JSON + 1)
    assert b" 413 " in raw(plain, json_head)
    assert b" 413 " in raw(plain, json_head + b"x" * (LARGEST_JSON + 1))
    assert b" 413 " in raw(plain, POST % (b"/api/file", b"audio/wav", LARGEST_FILE + 1))
    assert b" 431 " in raw(plain, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * LARGEST_HEADERS + b"\r\n\r\n")
    assert b" 431 " in raw(plain, b"GET /" + b"x" * LARGEST_HEADERS + b" HTTP/1.1\r\n\r\n")
    assert b" 431 " in raw(plain, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 4000 + b"\r\n")
    assert post(plain, "/api/curves", b" " * (LARGEST_JSON - 2) + b"{}")[0] == 200


def test_a_slow_client_is_cut_off_and_disturbs_nobody(monkeypatch):
    """A byte now and then does not help: the deadline is that of the whole request."""

    class Hasty(TimedSocket):
        def __init__(self, connection):
            super().__init__(connection, 0.4)

    monkeypatch.setattr(server, "TimedSocket", Hasty)
    with served() as running:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port_of(running)), timeout=10) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            assert post(running, "/api/curves", SMALL)[0] == 200
            for byte in b"alhost":
                time.sleep(0.1)
                slow.sendall(bytes([byte]))
            answer = slow.recv(1000)
        assert b" 408 " in answer
        assert time.monotonic() - began < 5


def free(running, places):
    """Wait until this many connections have room."""
    deadline = time.monotonic() + 10
    while running.places._value != places and time.monotonic() < deadline:
        time.sleep(0.01)
    return running.places._value


def test_a_client_that_does_not_take_its_answer_is_cut_off(monkeypatch):
    monkeypatch.setattr(server, "RECEIVE_SECONDS", 0.3)
    monkeypatch.setattr(Api, "answer", lambda *_: {"long": "x" * (1 << 25)})  # more than a system buffers
    with served() as running, socket.socket() as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.connect(("127.0.0.1", port_of(running)))
        greedy.sendall(POST % (b"/api/curves", b"application/json", 2) + b"{}")
        assert free(running, MOST_CONNECTIONS - 1) == MOST_CONNECTIONS - 1
        assert free(running, MOST_CONNECTIONS) == MOST_CONNECTIONS
        greedy.settimeout(5)
        received = 0
        with contextlib.suppress(ConnectionError):
            while part := greedy.recv(1 << 16):
                received += len(part)
        assert 0 < received < 1 << 25


@pytest.mark.soak
def test_a_thousand_slow_clients():
    """In waves as large as the server takes, each of which it forgets."""
    with served() as running:
        for _ in range(16):
            held = [socket.create_connection(("127.0.0.1", port_of(running))) for _ in range(MOST_CONNECTIONS)]
            for connection in held:
                connection.sendall(b"POST /api/curves HTTP/1.1\r\nHost: local")
            assert free(running, 0) == 0
            for connection in held:
                connection.close()
            assert free(running, MOST_CONNECTIONS) == MOST_CONNECTIONS
        assert post(running, "/api/curves", SMALL)[0] == 200


def test_connections_are_bounded_and_come_back():
    with served() as running:
        held = [socket.create_connection(("127.0.0.1", port_of(running)), timeout=10) for _ in range(MOST_CONNECTIONS)]
        for connection in held:
            connection.sendall(b"GET")
        assert free(running, 0) == 0
        assert raw(running, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""
        for connection in held:
            connection.close()
        assert free(running, MOST_CONNECTIONS) == MOST_CONNECTIONS
        assert b" 200 " in raw(running, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


def test_clients_that_leave_midway_are_forgotten(plain, capfd):
    body = json.dumps({"length": 4096}).encode()
    head = (
        b"POST /api/curves HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    for content in (head % len(body) + body, b"GET / HT", head % 100 + b"{"):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port_of(plain)), timeout=10) as connection:
                connection.sendall(content)
    assert post(plain, "/api/curves", SMALL)[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_defect_is_told_to_the_terminal_alone(plain, monkeypatch, capfd):
    def broken(*_):
        raise KeyError("/secret/path")

    monkeypatch.setattr(Api, "answer", broken)
    status, answer = post(plain, "/api/curves", {})
    assert (status, answer) == (500, {"error": "the server failed; its terminal says why"})
    assert capfd.readouterr().err == "statespan: /api/curves: KeyError: '/secret/path'\n"


def test_exposed_servers_know_numbers_and_their_own_name():
    with served(host="localhost", exposed=True) as running:
        for host, status in (("10.0.0.7:80", 200), ("localhost", 200), ("[fe80::1]", 200), ("evil.org", 403)):
            assert send(running, "GET", "/", headers={"Host": host})[0] == status
    assert [is_loopback(host) for host in ("::1", "127.0.0.2", "::", "0.0.0.0", "192.168.0.1", "evil.org", "")] == [
        True, True, False, False, False, False, False,
    ]  # fmt: skip


def test_a_reader_counts_the_bytes_of_headers_only():
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"abc\ndef\n" + b"z" * 100)
        reader = BoundedReader(TimedSocket(here), headers=8)
        assert (reader.readline(), reader.readline(), reader.left) == (b"abc\n", b"def\n", 0)
        assert reader.read(100) == b"z" * 100
