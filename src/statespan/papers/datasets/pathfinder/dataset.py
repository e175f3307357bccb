"""LRA Pathfinder and Path-X: are two discs the ends of one dashed contour? Read pixel by pixel.

The benchmark's own images are read if they exist; otherwise :mod:`~statespan.papers.datasets.pathfinder.snakes`
draws images by the same rules.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statespan._check import check_int
from statespan._extras import require
from statespan.data.augment import Turn
from statespan.data.base import Array, Arrays, Dataset, Info
from statespan.data.cache import Rows, cached, stamp
from statespan.data.formats import npy
from statespan.data.registry import register_dataset
from statespan.data.source import Source
from statespan.data.split import split
from statespan.papers.datasets.images import Pixels
from statespan.papers.datasets.pathfinder.snakes import images
from statespan.papers.datasets.pathfinder.strokes import Style, style_of

VERSION = 3
LEVELS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}  # by the length of contours
SPLITS = ("train", "valid", "test")
PIECE = {32: 8192, 128: 1024}  # images that one process draws: seconds of work, for a smooth progress bar


def _files(size: int, contour: int) -> Source:
    level = LEVELS[contour]
    base = f"pathfinder{size}/{level}/metadata"
    origin = f"pathfinder{size} in https://storage.googleapis.com/long-range-arena/lra_release.gz"
    return Source(f"{level}/metadata", origin=origin, also=(base, f"lra_release/{base}"), optional=True)


@dataclass(frozen=True, kw_only=True)
class PathfinderOptions:
    """Options of Pathfinder and Path-X, read from the benchmark's files or drawn.

    Args:
        train: Number of training images to draw.
        valid: Number of validation images to draw.
        test: Number of test images to draw.
        seed: Seed of the images that are drawn; of the 80/10/10 split of the benchmark's.
        contour: Dashes of a long contour: 14 as in the papers, or 6 or 9, the benchmark's easier levels.
        center: Pixels in [-1, 1] instead of [0, 1].
        generate: Draw the images even if the files are here.
        augment: Rotate and mirror the training images, which changes no answer.

    Example:
        >>> PathfinderOptions(train=1000, contour=6).valid
        20000
    """

    train: int = 160_000
    valid: int = 20_000
    test: int = 20_000
    seed: int = 42
    contour: int = 14
    center: bool = False
    generate: bool = False
    augment: bool = False

    def __post_init__(self) -> None:
        if check_int("contour", self.contour, minimum=1) not in LEVELS:
            raise ValueError(f"contour must be one of {tuple(LEVELS)}, the levels of the benchmark, got {self.contour}")


def _register(name: str, size: int, summary: str) -> None:
    @register_dataset(name, summary, files=(_files(size, 14),), folder=f"pathfinder{size}", config=PathfinderOptions)
    def load(folder: Path, options: PathfinderOptions) -> Dataset:
        metadata = _files(size, options.contour).find(folder)
        if options.generate or metadata is None:
            parts = [_drawn(folder, size, part, options) for part in SPLITS]
        else:
            base, seed = metadata.parent, options.seed
            files = stamp(*sorted(metadata.iterdir()))
            key = {"version": VERSION, "seed": seed, "size": size, "contour": options.contour, "files": files}
            arrays = cached(folder, name, key, lambda: _read(base, size, seed))
            parts = [{"x": arrays[f"{part}_x"], "y": arrays[f"{part}_y"]} for part in SPLITS]
        prepare = Pixels(255.0, (0.5,), (0.5,)) if options.center else Pixels(255.0)
        info = Info("classification", size * size, 1, None, 2, ("apart", "joined"))
        splits = [Arrays(part, prepare) for part in parts]
        return Dataset(name, info, splits[0], splits[1], splits[2], augment=Turn(size) if options.augment else None)


_register("pathfinder", 32, "LRA Pathfinder: 1,024 pixels, 2 classes")
_register("path-x", 128, "LRA Path-X: Pathfinder with 16,384 pixels, 2 classes")


def _drawn(folder: Path, size: int, part: str, options: PathfinderOptions) -> dict[str, Array]:
    style, seed = style_of(size, options.contour), check_int("seed", options.seed, minimum=0)
    count = check_int(part, getattr(options, part), minimum=1)
    key = {"version": VERSION, "split": part, "count": count, "seed": seed, "size": size, "contour": options.contour}
    own_seed = 3 * seed + SPLITS.index(part)

    def build() -> dict[str, Array | Rows]:
        labels: list[Array] = []
        x = Rows((count, size**2), np.uint8, _pieces(style, own_seed, count, labels.append))
        return {"x": x, "y": Rows((count,), np.uint8, labels)}  # in this order: writing x completes the labels

    return cached(folder, f"pathfinder{size}", key, build)


def _pieces(style: Style, seed: int, count: int, keep_labels: Callable[[Array], None]) -> Iterator[Array]:
    """Images (n, size²) in pieces, drawn by one process per CPU."""
    size, most = style.size, PIECE[style.size]
    starts = range(0, count, most)

    def draw(first: int) -> tuple[Array, Array]:
        size_of_piece = min(most, count - first)
        if len(starts) == 1:
            return images(style, seed, np.arange(first, first + size_of_piece))
        # a process of its own, not a fork: the caller may have threads, and need not guard its main module
        command = [sys.executable, "-c", "from statespan.papers.datasets.pathfinder.dataset import work; work()"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        arguments = [str(number) for number in (size, style.contour, seed, first, size_of_piece)]
        done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, check=True, env=env)
        data = np.frombuffer(done.stdout, np.uint8)
        return data[size_of_piece:].reshape(size_of_piece, size, size), data[:size_of_piece]

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for x, y in pool.map(draw, starts):
            keep_labels(y)
            yield x.reshape(len(x), -1)


def work() -> None:
    """Draw images in a separate process: reads which and how many, writes labels and pixels."""
    size, contour, seed, first, count = map(int, sys.argv[1:])
    x, y = images(style_of(size, contour), seed, np.arange(first, first + count))
    sys.stdout.buffer.write(y.tobytes() + x.tobytes())


def _read(base: Path, size: int, seed: int) -> dict[str, Array | Rows]:
    """The benchmark's images and labels in three splits, without empty files (the release has one)."""
    samples = [(path, label) for path, label in _samples(base) if path.stat().st_size]
    if not samples:
        raise ValueError(f"{base} must have images and their metadata, got none")
    labels = np.array([label for _, label in samples], np.uint8)
    arrays: dict[str, Array | Rows] = {}
    for name, rows in zip(SPLITS, split(len(samples), (0.1, 0.1), seed)):
        paths = [samples[i][0] for i in rows]
        arrays[f"{name}_x"] = Rows((len(rows), size * size), np.uint8, (_png(path, size) for path in paths))
        arrays[f"{name}_y"] = labels[rows]
    return arrays


def _samples(base: Path) -> Iterator[tuple[Path, int]]:
    """Path and label of each image, in the order of the metadata: folder, file, number, label and more."""
    for file in sorted((base / "metadata").glob("*.npy"), key=lambda path: (len(path.stem), path.stem)):
        for number, fields in enumerate(_fields(file), 1):
            parts = Path(*fields[:2]).parts if len(fields) > 3 else ()
            if fields[3:4] not in (["0"], ["1"]) or ".." in parts or Path(*parts).is_absolute():
                raise ValueError(f"{file}, row {number}: must be folder, file, number and label, got {fields[:4]}")
            yield base.joinpath(*parts), int(fields[3])


def _fields(file: Path) -> list[list[str]]:
    """The rows of a metadata file: text in the release, an array of words from the benchmark's script."""
    with file.open("rb") as opened:
        is_array = opened.read(6) == b"\x93NUMPY"
    if is_array:
        return [[str(word) for word in row] for row in npy.load(file)]
    return [line.split() for line in file.read_text("utf8").splitlines() if line.strip()]


def _png(path: Path, size: int) -> Array:
    """One image as (1, size²) bytes."""
    require("reading the PNG files of Pathfinder needs", "data", "PIL")
    from PIL import Image

    with Image.open(path, formats=("PNG",)) as image:
        if image.size != (size, size):
            raise ValueError(f"{path} must have {size} x {size} pixels, got {image.size}")
        return np.asarray(image.convert("L")).reshape(1, -1)
