"""Classes of series, in scikit-learn's conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from statespan.estimators import store
from statespan.estimators.answers import one_column
from statespan.estimators.base import SeriesEstimator
from statespan.estimators.frames import aligned
from statespan.estimators.series import Panel
from statespan.estimators.tasks import classes
from statespan.models.pretrained import LoadError
from statespan.train.tasks import Task

if TYPE_CHECKING:
    from typing_extensions import Self

Array = np.ndarray[Any, Any]


class S4Classifier(ClassifierMixin, SeriesEstimator):  # type: ignore[misc]
    """Classes of series, by bidirectional S4D layers.

    What is None is chosen from the data, and one line says how. Series may be of unequal lengths, of any number of
    channels, and at prediction of another sampling rate than in training.

    Args:
        d_model: Features of the layers.
        n_layers: Number of layers.
        d_state: State size of each SSM, even.
        stride: Samples that are brought together (behind filters that see all of them) to one position of the layers;
            1 for none. Long series are slow without.
        dropout: Probability of dropping a feature.
        epochs: Passes over the training series, at most.
        batch_size: Series an update.
        learning_rate: Of everything but A, B and Δ of the SSMs, which learn with 0.001.
        validation_fraction: Share of the series that is held out, to end with the weights that are best on it; 0.0 for
            none, which is the default for fewer than 300 series.
        patience: Passes without improvement on the held-out part after which training ends.
        class_weight: None, "balanced" (rare classes count as much as frequent ones) or a dictionary {class: weight}.
        standardize: "channel": with the mean and deviation of the training series; "series": each series with its
            own, where its level and scale say nothing; "none".
        missing: "error" refuses NaN and masked values; "mask" tells the network which values are missing.
        channels_first: Arrays are (n, channels, length), as in aeon and sktime; arrays of a list (channels, length).
        device: "cpu", "cuda"…; CUDA where there is some by default.
        random_state: Seed of the weights, the held-out part and the order of the series.
        verbose: 0 for silence, 1 for one line about the choice and a progress bar.

    Attributes:
        classes_: The classes, sorted.
        chosen_: What was chosen, by name; ``chosen_line_`` is the same in words.
        history_: Losses, held-out metrics and the number of updates.
        network_: The torch module.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> t = np.linspace(0, 1, 50)
        >>> X = np.stack([np.sin(2 * np.pi * (3 + i % 2) * t + rng.uniform(0, 6)) for i in range(20)])
        >>> y = ["slow", "fast"] * 10
        >>> model = S4Classifier(d_model=16, n_layers=2, epochs=20, verbose=0).fit(X, y)
        >>> model.classes_.tolist(), float(model.score(X, y))
        (['fast', 'slow'], 1.0)
        >>> model.predict(X[:2, ::2], dt_scale=2.0).tolist()  # every second sample only
        ['slow', 'fast']
    """

    _body = "classifier"

    def __init__(
        self,
        *,
        d_model: int | None = None,
        n_layers: int | None = None,
        d_state: int | None = None,
        stride: int | None = None,
        dropout: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_fraction: float | None = None,
        patience: int | None = None,
        class_weight: Any = None,
        standardize: str = "channel",
        missing: str = "error",
        channels_first: bool = False,
        device: str | None = None,
        random_state: Any = 0,
        verbose: int = 1,
    ) -> None:
        super().__init__(
            d_model=d_model, n_layers=n_layers, d_state=d_state, stride=stride, dropout=dropout, epochs=epochs,
            batch_size=batch_size, learning_rate=learning_rate, validation_fraction=validation_fraction,
            patience=patience, standardize=standardize, missing=missing, channels_first=channels_first, device=device,
            random_state=random_state, verbose=verbose,
        )  # fmt: skip
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, *, times: Any = None) -> Self:
        """Learn from series and their classes.

        Args:
            X: An array (n, length) or (n, length, channels), a list of n arrays (length,) or (length, channels), or a
                pandas frame: wide (a row for each series) or long (an index of two levels, series and time). See
                ``channels_first`` for arrays in another order.
            y: (n,) classes: numbers, texts or booleans. For a long frame a Series whose index names the series.
            times: Where samples do not come in equal steps, their times: an array (n, length), one (length,) for all,
                or a list of arrays; numbers or dates.

        Returns:
            The estimator itself.
        """
        return self._fit(X, y, times)

    def predict(self, X: Any, *, dt_scale: float = 1.0, times: Any = None) -> Array:
        """The most likely class of each series.

        Args:
            X: As in ``fit``.
            dt_scale: Step of these samples relative to those of training: 2.0 for series sampled half as often.
            times: Times of the samples, where ``fit`` was given such.

        Returns:
            (n,) classes.
        """
        best = self._outputs(X, dt_scale, times).argmax(1)
        found: Array = self.classes_[best]
        return found

    def predict_proba(self, X: Any, *, dt_scale: float = 1.0, times: Any = None) -> Array:
        """The probabilities of the classes, in the order of ``classes_``.

        Args:
            X: As in ``fit``.
            dt_scale: As in ``predict``.
            times: As in ``predict``.

        Returns:
            (n, K), rows that add up to 1.
        """
        scores = self._outputs(X, dt_scale, times)
        odds = np.exp(scores - scores.max(1, keepdims=True))
        return odds / odds.sum(1, keepdims=True)

    def score(self, X: Any, y: Any, *, dt_scale: float = 1.0, times: Any = None) -> float:
        """The share of series whose class is predicted.

        Args:
            X: As in ``fit``.
            y: (n,) classes.
            dt_scale: As in ``predict``.
            times: As in ``predict``.
        """
        found = self.predict(X, dt_scale=dt_scale, times=times)
        wanted = one_column(aligned(y, _ids(X)), len(found))
        return float((found == wanted).mean())

    def _fit_answers(self, y: Any, panel: Panel) -> tuple[Array, int, Array | None]:
        labels = one_column(aligned(y, panel.ids), len(panel))
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least two classes, got only 1 class: {self.classes_[0]!r}")
        self._weights = self._class_weights(labels)
        return numbers.astype(np.int64), len(self.classes_), numbers

    def _class_weights(self, labels: Array) -> tuple[float, ...]:
        if self.class_weight is None:
            return ()
        if self.class_weight != "balanced" and not isinstance(self.class_weight, dict):
            raise TypeError(f"class_weight must be None, 'balanced' or a dictionary, got {self.class_weight!r}")
        if isinstance(self.class_weight, dict):
            if unknown := [label for label in self.class_weight if label not in self.classes_.tolist()]:
                raise ValueError(f"class_weight must name classes of y, got {unknown[0]!r}")
            if any(not np.isfinite(weight) or weight < 0 for weight in self.class_weight.values()):
                raise ValueError(f"class_weight must be numbers >= 0, got {self.class_weight}")
        weights = compute_class_weight(self.class_weight, classes=self.classes_, y=labels)
        return tuple(float(weight) for weight in weights)

    def _task(self, answers: Array) -> Task:
        return classes(self._weights)

    def _answers_in_words(self) -> str:
        return f", {len(self.classes_)} classes"

    def _fitted(self) -> dict[str, Any]:
        return {"classes": store.labels_out(self.classes_)}

    def _restore(self, fitted: dict[str, Any]) -> None:
        self.classes_ = store.labels_in(fitted["classes"])
        if len(self.classes_) != self.network_.body.config.d_output:
            raise LoadError("the estimator has another number of classes than its network")


def _ids(X: Any) -> Any:
    index = getattr(X, "index", None)
    if getattr(index, "nlevels", 1) != 2:
        return None
    return list(dict.fromkeys(index.get_level_values(0)))  # type: ignore[union-attr]
