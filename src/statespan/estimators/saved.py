"""Saving and loading, the same for all estimators."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from statespan._check import check_int
from statespan.estimators import store
from statespan.models.pretrained import LoadError

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self


class SavedEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator with a network, a seed, and a folder to live in."""

    random_state: Any
    network_: Any

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """Everything that was learnt but the network's weights: plain values, and arrays."""

    @abstractmethod
    def _set_state(self, config: dict[str, Any], tensors: dict[str, torch.Tensor], device: torch.device) -> None:
        """The inverse of :meth:`_state`; makes the network as well."""

    def save(self, folder: str | Path) -> None:
        """Save the fitted estimator in a folder: the weights as safetensors, everything else as JSON.

        Args:
            folder: Made if it is not there.
        """
        check_is_fitted(self, "network_")
        seed = int(self.random_state) if isinstance(self.random_state, (int, np.integer)) else None
        config, arrays = self._state()
        config = {"parameters": {**self.get_params(), "random_state": seed}, **config}
        store.save(folder, type(self).__name__, config, self.network_, arrays)

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> Self:
        """The estimator that :meth:`save` saved, which predicts the same.

        Args:
            folder: Where it was saved.
            device: Where to put it: "cpu", "cuda"…; CUDA where there is some by default.

        Raises:
            LoadError: Anything is missing or damaged, or it is another kind of estimator.
        """
        kind, config, tensors = store.load(folder)
        if kind != cls.__name__:
            raise LoadError(f"{folder} holds {kind}, not {cls.__name__}; statespan.estimators.load reads any")
        return cls._from_stored(config, tensors, device)

    @classmethod
    def _from_stored(cls, config: dict[str, Any], tensors: dict[str, torch.Tensor], device: str | None) -> Self:
        from statespan.train.device import pick_device

        place = pick_device(device)
        try:
            estimator = cls(**store.parameters_in(config["parameters"]))
            estimator._set_state(config, tensors, place)
        except LoadError:
            raise
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
            raise LoadError(f"the estimator cannot be built from what was saved: {error}") from error
        return estimator

    def _seed(self) -> int:
        """The seed of a fit: that of the user, or drawn from the generator given."""
        state = self.random_state
        if state is None or hasattr(state, "randint"):
            source: Any = np.random.mtrand._rand if state is None else state
            return int(source.randint(2**31 - 1))
        return check_int("random_state", state, minimum=0)
