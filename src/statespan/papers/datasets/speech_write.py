"""Writes Speech Commands in parts of at most 16 MiB, for a machine that can receive nothing larger.

    python -m statespan.papers.datasets.speech_write DATA/speech OUT/speech --words sc10

DATA/speech has the layout of the public archive. OUT/speech then has ``parts.json``, the two lists and the parts, and
is read like DATA/speech.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statespan import _io
from statespan._check import check_choice, check_int
from statespan.papers.datasets.speech_clips import LENGTH, LISTS, SC10, SC30, SC35, Clip, Folder
from statespan.papers.datasets.speech_parts import FORMAT, MANIFEST, Parts

MIB = 16
HEADER = 128  # bytes before the samples of a part
WORDS = {"sc10": SC10, "sc30": SC30, "sc35": SC35}


def write_parts(source: Path, out: Path, *, words: str = "sc10", whole: bool = True, mib: int = MIB) -> list[Path]:
    """Write clips from the layout of the public archive as parts; returns the files.

    Args:
        source: Folder with a folder for each word, and the two lists.
        out: Folder to make.
        words: Which words: "sc10", "sc30" or "sc35".
        whole: Leave out clips that are shorter than 16,000 samples, as the papers' split of ten words does.
        mib: Largest size of a part in MiB.
    """
    check_choice("words", words, tuple(WORDS))
    check_int("mib", mib, minimum=1)
    if out.exists():
        raise FileExistsError(f"out must be a new folder, but {out} exists")
    folder = Folder(source)
    if lacking := [name for name in LISTS if not (source / name).is_file()]:
        raise FileNotFoundError(f"source must have {' and '.join(LISTS)}, missing in {source}: {', '.join(lacking)}")
    clips = folder.clips(WORDS[words])
    lengths = folder.lengths(clips)
    if whole:
        keep = np.flatnonzero(lengths == LENGTH)
        clips, lengths = [clips[i] for i in keep], lengths[keep]
    if not clips:
        raise ValueError(f"source must have clips of {LENGTH:,} samples, got none in {source}")
    rows = ((mib << 20) - HEADER) // (2 * LENGTH)
    parts: list[dict[str, Any]] = []
    with _io.new_folder(out, 2 * LENGTH * len(clips)) as draft:
        for begin in range(0, len(clips), rows):
            part, name = clips[begin : begin + rows], f"part-{len(parts):04d}.npy"
            facts = {"clips": [file for file, _ in part], "lengths": lengths[begin : begin + rows].tolist()}
            parts.append({**_write(draft / name, _bytes(folder, part)), **facts})
        lists = [_write(draft / name, iter([(source / name).read_bytes()])) for name in LISTS]
        content = {"format": FORMAT, "whole": whole, "lists": lists, "parts": parts}
        _io.write_new(draft / MANIFEST, [json.dumps(content).encode()])
    return sorted(out.iterdir())


def _bytes(folder: Folder, clips: Sequence[Clip]) -> Iterator[bytes]:
    head = io.BytesIO()
    facts = {"descr": "<i2", "fortran_order": False, "shape": (len(clips), LENGTH)}
    np.lib.format.write_array_header_1_0(head, facts)
    yield head.getvalue()
    for samples in folder.samples(clips):
        yield np.ascontiguousarray(samples, "<i2").tobytes()


def _write(path: Path, content: Iterator[bytes]) -> dict[str, Any]:
    size, digest = _io.write_new(path, content)
    return {"file": path.name, "bytes": size, "sha256": digest}


def main(arguments: list[str] | None = None) -> None:
    """Write the parts and say how many there are."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("source", type=Path, help="folder in the layout of the public archive")
    options.add_argument("out", type=Path, help="folder to make")
    options.add_argument("--words", choices=tuple(WORDS), default="sc10", help="which words (default: %(default)s)")
    options.add_argument("--short", action="store_true", help="also clips shorter than 16,000 samples")
    options.add_argument("--mib", type=int, default=MIB, help="largest size of a part in MiB (default: %(default)s)")
    args = options.parse_args(arguments)
    try:
        files = write_parts(args.source, args.out, words=args.words, whole=not args.short, mib=args.mib)
    except (OSError, ValueError) as error:
        options.error(str(error))
    parts = Parts(args.out)
    count = len(parts.clips(WORDS[args.words]))
    print(f"{count:,} clips in {len(files) - len(LISTS) - 1} parts of at most {args.mib} MiB in {args.out}")


if __name__ == "__main__":
    main()
