"""Whoever follows docs/five-minutes.md gets what it shows."""

import os
import re
import subprocess
import sys

from website import walkthrough
from website.paths import ROOT

INSTALLING = ("python3 -m venv ", "source ", "pip install ")
PAGE = ROOT / "docs" / "five-minutes.md"


def without_numbers(text):
    """The words of a text, and its accuracies; losses and times vary with the machine."""
    accuracies = [float(number) for number in re.findall(r"([\d.]+) %", text)]
    words = " ".join(re.sub(r"\b\d+(\.\d+)?\b|─+", "#", text).split())
    return words, accuracies


def test_every_command_prints_what_the_page_shows(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    for name, words in (("python", ""), ("statespan", "-m statespan ")):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    ran = []
    for kind, name, shown in walkthrough.steps(PAGE.read_text()):
        if kind == "file":
            (tmp_path / name).write_text(shown)
        elif not name.startswith(INSTALLING):
            run = subprocess.run(["bash", "-ec", name], cwd=tmp_path, text=True, check=True, capture_output=True)
            (words, accuracies), (page_words, on_page) = map(without_numbers, (walkthrough.printed(run), shown))
            assert words == page_words, name
            assert len(accuracies) == len(on_page)
            assert all(abs(here - there) < 8 for here, there in zip(accuracies, on_page)), name
            ran.append(name)
    assert len(ran) == 6
    assert sum(name.startswith("statespan ") for name in ran) == 3


def test_the_outputs_are_put_below_their_commands(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A file, `a.py`:\n\n```python\nprint(7)\n```\n\n```console\n$ cat a.py\n$ echo two  \nold\n```\n")
    text = walkthrough.follow(page, tmp_path)
    assert text == page.read_text().replace("a.py\n$ echo", "a.py\nprint(7)\n$ echo").replace("old", "two")
