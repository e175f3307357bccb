"""Entry points of torch.hub: the layers, and the published models under their names.

``torch.hub.load("FOLDER", "digits-s4d", source="local")`` loads one from a checkout. torch.hub lists every callable of
this file whose name does not begin with an underscore.
"""

import sys
from pathlib import Path as _Path
from typing import Any as _Any

_SOURCE = str(_Path(__file__).resolve().parent / "src")
if _SOURCE not in sys.path:
    sys.path.insert(0, _SOURCE)  # for good: statespan imports its parts when they are first used

import statespan as _statespan  # noqa: E402
from statespan.models import find as _find  # noqa: E402

dependencies = ["torch", "numpy", "safetensors"]


def s4(d_model: int, **options: _Any) -> _Any:
    """The layer S4; see statespan.S4 for its options."""
    return _statespan.S4(d_model, **options)


def s4d(d_model: int, **options: _Any) -> _Any:
    """The layer S4D; see statespan.S4D for its options."""
    return _statespan.S4D(d_model, **options)


def dss(d_model: int, **options: _Any) -> _Any:
    """The layer DSS; see statespan.DSS for its options."""
    return _statespan.DSS(d_model, **options)


def lssl(d_model: int, **options: _Any) -> _Any:
    """The layer LSSL; see statespan.LSSL for its options."""
    return _statespan.LSSL(d_model, **options)


def s5(d_model: int, **options: _Any) -> _Any:
    """The layer S5; see statespan.S5 for its options."""
    return _statespan.S5(d_model, **options)


def lru(d_model: int, **options: _Any) -> _Any:
    """The layer LRU; see statespan.LRU for its options."""
    return _statespan.LRU(d_model, **options)


def _entry(name: str) -> _Any:
    def load(device: _Any = None) -> _Any:
        return _statespan.load(name, device=device)

    load.__name__ = name
    load.__doc__ = f"The published model {name}, in evaluation mode, on a device."
    return load


globals().update({_name: _entry(_name) for _name in _find.names()})
