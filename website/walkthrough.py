"""Follows a page word by word: writes the files that it shows, runs its commands and puts what came below them.

    python -m website.walkthrough docs/five-minutes.md --in FOLDER    # FOLDER: a clone, in which nothing is installed

A file is a block of code whose text before it names the file in code font, last; a command is a line with ``$``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import time
from pathlib import Path

BLOCK = re.compile(r"^```(python|yaml|console)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`([\w-]+\.(?:py|yaml))`")
BAR = re.compile(r"^.*━.*\n?", re.MULTILINE)


def steps(text: str) -> list[tuple[str, str, str]]:
    """What to do, in order: ("file", name, content) or ("run", command, what the page shows)."""
    found: list[tuple[str, str, str]] = []
    for block in BLOCK.finditer(text):
        kind, body = block.groups()
        if kind == "console":
            found += [
                ("run", command, shown) for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.M)
            ]
        else:
            found.append(("file", NAME.findall(text[: block.start()])[-1], body))
    return found


def printed(run: subprocess.CompletedProcess[str]) -> str:
    """What a command printed, without its progress bar and the spaces at the ends of lines."""
    lines = BAR.sub("", run.stdout).rstrip().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def follow(page: Path, folder: Path) -> str:
    """The page with what its commands print, run in one shell environment of ``folder``; shows a stopwatch."""
    text = page.read_text(encoding="utf-8")
    outputs = []
    before = ""
    start = time.perf_counter()
    for kind, name, content in steps(text):
        if kind == "file":
            (folder / name).write_text(content, encoding="utf-8")
            continue
        run = subprocess.run(["bash", "-ec", before + name], cwd=folder, text=True, stdout=subprocess.PIPE, check=True)
        if name.startswith("source "):
            before = f"{name}\n"
        outputs.append(f"$ {name}\n{printed(run)}")
        print(f"{time.perf_counter() - start:6.1f} s  {name}", flush=True)
    result = iter(outputs)

    def filled(block: re.Match[str]) -> str:
        if block[1] != "console":
            return block[0]
        return "```console\n" + "".join(next(result) for _ in re.findall(r"^\$ ", block[2], re.MULTILINE)) + "```\n"

    return BLOCK.sub(filled, text)


def main() -> None:
    """Follow the page, and write it with the outputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--in", dest="folder", type=Path, required=True)
    args = parser.parse_args()
    args.page.write_text(follow(args.page, args.folder), encoding="utf-8")


if __name__ == "__main__":
    main()
