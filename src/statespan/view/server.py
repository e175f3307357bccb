"""The HTTP server of the page: one request per connection, each checked before it is read on."""

from __future__ import annotations

import json
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socketserver import TCPServer
from typing import Any

from statespan._fail import complain
from statespan.view.api import Api
from statespan.view.fields import RefusedError
from statespan.view.guard import check_host, check_origin
from statespan.view.limits import LARGEST_HEADERS, MOST_CONNECTIONS, RECEIVE_SECONDS
from statespan.view.receive import BoundedReader, HeadersTooLargeError, TimedSocket, drain

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/stream.js": ("stream.js", "text/javascript; charset=utf-8"),
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(ThreadingHTTPServer):
    """Serves the page and its API.

    Args:
        api: What answers.
        host: The address to listen on.
        port: The port; 0 for any free one.
        exposed: Whether clients may come from other machines; see :func:`statespan.view.guard.check_host`.

    Example:
        >>> with Server(Api(), port=0) as server:
        ...     server.url.startswith("http://127.0.0.1:")
        True
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, api: Api, host: str = "127.0.0.1", port: int = 8765, *, exposed: bool = False) -> None:
        self.api, self.host, self.exposed = api, host.strip("[]"), exposed
        self.places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        package = files("statespan.view")
        self.files = {address: ((package / name).read_bytes(), kind) for address, (name, kind) in FILES.items()}
        if ":" in self.host:
            self.address_family = socket.AF_INET6
        super().__init__((self.host, port), Handler)

    @property
    def url(self) -> str:
        """The page's address."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.server_address[1]}/"

    def server_bind(self) -> None:
        """Bind, without the base class's search for the name of the host, which may ask the network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread if there is room."""
        if not self.places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report a defect; a client that went away or was too slow is none."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            complain(f"a request failed: {type(error).__name__}: {error}")


class Handler(BaseHTTPRequestHandler):
    """One request of a client.

    Example:
        >>> from urllib.request import urlopen
        >>> from statespan.view import Api
        >>> server = Server(Api(), port=0)
        >>> threading.Thread(target=server.serve_forever, daemon=True).start()
        >>> with urlopen(server.url) as answer:
        ...     answer.status, answer.headers["Content-Type"]
        (200, 'text/html; charset=utf-8')
        >>> server.shutdown(), server.server_close()
        (None, None)
    """

    server: Server
    protocol_version = "HTTP/1.0"
    server_version = "statespan"
    sys_version = ""

    def setup(self) -> None:
        """Read within limits."""
        super().setup()
        self.rfile.close()
        self.rfile = BoundedReader(TimedSocket(self.connection))

    def handle(self) -> None:
        """Answer one request."""
        self.close_connection, self.answered = True, False
        self.request_version, self.requestline, self.command = "HTTP/1.0", "", ""
        try:
            self.raw_requestline = self.rfile.readline()
            if self.raw_requestline and self.parse_request():
                self._answer()
        except HeadersTooLargeError:
            self.send_error(431, f"the headers must have at most {LARGEST_HEADERS} bytes")
        except TimeoutError:
            if self.answered:  # the client does not take the answer
                return
            self.send_error(408, f"the request must arrive within {RECEIVE_SECONDS:g} seconds")
        except OSError:  # the client went away
            pass

    def finish(self) -> None:
        """Send what is left, and let the client read it."""
        try:
            super().finish()
        except OSError:
            return
        drain(self.connection)

    def _answer(self) -> None:
        try:
            status, body, kind = 200, *self._content()
        except RefusedError as error:
            status, body, kind = error.status, *_json({"error": str(error)})
        except OSError:
            raise
        except Exception as error:  # a defect: the client gets no details, the terminal one line
            complain(f"{self.path[:80]}: {type(error).__name__}: {error}")
            status, body, kind = 500, *_json({"error": "the server failed; its terminal says why"})
        self._send(status, body, kind)

    def _content(self) -> tuple[bytes, str]:
        host = check_host(self._only("Host"), exposed=self.server.exposed, own=self.server.host)
        check_origin(
            host, {name: value for name in ("Origin", "Sec-Fetch-Site") if (value := self._only(name)) is not None}
        )
        if self.command in ("GET", "HEAD"):
            if self.path not in self.server.files:
                raise RefusedError(
                    "there is nothing at this address", 405 if self.path in self.server.api.addresses else 404
                )
            return self.server.files[self.path]
        if self.command != "POST":
            raise RefusedError("the method must be GET or POST", 405)
        if self.path not in self.server.api.addresses:
            raise RefusedError("there is nothing at this address", 405 if self.path in self.server.files else 404)
        kind = (self._only("Content-Type") or "").partition(";")[0].strip().lower()
        body = self._body(self.server.api.largest(self.path))
        return _json(self.server.api.answer(self.path, kind, body))

    def _only(self, name: str) -> str | None:
        """The header of a name, which may be there once."""
        values = self.headers.get_all(name, [])
        if len(values) > 1:
            raise RefusedError(f"{name} must be given once")
        return values[0] if values else None

    def _body(self, most: int) -> bytes:
        if self._only("Transfer-Encoding") is not None:
            raise RefusedError("Transfer-Encoding is not supported; give Content-Length", 411)
        length = self._only("Content-Length")
        if length is None:
            raise RefusedError("a POST needs Content-Length", 411)
        if not (length.isascii() and length.isdigit() and len(length) <= 20):
            raise RefusedError("Content-Length must be a whole number")
        if int(length) > most:
            raise RefusedError(f"the body must have at most {most} bytes, got {int(length)}", 413)
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise RefusedError(f"the body must have {length} bytes, as Content-Length says, got {len(body)}")
        return body

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that cannot be read."""
        body, kind = _json({"error": message or HTTPStatus(code).phrase})
        self._send(code, body, kind)

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.answered = True
        self.connection.settimeout(RECEIVE_SECONDS)
        self.request_version = "HTTP/1.0"  # also where the request line names another, so that there is a status line
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal quiet."""


def _json(content: dict[str, Any]) -> tuple[bytes, str]:
    return json.dumps(content, allow_nan=False).encode(), "application/json"
