"""Mutated requests: whatever comes in, the server answers or hangs up, and fails never."""

import json
import random
import struct

import pytest

from statespan.view import Api
from statespan.view.layers import CHOICES
from tests.view.serve import post, raw, served, trained

VALUES = (
    None, True, False, 0, -1, 1, 2, 3, 8, 64, 1e-30, -0.0, 0.5, 1e9, 10**40, 1e308, "", "lin", "s4", "legs", "\ud800",
    "x" * 500, [], {}, [[]], [[1.0]], [[1, 2]], [["a"]], [[None]], {"a": {"b": [1]}}, "NaN", "../../etc/passwd",
)  # fmt: skip
WAV = b"RIFF" + struct.pack("<I", 44) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
WAV += b"data" + struct.pack("<I", 8) + bytes(range(8))
HEADERS = (
    "Host: evil.org", "Host:", "Origin: null", "Sec-Fetch-Site: cross-site", "Content-Length: -5", "Content-Length: 7",
    "Transfer-Encoding: chunked", "Content-Type: text/csv", "Expect: 100-continue", "Connection: keep-alive", "X" * 900,
    ": empty", "\x00: \x01", "Range: bytes=0-", "Content-Encoding: gzip", "Cookie: a=b", "Upgrade: h2c", " folded",
)  # fmt: skip


def valid(random, stream):
    """An address, its media type and a body that the server accepts."""
    layer = random.choice([*CHOICES])
    return random.choice(
        [
            ("/api/setup", {}),
            ("/api/curves", {"layer": layer, "d_state": random.choice((2, 8)), "length": random.choice((2, 33))}),
            (
                "/api/curves",
                {"part": random.randint(0, 1), "head": random.randint(0, 31), "length": 9, "dt_scale": 2.0},
            ),
            ("/api/signal", {"kind": random.choice(("sine", "noise", "impulse")), "length": 20, "frequency": 0.1}),
            ("/api/streams/open", {"dt_scale": 0.5}),
            ("/api/streams/push", {"stream": stream, "samples": [[1.0], [2.0]], "every": 1}),
            ("/api/file", random.choice((WAV, b"1\n2\n3\n", b"a\n0.5\n"))),
        ]
    )


def mutated(random, content):
    """A JSON body with some of its values, or its bytes, replaced."""
    if isinstance(content, bytes):
        return spoilt(random, content)
    for _ in range(random.choice((0, 0, 0, 1, 1, 2))):
        key = random.choice([*content, *content, "length", "d_state", "seed", "dt_min", "head", "part"])
        content = {**content, key: random.choice(VALUES)}
    body = json.dumps(content).encode()
    return spoilt(random, body) if random.random() < 0.2 else body


def spoilt(random, body):
    """Bytes with some changed, cut or repeated."""
    body = bytearray(body)
    for _ in range(random.randint(0, 4)):
        at = random.randrange(len(body) + 1)
        body[at : at + random.randint(0, 3)] = random.choice(
            (b"", b"\x00", b"\xff\xff", b"[", b"-", b"9" * 30, body[:9])
        )
    return bytes(body)


def request(random, stream):
    """The bytes of a request."""
    address, content = valid(random, stream)
    kind = "application/json" if isinstance(content, dict) else random.choice(("audio/wav", "text/csv"))
    body = mutated(random, content)
    method = random.choice(("POST",) * 40 + ("GET", "HEAD", "OPTIONS", "PO ST", "\x00"))
    address = random.choice((address,) * 40 + ("/", "/%00", "/../x", "/api/" + "a" * 300, "*"))
    version = random.choice(("HTTP/1.1",) * 40 + ("HTTP/1.0", "HTTP/9.9", "", "HTTP/x"))
    lines = [
        f"{method} {address} {version}",
        "Host: localhost",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
    ]
    for _ in range(random.choice((0, 0, 0, 0, 1, 2))):
        lines.insert(random.randint(1, len(lines)), random.choice(HEADERS))
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return spoilt(random, head + body) if random.random() < 0.15 else head + body


@pytest.fixture(scope="module")
def server():
    with served(Api(trained("digits-s4d"), "digits-s4d")) as running:
        yield running


@pytest.mark.share(5)
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_requests(server, seed, capfd):
    numbers, statuses = random.Random(seed), []
    status, answer = post(server, "/api/streams/open", {})
    assert status == 200, answer
    for _ in range(100):
        content = request(numbers, answer["stream"])
        answered = raw(server, content)
        head, _, body = answered.partition(b"\r\n\r\n")
        if answered:
            assert head.startswith(b"HTTP/1.0 "), content
            statuses.append(int(head.split()[1]))
            assert statuses[-1] < 500 or statuses[-1] in (501, 505), (content, answered)  # methods, versions
            if statuses[-1] != 200 and body:
                assert [*json.loads(body)] == ["error"], content
        assert b"Traceback" not in answered
    assert len(statuses) > 90  # the others end before their request does
    assert 8 < statuses.count(200) < 60
    assert capfd.readouterr() == ("", "")
    server.api.streams.running.clear()
