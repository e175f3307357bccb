"""The command: its mistakes, its signals, and that it only listens here."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest

from statespan.view import Server
from tests.cli.make import invoke, one_line

MISTAKES = {
    "no model": (["no-such-model"], "but no-such-model is not there"),
    "a misspelt model": (["digits-s4"], "did you mean digits-s4d"),
    "an exposed host": (
        ["--host", "0.0.0.0"],
        "--host must be an address of this machine only, such as",
    ),
    "a host's name": (["--host", "example.org"], "the page has no password"),
    "an address of nobody": (["--host", "192.0.2.1", "--expose"], "cannot listen on 192.0.2.1, port 8765"),
    "a port too high": (["--port", "65536"], "--port must be a number from 0 to 65535, got 65536"),
    "a port that is no number": (["--port", "http"], "'http'"),
    "an option that is none": (["--brows"], "--brows"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line(name):
    arguments, said = MISTAKES[name]
    done = invoke("view", *arguments)
    assert said in one_line(done)
    assert done.stdout == ""


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = one_line(invoke("view", "--port", port, "--no-browser"))
    assert said == (
        f"statespan: cannot listen on 127.0.0.1, port {port}: Address already in use; --port 0 takes any free one\n"
    )


def test_the_browser_is_opened_unless_it_is_not_wanted(monkeypatch):
    opened, asked = [], threading.Event()
    monkeypatch.setattr("webbrowser.open", lambda url: (opened.append(url), asked.set()))
    monkeypatch.setattr(Server, "serve_forever", lambda self: asked.wait(10))
    done = invoke("view", "--port", "0")
    assert done.exit_code == 0
    (url,) = opened
    assert url in done.stdout
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
    assert invoke("view", "--port", "0", "--no-browser").exit_code == 0
    assert len(opened) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_it(number, code):
    """And until then it serves, on loopback only."""
    command = [sys.executable, "-m", "statespan", "view", "--port", "0", "--no-browser"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        url = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert b"<title>statespan view</title>" in answer.read()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, errors) == (code, "")
