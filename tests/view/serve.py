"""A server in a thread, and clients of it, polite and otherwise."""

import contextlib
import http.client
import json
import socket
import threading

from statespan.models import find, from_pretrained
from statespan.view import Api, Server


@contextlib.contextmanager
def served(api=None, **options):
    """A running server on a free port."""
    with Server(api or Api(), port=0, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


def trained(name):
    """A published model; statespan.load would import all of training."""
    return from_pretrained(find.find(name))


def port_of(server):
    return server.server_address[1]


def send(server, method, path, body=None, headers=None):
    """The status, the headers and the body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def post(server, path, content, kind="application/json", **headers):
    """The status and the answer to a POST."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    status, _, text = send(server, "POST", path, body, {"Content-Type": kind, **headers})
    return status, json.loads(text)


def raw(server, content, *, half_close=True):
    """All that the server answers to bytes."""
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=30) as connection:
        answer = b""
        with contextlib.suppress(OSError):
            connection.sendall(content)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                answer += part
        return answer
