"""Optional packages: one error, which names the extra that installs everything a call needs.

The command line catches it, so that its users see the message alone.
"""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}  # modules named unlike their packages
EVERYDAY = "train,data"
COMMANDS = {
    "ablate": "papers",
    "bench": "cli,plot",
    "data": "cli,data",
    "export": "train,data,export",
    "forecast": "timeseries",
    "models": "cli",
    "publish": "papers",
    "reproduce": "papers",
}
"""The extras with everything that a command can need, where they are not :data:`EVERYDAY`."""


class MissingPackageError(ModuleNotFoundError):
    """An optional package is not installed; the message says how to install it."""


def require(user: str, extra: str, *modules: str) -> None:
    """Raise a :class:`MissingPackageError` if a module cannot be imported.

    Args:
        user: What needs the modules, with its verb, such as "loading a model needs".
        extra: The extra, or several with commas, with all that the call needs.
        *modules: What it imports.

    Example:
        >>> require("loading a model needs", "train", "torch")
        >>> require("loading a model needs", "train", "torch", "no_such_module")
        Traceback (most recent call last):
        statespan._extras.MissingPackageError: loading a model needs no_such_module: pip install "statespan[train]"
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingPackageError(f"{user} {advice(missing, extra)}", name=missing[0])


def advice(missing: list[str], extra: str) -> str:
    """The packages of missing modules and the command that installs the extra."""
    packages = " and ".join(PACKAGES.get(module, module) for module in missing)
    return f'{packages}: pip install "statespan[{extra}]"'
