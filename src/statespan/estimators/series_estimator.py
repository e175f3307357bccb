"""The base of the classifier and the regressor: reading series, choosing settings, training, predicting, saving.

Shapes: n series, L longest length, C channels, K classes or values.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan.data.base import Arrays, Batch
from statespan.data.split import split, stratified
from statespan.estimators import store
from statespan.estimators.base import Estimator
from statespan.estimators.fitting import fit_network, train_config
from statespan.estimators.inputs.scaling import STANDARDS, Scale
from statespan.estimators.inputs.series import Array, Panel, as_panel
from statespan.estimators.inputs.times import as_gaps
from statespan.estimators.network import Network, NetworkConfig
from statespan.estimators.settings import choose_series_settings, describe
from statespan.models.irregular import announce_cost
from statespan.train.device import pick_device
from statespan.train.feed import Feed
from statespan.train.loop import Splits
from statespan.train.order import derive
from statespan.train.tasks import Task, output

if TYPE_CHECKING:
    from typing_extensions import Self

PREDICT_SAMPLES = 1 << 23  # samples times features that are predicted together


@dataclass(kw_only=True, eq=False, repr=False)
class SeriesEstimator(Estimator):
    """Predicts one target per series; see :class:`S4Classifier` and :class:`S4Regressor`.

    Example:
        >>> from statespan import S4Regressor
        >>> estimator = S4Regressor(epochs=3, stride=2, verbose=0)
        >>> isinstance(estimator, SeriesEstimator), estimator.stride
        (True, 2)
    """

    _body: ClassVar[str]

    stride: int | None = None
    epochs: int | None = None
    standardize: str = "channel"

    @abstractmethod
    def _fit_answers(self, y: Any, panel: Panel) -> tuple[Array, int, Array | None]:
        """The targets as the network learns them, their number K, and the classes to stratify the hold-out by."""

    @abstractmethod
    def _task(self) -> Task:
        """The training objective."""

    @abstractmethod
    def _fitted(self) -> dict[str, Any]:
        """The fitted state besides the network, as plain values."""

    @abstractmethod
    def _restore(self, fitted: dict[str, Any]) -> None:
        """The inverse of :meth:`_fitted`."""

    def fit(self, X: Any, y: Any, *, times: Any = None, sampling_rate: float | None = None) -> Self:
        """Fit to series and their targets.

        Args:
            X: An array (n, length) or (n, length, channels), a list of n arrays (length,) or (length, channels), or a
                pandas frame: wide (a row for each series) or long (an index of two levels, series and time). See
                ``channels_first`` for arrays in another order.
            y: Answers: classes (n,) (numbers, texts or booleans), or values (n,) or (n, values). For a long frame a
                Series whose index names the series.
            times: Times of samples that do not come in equal steps: an array (n, length), one (length,) for all, or a
                list of arrays; numbers or dates.
            sampling_rate: Samples a second, to predict from samples of another rate later.

        Returns:
            The estimator itself.
        """
        self._check_parameters()
        self._set_rate(sampling_rate)
        panel = as_panel(X, missing=self.missing, channels_first=self.channels_first, warn=True)
        self.n_channels_in_ = panel.values.shape[2]
        self._note_features(X, panel)
        answers, outputs, labels = self._fit_answers(y, panel)
        seed = self._seed()
        n, length = panel.values.shape[:2]
        gaps = self._gaps(times, panel, sampling_rate)
        self.chosen_ = chosen = choose_series_settings(self, n, length, is_irregular=gaps is not None)
        rows = self._parts(n, labels, seed)
        self.scale_ = Scale.of(panel.rows(rows[0]), self.standardize)
        self.masked_ = self.missing == "mask"
        config = self._network_config(-(-length // chosen["stride"]), outputs)
        device = pick_device(self.device)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "weights"))
            self.network_ = Network(config).to(device)
        parts = [self._arrays(panel.rows(part), answers[part], None if gaps is None else gaps[part]) for part in rows]
        can_be_captured = gaps is None and not panel.ragged  # lengths are checked on the way, which no graph can
        train = train_config(
            len(rows[0]), batch=chosen["batch_size"], epochs=chosen["epochs"], lr=chosen["learning_rate"],
            patience=chosen["patience"], compile="auto" if can_be_captured else "none", seed=seed,
            threads=self.threads,
        )  # fmt: skip
        training = f"{chosen['epochs']} epochs of batches of {chosen['batch_size']}"
        self.chosen_line_ = describe(self, self._in_words(panel), training, held_out=len(rows[1]), device=device)
        if self.verbose:
            print(self.chosen_line_, file=sys.stderr)
            if gaps is not None:
                updates = chosen["epochs"] * max(1, len(rows[0]) // chosen["batch_size"])
                announce_cost(self.network_.body, chosen["batch_size"], length, updates)
        self.history_ = fit_network(
            self.network_, Splits(parts[0], parts[1] if len(rows[1]) else None), train,
            task=self._task(), device=device, progress=bool(self.verbose),
        )  # fmt: skip
        self.n_iter_ = self.history_.steps
        return self

    def _gaps(self, times: Any, panel: Panel, sampling_rate: float | None) -> Array | None:
        """The gaps between samples at irregular times, and their unit in ``step_``."""
        self.step_: float | None = None
        if times is None:
            return None
        if sampling_rate is not None:
            raise ValueError(f"sampling_rate must be None if times are given, got {sampling_rate}")
        if self.stride not in (None, 1):
            raise ValueError(f"stride must be 1 for samples at irregular times, got {self.stride}")
        gaps, self.step_ = as_gaps(times, panel)
        return gaps

    def _outputs(self, X: Any, dt_scale: float | None, times: Any, sampling_rate: float | None) -> Array:
        """The network's outputs (n, K), float64."""
        scale = self._dt_scale(dt_scale, sampling_rate)
        panel = as_panel(X, missing=self.missing, channels_first=self.channels_first)
        length, channels = panel.values.shape[1:]
        if channels != self.n_channels_in_:
            turned = "; X.swapaxes(1, 2) has as many" if length == self.n_channels_in_ and channels > 1 else ""
            raise ValueError(f"X must have {self.n_channels_in_} channels, as in fit, got {channels}{turned}")
        if (times is None) != (self.step_ is None):
            had, has = ("without", "with") if self.step_ is None else ("with", "without")
            raise ValueError(f"times must be given as in fit, which was {had} times, got X {has}")
        if times is not None and scale != 1.0:
            raise ValueError(
                f"dt_scale must be 1.0 where times are given, because they determine the steps, got {scale}"
            )
        gaps = None if times is None else as_gaps(times, panel, self.step_)[0]
        data = self._arrays(panel, np.zeros(len(panel), np.float32), gaps)
        feed = Feed(data, next(self.network_.parameters()).device)
        rows = max(1, PREDICT_SAMPLES // (length * 64))
        batches = feed.batches(torch.arange(len(panel)).split(rows))
        with torch.inference_mode(), self._few_threads(min(rows, len(panel)), length):
            parts = [output(self.network_, batch, scale).double().cpu() for batch in batches]
        answers = torch.cat(parts).numpy()
        if not np.isfinite(answers).all():
            number = int((~np.isfinite(answers)).any(1).argmax())
            raise ValueError(
                f"X must be of the magnitude that it had in fit, but series {number} is too far from it to predict; "
                f"got values up to {np.abs(panel.values[number]).max():.1e}, check their unit"
            )
        return answers

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        config = {
            "network": asdict(self.network_.config),
            "scale": asdict(self.scale_),
            "n_channels": self.n_channels_in_,
            "masked": self.masked_,
            "step": self.step_,
            "fitted": self._fitted(),
        }
        return config, {}

    def _set_state(self, config: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> None:
        network = NetworkConfig(**config["network"])
        if network.body != self._body:
            raise ValueError("its network does not match its weights")
        self.network_ = store.build(Network, network, tensors).to(device)
        self.n_channels_in_ = check_int("n_channels", config["n_channels"], minimum=1)
        self.masked_ = check_bool("masked", config["masked"])
        step = config["step"]
        self.step_ = None if step is None else check_number("step", step, above=0.0)
        if network.d_input != self.n_channels_in_ * (2 if self.masked_ else 1):
            raise ValueError("its network does not match its channels")
        self.scale_ = Scale.from_dict(config["scale"], self.n_channels_in_)
        self._restore(config["fitted"])

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("standardize", self.standardize, STANDARDS)

    def _network_config(self, positions: int, outputs: int) -> NetworkConfig:
        """The network's config: its time scales range from a few positions to a whole series."""
        slowest = min(1.0 / max(positions, 2), 0.1)
        options = {name: self.chosen_[name] for name in ("d_model", "d_state", "n_layers", "dropout")} | {
            "d_output": outputs, "layer": "s4d", "ssm": {"init": "lin", "dt_min": slowest, "dt_max": 0.5},
            "mix": "glu", "norm": "batch", "bidirectional": True, "pool": "mean",
        }  # fmt: skip
        d_input = self.n_channels_in_ * (2 if self.masked_ else 1)
        return NetworkConfig(self._body, d_input, self.chosen_["stride"], self.chosen_["d_model"], options)

    def _parts(self, n: int, labels: Array | None, seed: int) -> list[Array]:
        """Row numbers for training and for the hold-out."""
        share = self.chosen_["validation_fraction"]
        if not share:
            return [np.arange(n), np.arange(0)]
        number = derive(seed, "held out") % 2**31
        parts = split(n, (share,), number) if labels is None else stratified(labels, (share,), number)
        if not len(parts[1]) or not len(parts[0]):
            raise ValueError(
                f"validation_fraction must leave series to learn from and to hold out, got {share} of {n} series"
            )
        return parts

    def _arrays(self, panel: Panel, answers: Array, gaps: Array | None) -> Arrays:
        """Standardised series and their targets as training arrays."""
        x = self.scale_.apply(panel)
        if self.masked_:
            x = np.concatenate([x, panel.known.astype(np.float32)], -1)
        arrays = {"x": x, "y": answers}
        if panel.ragged:
            arrays["lengths"] = panel.lengths.astype(np.int64)
        if gaps is not None:
            arrays["gaps"] = gaps
        return Arrays(arrays, _batch)

    def _in_words(self, panel: Panel) -> str:
        n, length, channels = panel.values.shape
        shortest = int(panel.lengths.min())
        samples = f"{length}" if shortest == length else f"{shortest} to {length}"
        channels_in_words = f"{channels} channel{'s' * (channels > 1)}"
        return f"{n} series of {samples} samples, {channels_in_words}{self._answers_in_words()} ->"

    def _answers_in_words(self) -> str:
        return ""

    def _note_features(self, X: Any, panel: Panel) -> None:
        """The attributes of scikit-learn's conventions, for arrays and wide frames."""
        columns = getattr(X, "columns", None)
        for name in ("feature_names_in_", "n_features_in_"):
            if hasattr(self, name):
                delattr(self, name)
        if panel.ids is None:
            self.n_features_in_ = panel.values.shape[1]
        if columns is not None and panel.ids is None and all(isinstance(column, str) for column in columns):
            self.feature_names_in_ = np.asarray(columns, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _batch(rows: dict[str, torch.Tensor]) -> Batch:
    return Batch(rows["x"], rows["y"], rows.get("lengths"), gaps=rows.get("gaps"))
