"""Who may ask: checks of the Host and the origin of a request, which keep other web pages out.

A page of another site can make a browser send requests to loopback. It cannot hide where they come from: the browser
names its origin, and a name of the other site's own (DNS rebinding) in Host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from statespan.view.fields import RefusedError

HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z.-]+)(?::([0-9]{1,5}))?", re.ASCII)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine only: localhost, 127.0.0.0/8 or ::1.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0"), is_loopback("localhost.evil.org")
        (True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def check_host(host: str | None, *, exposed: bool, own: str = "") -> str:
    """Return the Host of a request if it is a name of this server.

    Args:
        host: The header.
        exposed: Whether clients may come from elsewhere. They then need an address of numbers, which no other site's
            name can stand for, or the name that the server was given.
        own: That name.
    """
    match = HOST.fullmatch(host or "")
    if match is None:
        raise RefusedError("the request must have one Host header with the address of this server")
    name = match[1]
    if not (is_loopback(name) or (exposed and (_address(name) is not None or name.lower() == own.lower()))):
        raise RefusedError("Host must be the address of this server", 403)
    return match[0]


def check_origin(host: str, headers: Mapping[str, str]) -> None:
    """Refuse requests that a page of another origin makes; programs, which send neither header, are allowed."""
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
    if origin is not None and origin.lower() != f"http://{host}".lower():
        raise RefusedError("Origin must be this server's own page", 403)
    if site is not None and site not in ("same-origin", "none"):
        raise RefusedError("Sec-Fetch-Site must be same-origin or none: other sites' pages have no access", 403)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
