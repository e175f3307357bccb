"""The layers of the papers' public code (the repository state-spaces/s4), imported from a folder of the user.

Its standalone files import packages named ``src`` and ``extensions`` from the folder. While they are imported, the
folder is on ``sys.path``; afterwards ``sys.path`` and ``sys.modules`` are as before.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from torch import nn

FILES = {"models/s4/s4.py": "S4Block", "models/s4/s4d.py": "S4D"}
"""The standalone files and the class that each defines."""
MAIN, MINIMAL = FILES
KERNELS = "extensions/kernels"
"""Where the CUDA extension lies if it was built in place."""
ITS_PACKAGES = ("src", "extensions")


class PublicLayer(NamedTuple):
    """A layer of the public code.

    Example:
        >>> layer = PublicLayer("S4D", MINIMAL, lambda module, d_model, d_state: module.S4D(d_model, d_state=d_state))
        >>> layer.file
        'models/s4/s4d.py'
    """

    name: str
    file: str
    make: Callable[[ModuleType, int, int], nn.Module]  # from its module, d_model and d_state


def _block(mode: str, module: ModuleType, d_model: int, d_state: int) -> nn.Module:
    options = {"mode": mode, "d_state": d_state, "final_act": "glu", "bidirectional": False, "dropout": 0.0}
    return module.S4Block(d_model, **options)


def _minimal(module: ModuleType, d_model: int, d_state: int) -> nn.Module:
    return module.S4D(d_model, d_state=d_state, dropout=0.0)


LAYERS = (
    PublicLayer("S4D, papers' code", MAIN, partial(_block, "diag")),
    PublicLayer("S4D minimal, papers' code", MINIMAL, _minimal),
    PublicLayer("S4, papers' code", MAIN, partial(_block, "nplr")),
)
"""Both with causal kernels, GELU and GLU; the minimal S4D is its teaching version, without any of the extensions."""


def check_folder(folder: Path) -> Path:
    """The folder, if its main file can be imported; otherwise a ValueError in one line."""
    wanted = "--reference must be a folder with the repository state-spaces/s4"
    if not folder.is_dir():
        raise ValueError(f"{wanted}, got {str(folder)!r}, which is {'a file' if folder.exists() else 'not there'}")
    for file, name in FILES.items():
        path = folder / file
        if not path.is_file():
            raise ValueError(f"{wanted}, got {str(folder)!r}, which has no {file}")
        if f"class {name}" not in path.read_text(encoding="utf-8", errors="replace"):
            raise ValueError(f"{wanted}, got {str(folder)!r}, whose {file} has no class {name}")
    try:
        load(folder.resolve(), MAIN)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--reference: {folder / MAIN} needs the package {error.name}, which is not installed"
        ) from error
    except Exception as error:
        raise ValueError(f"--reference: {folder / MAIN} cannot be imported: {type(error).__name__}: {error}") from error
    return folder.resolve()


@cache
def load(folder: Path, file: str) -> ModuleType:
    """The module of one of its :data:`FILES`."""
    name = f"_statespan_public_{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(name, folder / file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder / file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    with _importing_from(folder):
        sys.modules[name] = module  # as an import statement does
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.modules[name]
    return module


def backend(module: ModuleType) -> str:
    """Which of its three implementations computes its kernels on a GPU."""
    if getattr(module, "has_cuda_extension", False):
        return "CUDA extension"
    return "pykeops" if getattr(module, "has_pykeops", False) else "naive"


def notes(folder: Path, layer: PublicLayer) -> str:
    """Which code it is, and what computes its kernel."""
    digest = hashlib.sha256((folder / layer.file).read_bytes()).hexdigest()[:12]
    how = backend(load(folder, layer.file)) if layer.file == MAIN else "naive, the only one it has"
    return f"state-spaces/s4, {layer.file} (SHA-256 {digest}…), kernel: {how}; x in float32 as (batch, d_model, length)"


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Import from the folder, silently, and leave no trace of it."""
    paths = list(sys.path)
    outer = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ITS_PACKAGES}
    disabled = logging.root.manager.disable
    for name in outer:
        del sys.modules[name]
    sys.path[:] = [str(folder), *paths, str(folder / KERNELS)]
    logging.disable(logging.WARNING)  # that extensions are missing: the notes of the rows say so
    try:
        yield
    finally:
        logging.disable(disabled)
        sys.path[:] = paths
        for name in [name for name in sys.modules if name.partition(".")[0] in ITS_PACKAGES]:
            del sys.modules[name]
        sys.modules.update(outer)
