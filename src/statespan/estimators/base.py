"""The base of all estimators: settings, sampling rate, saving and loading."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan.estimators import store
from statespan.models.config import relative_step
from statespan.models.pretrained import LoadError
from statespan.nn.threads import few_threads
from statespan.train.device import pick_device

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

COUNTS = ("d_model", "n_layers", "stride", "context", "epochs", "steps", "batch_size", "patience", "threads")


@dataclass(kw_only=True, eq=False, repr=False)
class Estimator(BaseEstimator):  # type: ignore[misc]
    """An estimator with a network and a seed that can be saved; its public subclasses document the settings.

    Example:
        >>> from statespan import S4Classifier
        >>> estimator = S4Classifier(d_model=16, verbose=0)
        >>> isinstance(estimator, Estimator), estimator.get_params()["d_model"]
        (True, 16)
    """

    d_model: int | None = None
    n_layers: int | None = None
    d_state: int | None = None
    dropout: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    validation_fraction: float | None = None
    patience: int | None = None
    missing: str = "error"
    channels_first: bool = False
    device: str | None = None
    random_state: Any = 0
    verbose: int = 1
    threads: int | None = None

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """Everything learnt except the network's weights: plain values, and arrays."""

    @abstractmethod
    def _set_state(self, config: dict[str, Any], tensors: dict[str, torch.Tensor], device: torch.device) -> None:
        """The inverse of :meth:`_state`, which also builds the network."""

    def save(self, folder: str | Path) -> None:
        """Save the fitted estimator in a folder, new or not: the weights as safetensors, everything else as JSON."""
        check_is_fitted(self, "network_")
        seed = int(self.random_state) if isinstance(self.random_state, (int, np.integer)) else None
        config, arrays = self._state()
        config = {
            "parameters": {**self.get_params(), "random_state": seed},
            "sampling_rate": self.sampling_rate_,
            "chosen": self.chosen_,
            "line": self.chosen_line_,
            **config,
        }
        store.save(folder, type(self).__name__, config, network=self.network_, arrays=arrays)

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> Self:
        """Load an estimator saved by :meth:`save`; it predicts the same.

        Args:
            folder: Where it was saved.
            device: Where to load it: "cpu", "cuda"…; CUDA by default if there is a CUDA device.

        Raises:
            LoadError: Anything is missing or damaged, or it is another kind of estimator.
        """
        kind, config, tensors = store.load(folder)
        if kind != cls.__name__:
            raise LoadError(f"{folder} holds {kind}, not {cls.__name__}; statespan.estimators.load loads any")
        return cls._from_stored(config, tensors, device)

    @classmethod
    def _from_stored(cls, config: dict[str, Any], tensors: dict[str, torch.Tensor], device: str | None) -> Self:
        place = pick_device(device)
        try:
            estimator = cls(**store.parameters_in(config["parameters"]))
            estimator._set_rate(config.get("sampling_rate"))
            estimator.chosen_, estimator.chosen_line_ = dict(config["chosen"]), str(config["line"])
            estimator._set_state(config, tensors, place)
        except LoadError:
            raise
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
            raise LoadError(f"the estimator cannot be built from what was saved: {error}") from error
        return estimator

    def _check_parameters(self) -> None:
        """Reject parameters that are invalid for any data."""
        for name in COUNTS:
            if getattr(self, name, None) is not None:
                check_int(name, getattr(self, name), minimum=1)
        if self.d_state is not None:
            check_int("d_state", self.d_state, minimum=2, even=True)
        for name in ("dropout", "validation_fraction"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0.0, below=1.0, closed=True)
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate, above=0.0)
        check_choice("missing", self.missing, ("error", "mask"))
        check_bool("channels_first", self.channels_first)
        pick_device(self.device)

    def _set_rate(self, sampling_rate: float | None) -> None:
        if sampling_rate is not None:
            sampling_rate = check_number("sampling_rate", sampling_rate, above=0.0)
        self.sampling_rate_ = sampling_rate

    def _dt_scale(self, dt_scale: float | None, sampling_rate: float | None) -> float:
        """The step size relative to training, from whichever argument is given."""
        check_is_fitted(self, "network_")
        if sampling_rate is not None and dt_scale is None and self.sampling_rate_ is None:
            raise ValueError(
                f"sampling_rate must also be given to fit, got {sampling_rate} only here; "
                "dt_scale says how many times as long the step is as in training"
            )
        return relative_step(self.sampling_rate_, dt_scale=dt_scale, sampling_rate=sampling_rate)

    def _few_threads(self, rows: int, length: int) -> AbstractContextManager[None]:
        """Use the chosen number of threads within the context, by default one for a small network."""
        return few_threads(self.network_, rows, length, given=self.threads)

    def _seed(self) -> int:
        """The seed of a fit: the given one, or one drawn from the given generator."""
        state = self.random_state
        if state is None or hasattr(state, "randint"):
            return int(check_random_state(state).randint(2**31 - 1))
        return check_int("random_state", state, minimum=0)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "mask"
        return tags
