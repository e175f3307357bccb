"""Values of series, in scikit-learn's conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import RegressorMixin

from statespan.data.scale import divisor, magnitude, moments, standardize
from statespan.estimators import store
from statespan.estimators.answers import real_columns
from statespan.estimators.base import SeriesEstimator
from statespan.estimators.frames import aligned
from statespan.estimators.series import Panel
from statespan.estimators.tasks import values
from statespan.models.pretrained import LoadError
from statespan.train.tasks import Task

if TYPE_CHECKING:
    from typing_extensions import Self

Array = np.ndarray[Any, Any]


class S4Regressor(RegressorMixin, SeriesEstimator):  # type: ignore[misc]
    """Real values of series, one or several each, by bidirectional S4D layers.

    The values are standardised for training and given back in their own units; one that was constant in training is
    predicted as that constant. All parameters are those of
    :class:`S4Classifier`, but for its ``class_weight``; what is None is chosen from the data, and one line says how.

    Args:
        d_model: Features of the layers.
        n_layers: Number of layers.
        d_state: State size of each SSM, even.
        stride: Samples that are brought together to one position of the layers; 1 for none.
        dropout: Probability of dropping a feature.
        epochs: Passes over the training series, at most.
        batch_size: Series an update.
        learning_rate: Of everything but A, B and Δ of the SSMs.
        validation_fraction: Share of the series that is held out for early stopping; 0.0 for none.
        patience: Passes without improvement on the held-out part after which training ends.
        standardize: "channel", "series" or "none", of the series.
        missing: "error" or "mask".
        channels_first: Arrays are (n, channels, length), and arrays of a list (channels, length).
        device: "cpu", "cuda"…
        random_state: Seed.
        verbose: 0 for silence, 1 for one line about the choice and a progress bar.

    Attributes:
        chosen_: What was chosen, by name; ``chosen_line_`` is the same in words.
        history_: Losses, held-out metrics and the number of updates.
        network_: The torch module.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> level = rng.normal(size=40)
        >>> X = level[:, None] + 0.1 * rng.normal(size=(40, 30))
        >>> model = S4Regressor(d_model=16, n_layers=1, epochs=30, verbose=0).fit(X, 3 * level + 100)
        >>> model.score(X, 3 * level + 100) > 0.9
        True
    """

    _body = "regressor"

    def fit(self, X: Any, y: Any, *, times: Any = None) -> Self:
        """Learn from series and their values.

        Args:
            X: As for :meth:`S4Classifier.fit`.
            y: (n,) or (n, values).
            times: As for :meth:`S4Classifier.fit`.

        Returns:
            The estimator itself.
        """
        return self._fit(X, y, times)

    def predict(self, X: Any, *, dt_scale: float = 1.0, times: Any = None) -> Array:
        """The values of each series.

        Args:
            X: As in ``fit``.
            dt_scale: Step of these samples relative to those of training: 2.0 for series sampled half as often.
            times: Times of the samples, where ``fit`` was given such.

        Returns:
            (n,), or (n, values) where ``fit`` was given such.
        """
        scores = self._outputs(X, dt_scale, times)
        with np.errstate(over="ignore"):
            found = scores * self.target_std_ + self.target_mean_
        if not np.isfinite(found).all():
            raise ValueError("y was too near the end of float64 in fit for finite answers; divide it by a larger unit")
        return found[:, 0] if self.single_ else found

    def score(self, X: Any, y: Any, *, dt_scale: float = 1.0, times: Any = None) -> float:
        """R², the share of the variance that is explained, averaged over the values.

        Args:
            X: As in ``fit``.
            y: As in ``fit``.
            dt_scale: As in ``predict``.
            times: As in ``predict``.
        """
        from sklearn.metrics import r2_score

        from statespan.estimators.classifier import _ids

        found = self.predict(X, dt_scale=dt_scale, times=times)
        wanted = real_columns(aligned(y, _ids(X)), len(found))
        exponent = -magnitude(wanted)  # a power of two for each value, which changes no digit: squares stay in range
        return float(r2_score(np.ldexp(wanted, exponent), np.ldexp(found, exponent)))

    def _fit_answers(self, y: Any, panel: Panel) -> tuple[Array, int, Array | None]:
        answers = real_columns(aligned(y, panel.ids), len(panel))
        self.single_ = answers.ndim == 1
        columns = answers.reshape(len(answers), -1)
        if len(columns) < 2:
            raise ValueError(f"S4Regressor needs at least 2 series, got {len(columns)} (1 sample is not enough)")
        self.target_mean_, self.target_std_ = moments(columns)
        scale = divisor(self.target_mean_, self.target_std_)
        return standardize(columns, self.target_mean_, scale, "y"), columns.shape[1], None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _task(self, answers: Array) -> Task:
        return values()

    def _answers_in_words(self) -> str:
        count = len(self.target_mean_)
        return f", {count} value{'s' * (count > 1)} to predict"

    def _fitted(self) -> dict[str, Any]:
        return {"single": self.single_, "mean": self.target_mean_, "std": self.target_std_}

    def _restore(self, fitted: dict[str, Any]) -> None:
        count = self.network_.body.config.d_output
        self.target_mean_, self.target_std_ = (
            store.numbers_in(fitted[name], f"the target's {name}", (count,)) for name in ("mean", "std")
        )
        self.single_ = bool(fitted["single"])
        if self.single_ and count != 1:
            raise LoadError("the estimator has another number of values than its network")
