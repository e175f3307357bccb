"""``statespan view``: the command."""

from __future__ import annotations

import contextlib
import errno
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from statespan._fail import fail
from statespan.cli import common
from statespan.cli.locate import MODEL, open_model

HELP = """Turn the knobs of layers in a browser, and stream signals.

The page, in your browser, shows the kernels, frequency responses and eigenvalues of a layer while you change its step
sizes, its state matrix, its initialization and its discretization. With MODEL it also shows the layers of the model, at
any sampling rate, and streams a signal through it: generated, or from a WAV or CSV file.

\b
Examples:
  statespan view                      untrained layers
  statespan view digits-s4d           a published model as well
  statespan view runs/own --port 0    a model of your own, at any free port
  ssh -L 8765:localhost:8765 HOST statespan view --no-browser   from another machine

Only programs on this machine can reach the page, and other sites' pages cannot. Ctrl-C ends it.
"""


def view(
    where: Annotated[Path | None, typer.Argument(metavar="[MODEL]", help=MODEL, show_default=False)] = None,
    *,
    port: Annotated[int, typer.Option(help="Port; 0 for any free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow a --host that other machines reach. There is no password.")
    ] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Serve the page; :data:`HELP` is the text for users."""
    if not 0 <= port <= 65535:
        fail(f"--port must be a number from 0 to 65535, got {port}")
    if where is not None:
        common.need("view", "safetensors")
    with common.explained():
        from statespan.view import Api, Server
        from statespan.view.guard import is_loopback

        if not is_loopback(host) and not expose:
            fail(
                f"--host must be an address of this machine only, such as 127.0.0.1, got {host}: the page has no "
                "password, so whoever reaches it can use the model and this machine's time; --expose allows it"
            )
        with common.rejected():
            api = Api() if where is None else Api(open_model(where, "cpu").model, where.name)
        try:
            server = Server(api, host, port, exposed=expose)
        except (OSError, UnicodeError) as error:
            busy = getattr(error, "errno", None) == errno.EADDRINUSE
            hint = "; --port 0 takes any free one" if busy else ""
            fail(f"cannot listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}{hint}")
    with server, contextlib.suppress(KeyboardInterrupt):
        common.say(f"view     {server.url}   (Ctrl-C ends it)")
        if browser:  # in a thread: a browser in the terminal would wait for the page for ever
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        server.serve_forever()
