"""Regression on series, in scikit-learn's conventions."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin

from statespan.data.scale import divisor, magnitude, moments, standardize
from statespan.estimators import store
from statespan.estimators.inputs.answers import real_columns
from statespan.estimators.inputs.frames import aligned, series_names
from statespan.estimators.inputs.series import Array, Panel
from statespan.estimators.series_estimator import SeriesEstimator
from statespan.models.pretrained import LoadError
from statespan.train.tasks import TASKS, Task


class S4Regressor(RegressorMixin, SeriesEstimator):  # type: ignore[misc]
    """Predicts one or several real values of each series with bidirectional S4D layers.

    The values are standardised for training and given back in their own units; one that was constant in training is
    predicted as that constant. The settings are those of :class:`S4Classifier`, but for its ``class_weight``.

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

    _body: ClassVar[str] = "regressor"

    def predict(
        self, X: Any, *, dt_scale: float | None = None, times: Any = None, sampling_rate: float | None = None
    ) -> Array:
        """The values of each series; the arguments are those of :meth:`S4Classifier.predict`.

        Returns:
            (n,), or (n, values) if ``fit`` got several values per series.
        """
        scores = self._outputs(X, dt_scale, times, sampling_rate)
        with np.errstate(over="ignore"):
            values = scores * self.target_std_ + self.target_mean_
        if not np.isfinite(values).all():
            raise ValueError(
                "y was too close to the limits of float64 in fit for finite predictions; divide it by a larger unit"
            )
        return values[:, 0] if self.single_ else values

    def score(
        self, X: Any, y: Any, *, dt_scale: float | None = None, times: Any = None, sampling_rate: float | None = None
    ) -> float:
        """R², the share of the variance that is explained, averaged over the values.

        The arguments are those of :meth:`S4Classifier.score`, with values as ``y``.
        """
        from sklearn.metrics import r2_score

        predicted = self.predict(X, dt_scale=dt_scale, times=times, sampling_rate=sampling_rate)
        wanted = real_columns(aligned(y, series_names(X)), len(predicted))
        exponent = -magnitude(wanted)  # a power of two for each value, which changes no digit: squares stay in range
        return float(r2_score(np.ldexp(wanted, exponent), np.ldexp(predicted, exponent)))

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

    def _task(self) -> Task:
        return TASKS["regression"]

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
