"""Resolves the names of published models to folders.

In a checkout they lie in ``models`` beside ``src``; a wheel carries the same folders inside of the package.
"""

from __future__ import annotations

from pathlib import Path

from statespan._suggest import suggest
from statespan.models.pretrained import CONFIG, INPUTS

_PACKAGE = Path(__file__).resolve().parent.parent
RECIPE, RECORD = "recipe.yaml", "record.json"
__all__ = ["INPUTS", "RECIPE", "RECORD", "UnknownModelError", "find", "folders", "names", "resolve"]


class UnknownModelError(ValueError):
    """There is no published model of this name.

    Example:
        >>> try:
        ...     find("no-such-model")
        ... except UnknownModelError as error:
        ...     print(str(error).partition(";")[0])
        there is no published model 'no-such-model'
    """


def folders() -> list[Path]:
    """The existing folders of published models: the checkout's and the package's own."""
    root = _PACKAGE.parent.parent
    beside = [root / "models"] if (root / "pyproject.toml").is_file() and _PACKAGE.parent.name == "src" else []
    return [folder for folder in (*beside, _PACKAGE / "_models") if folder.is_dir()]


def names() -> list[str]:
    """The names of the published models.

    Example:
        >>> "digits-s4d" in names()
        True
    """
    return sorted({path.parent.name for folder in folders() for path in folder.glob(f"*/{CONFIG}")})


def find(name: str) -> Path:
    """The folder of a published model.

    Args:
        name: One of :func:`names`.

    Raises:
        UnknownModelError: There is no such model; the message has the nearest names.
    """
    known = names()
    if name in known:  # also keeps names such as ../x from being read
        return next(folder / name for folder in folders() if (folder / name / CONFIG).is_file())
    hint = suggest(name, known, most=3) or f"; published are {', '.join(known) or 'none'}"
    raise UnknownModelError(f"there is no published model {name!r}{hint}")


def resolve(where: str | Path) -> Path:
    """Resolve a folder with a model or a run, or else the name of a published model, to a folder.

    Raises:
        UnknownModelError: It is neither.
    """
    folder = Path(where)
    if any((folder / file).is_file() for file in (CONFIG, RECIPE, f"model/{CONFIG}")):
        return folder
    if folder.exists() and str(where) not in names():
        raise UnknownModelError(f"{where} must be a folder with a model or a run, or the name of a published model")
    return find(str(where))
