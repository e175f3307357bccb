"""One ``load`` for everything trained: models, runs and estimators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from statespan._check import check_device
from statespan.models import hub
from statespan.models.find import resolve
from statespan.models.pretrained import CONFIG, read_name
from statespan.models.registry import from_pretrained


def load(name: str | Path, *, device: torch.device | str | None = None) -> Any:
    """A trained model in evaluation mode, or a fitted estimator.

    Args:
        name: The name of a published model (``statespan models`` lists them), or a folder: of a model that
            ``save_pretrained`` wrote, of a run, or of an estimator that ``save`` wrote. A run that has not finished
            yet is read from its checkpoints, which requires its dataset. ``hf://user/name``, with ``@revision`` if
            wanted, is a model of the Hugging Face Hub.
        device: Where to put it; None for the CPU, and for an estimator CUDA if available.

    Returns:
        The model or the estimator. An estimator scales its inputs itself. A model has the scaling of its training data
        as ``model.inputs``: apply it with ``model(model.inputs(series))``.

    Raises:
        UnknownModelError: There is no such model.
        LoadError: A file is missing or damaged.
        ValueError: This machine has no such device.

    Example:
        >>> model = load("digits-s4d")
        >>> model(torch.zeros(1, 64, 1)).shape
        torch.Size([1, 10])
        >>> image = torch.randint(0, 17, (64, 1))      # as in the files of the training data
        >>> len(model.inputs.answers(model(model.inputs(image))))
        1
    """
    if not isinstance(name, (str, Path)):
        raise TypeError(f"name must be the name of a model or a folder, got {type(name).__name__} {name!r}")
    if device is not None:
        device = check_device("device", device)
    folder = hub.locate(name) if str(name).startswith(hub.PREFIX) else resolve(name)
    saved = next((place for place in (folder, folder / "model") if (place / CONFIG).is_file()), None)
    if saved is None:
        from statespan.train import load_run

        network, *_ = load_run(folder)
        return network if device is None else network.to(device)
    if read_name(saved).startswith("estimator-"):
        from statespan import estimators

        return estimators.load(saved, device=None if device is None else str(device))
    return from_pretrained(saved, device=device)
