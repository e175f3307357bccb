"""Running one cell, in whatever process this is."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
from pathlib import Path

import torch

from statespan import _io as fsio
from statespan.data import MissingData
from statespan.data.base import Dataset
from statespan.papers.runs.cell import Cell
from statespan.papers.runs.outcome import DONE, FAILED, FAULT, MISSING, MORE, finished
from statespan.train.run import evaluate, fit, load_data
from statespan.train.strict import dump

KEPT = 2  # datasets; the cells of a table go through its columns in turn


class Worker:
    """Runs cells one after the other, with the last datasets kept.

    Args:
        cells: The folder of all cells.
        data: The folder of the datasets.
        device: Where to run.
        keep: What of a finished run stays: "result" (result and log), "model" (the tested model, too) or "all".
    """

    def __init__(self, cells: Path, data: Path | None, device: str | None, keep: str = "model") -> None:
        self.cells, self.data, self.device, self.keep = cells, data, device, keep
        self.loaded: dict[str, Dataset] = {}

    def run(self, cell: Cell) -> tuple[str, str]:
        """Train and measure a cell, or go on with it.

        Args:
            cell: The cell.

        Returns:
            "done", "failed" or "missing", and why in one line. An interruption is raised; the cell is saved then.
        """
        folder = cell.folder(self.cells)
        try:
            if not finished(cell, self.cells, self.keep):
                fsio.make_folder(folder)
                fit(cell.recipe, folder, resume=True, data=self._dataset(cell), progress=False, device=self.device)
                self._more(cell, folder)
            (folder / FAULT).unlink(missing_ok=True)
            self._prune(folder)
            return DONE, ""
        except MissingData as error:
            return self._fault(
                folder,
                MISSING,
                f"the files of dataset {error.dataset!r} are not here; see statespan data {error.dataset}",
            )
        except (torch.OutOfMemoryError, MemoryError):
            return self._fault(folder, FAILED, "out of memory")
        except Exception as error:  # a cell that fails, for whatever reason, must not stop the others
            kind = "" if isinstance(error, (ValueError, RuntimeError)) else f"{type(error).__name__}: "
            return self._fault(folder, FAILED, kind + " ".join(str(error).split()))
        finally:
            if cell.recipe.train.compile in ("compile", "both"):
                torch._dynamo.reset()  # after some models of a class it would run the next ones uncompiled
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _dataset(self, cell: Cell) -> Dataset:
        key = dump(dict(cell.recipe.data))
        if key not in self.loaded:
            while len(self.loaded) >= KEPT:  # free the oldest before the next one needs its room
                del self.loaded[next(iter(self.loaded))]
            self.loaded[key] = load_data(cell.recipe, self.data)
        return self.loaded[key]

    def _more(self, cell: Cell, folder: Path) -> None:
        if cell.evaluations:
            found = {
                one.name: evaluate(
                    folder, "test", one.rate, overrides=one.overrides, data=self.data, device=self.device
                )
                for one in cell.evaluations
            }
            fsio.replace_file(folder / MORE, (json.dumps(found, indent=2) + "\n").encode())

    def _prune(self, folder: Path) -> None:
        """Remove what is not to be kept, the checkpoints last: until then the run can be gone on with."""
        more = ("curve.png", "times.csv", "tensorboard", "model")
        gone = {"result": more, "model": ("tensorboard",), "all": ()}[self.keep]
        for name in (*gone, *(("checkpoints",) if self.keep != "all" else ())):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name, ignore_errors=True)
            else:
                (folder / name).unlink(missing_ok=True)

    def _fault(self, folder: Path, status: str, why: str) -> tuple[str, str]:
        with contextlib.suppress(
            OSError, fsio.CheckpointError
        ):  # a disk that is full: said on the terminal all the same
            fsio.make_folder(folder)
            fsio.replace_file(folder / FAULT, (json.dumps({"status": status, "why": why}) + "\n").encode())
        return status, why
