"""Downloads one file: HTTPS only, resumable, verified before it gets its name."""

from __future__ import annotations

import http.client
import re
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.error import HTTPError

from statespan._io import rename, sha256, sync, sync_folder

Progress: TypeAlias = Callable[[str, int, "int | None"], None]
BLOCK = 1 << 18
LARGEST = 1 << 36  # bytes of a file whose size is not known before
TIMEOUT = 30.0  # seconds to wait for a connection, and for each piece of an answer


def download(
    url: str,
    to: Path,
    digest: str,
    *,
    size: int | None = None,
    progress: Progress | None = None,
    timeout: float = TIMEOUT,
    open_url: Callable[..., Any] | None = None,
) -> None:
    """Download a file over HTTPS. An interrupted download stays in ``NAME.part``, and the next call resumes it.

    The file gets its name once its SHA-256 is verified. ``progress`` is called with (name, bytes done, bytes in all or
    None) and may raise to stop. ``timeout`` is in seconds, for the connection and for each piece of the answer. No
    network, no valid answer in time or the wrong file is an OSError. Tests replace ``open_url``.
    """
    if not url.startswith("https://"):
        raise ValueError(f"url must begin with https://, got {url!r}")
    part = to.with_name(to.name + ".part")
    done = part.stat().st_size if part.exists() else 0
    if size is not None and done > size:
        part.unlink()
        done = 0
    if done != size:
        open_url = open_url or _opener().open
        try:
            _receive(url, part, done, size=size, progress=progress, open_url=partial(open_url, timeout=timeout))
        except http.client.HTTPException as problem:
            raise OSError(f"{url} did not send a valid HTTP response: {problem!r}") from problem
        except OSError as problem:
            if isinstance(problem, TimeoutError) or isinstance(getattr(problem, "reason", None), TimeoutError):
                raise OSError(f"{url} did not answer for {timeout:g} s; the next call resumes it") from problem
            raise
    if (actual := sha256(part)) != digest:
        part.unlink()
        raise OSError(f"{url} sent a file with SHA-256 {actual}, expected {digest}; it was removed")
    rename(part, to)
    sync_folder(to.parent)


def _receive(
    url: str, part: Path, done: int, *, size: int | None, progress: Progress | None, open_url: Callable[..., Any]
) -> None:
    """Append the missing bytes to the partial file, which has ``done`` bytes."""
    request = urllib.request.Request(url, headers={"User-Agent": "statespan"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        response = open_url(request)
    except HTTPError as problem:
        if problem.code == 416:  # the part is complete or wrong; the digest decides
            return
        raise
    with response:
        if response.status != 206 or not str(response.headers.get("Content-Range")).startswith(f"bytes {done}-"):
            done = 0  # the server sends it from the start
        rest = _content_length(url, response.headers.get("Content-Length"))
        total = size if size is not None else done + rest if rest is not None else None
        with part.open("ab" if done else "wb") as file:
            while block := response.read1(BLOCK):  # received bytes are kept if the rest fails
                done += len(block)
                if done > (size if size is not None else LARGEST):
                    raise OSError(f"{url} sent more than the {size if size is not None else LARGEST} bytes expected")
                file.write(block)
                if progress is not None:
                    progress(part.name.removesuffix(".part"), done, total)
            file.flush()
            sync(file.fileno())
    if total is not None and done < total:
        raise OSError(f"{url} ended after {done} of {total} bytes; the next call resumes it")


def _content_length(url: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,15}", text.strip()):
        raise OSError(f"{url} sent Content-Length {text[:40]!r}, which is not a number of bytes")
    return int(text)


def _opener() -> urllib.request.OpenerDirector:
    """An opener for https only: it has no handler for http, ftp and file, even after a redirect."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener
