"""``statespan reproduce --queue``: which runs by the papers' own protocol have a record, and which have none."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from statespan._fail import fail
from statespan.cli import common

if TYPE_CHECKING:
    from statespan.papers.records.queue import LineState, QueueLine, QueueState

WIDTH = 80
INDENT = " " * 4


def show(words: Sequence[str], tasks: Path) -> None:
    """Print these lines of the queue (all without ``words``), what is missing of them, and the next command."""
    from statespan.papers.records import queue
    from statespan.papers.records.matching import PublishedRuns

    states = queue.states(PublishedRuns.read(tasks), _chosen(words, queue.queue()))
    for state in states:
        for line in _lines(state):
            common.say(line)
    count, left = sum(state.count for state in states), sum(state.minutes_left for state in states)
    done = sum(state.done for state in states)
    common.say(f"{done} of {count} runs have a record; {_time(left)} left, estimated for one H200")
    if command := queue.next_command(states):
        common.say("The next one:")
        for line in _shell(command):
            common.say(line)
        common.say("statespan publish RUN then writes its record.")


def _chosen(words: Sequence[str], lines: Sequence[QueueLine]) -> list[QueueLine]:
    """The lines of these numbers."""
    by_number = {str(line.number): line for line in lines}
    for word in words:
        if word not in by_number:
            fail(f"with --queue, NAME must be the number of a line, from 1 to {len(lines)}, got {word!r}")
    return [line for line in lines if not words or str(line.number) in words]


def _lines(state: LineState) -> Iterator[str]:
    line = state.line
    rest = f"{state.done} of {state.count} done, {_time(state.minutes_left)} left"
    yield from _columns(f"{line.number:>2}  {line.what}", rest)
    yield from textwrap.wrap(f"aim: {line.aim}", WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    if line.form:
        yield from textwrap.wrap(f"form: {line.form}", WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    for run in state.runs:
        yield from _run(run)
    yield ""


def _run(state: QueueState) -> Iterator[str]:
    """A run: the seeds with a record, then those without, with their minutes."""
    if state.files:
        yield from _columns(f"{INDENT}record   {state.run}{_seeds(list(state.files))}", "")
    if state.missing:
        yield from _columns(f"{INDENT}missing  {state.run}{_seeds(state.missing)}", _time(state.minutes_left))


def _seeds(seeds: list[int]) -> str:
    return f" (seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))})"


def _columns(text: str, right: str) -> Iterator[str]:
    """Text on the left, wrapped, and in its first line a text on the right."""
    width = WIDTH - len(right) - 2
    first, *others = textwrap.wrap(
        text, width, subsequent_indent=INDENT + " " * 9, drop_whitespace=True, break_on_hyphens=False
    )
    yield f"{first:<{width}}  {right}".rstrip()
    yield from others


def _shell(command: str) -> list[str]:
    """A command in lines that a shell reads as one."""
    lines = textwrap.wrap(
        command, WIDTH - 2, initial_indent=INDENT, subsequent_indent=2 * INDENT, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _time(minutes: float) -> str:
    return common.duration(60 * minutes) if minutes else "0 min"
