"""docs/architecture.md follows a batch through the code; here a batch is sent, and the page is compared."""

import sys
from pathlib import Path

import statespan
from tests.cli.make import invoke
from tests.hops import PICTURE, ROOMS, hops

PACKAGE = Path(statespan.__file__).parent


def followed(wanted, run):
    """The wanted functions in the order in which they are first entered, each with how many are around it."""
    seen = {}

    def key(frame):
        code = frame.f_code
        file = Path(code.co_filename)
        return (file.relative_to(PACKAGE).as_posix(), code.co_name) if PACKAGE in file.parents else None

    def enter(frame, event, argument):
        if event == "call" and (here := key(frame)) in wanted and here not in seen:
            depth, frame = 0, frame.f_back
            while frame is not None:
                depth += key(frame) in wanted
                frame = frame.f_back
            seen[here] = depth

    sys.setprofile(enter)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen


def test_a_batch_takes_the_path_of_the_page(tmp_path):
    path = hops()
    assert [hop.number for hop in path] == list(range(1, len(path) + 1))
    assert 20 <= len(path) <= 25
    wanted = [(hop.file, hop.name.rpartition(".")[2]) for hop in path]
    assert len(set(wanted)) == len(wanted)
    seen = followed(set(wanted), lambda: invoke("train", "digits-s4d", "train.steps=1", "--folder", tmp_path))
    assert list(seen) == wanted
    assert [depth - 1 for depth in seen.values()][1:] == [hop.depth for hop in path][1:]


def test_the_picture_has_a_column_for_every_folder():
    assert {hop.file.partition("/")[0] for hop in hops()} == set(ROOMS)
    assert 10_000 < PICTURE.stat().st_size < 150_000
