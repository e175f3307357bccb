"""Classification of series, in scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.extmath import softmax
from sklearn.utils.multiclass import check_classification_targets

from statespan.estimators import store
from statespan.estimators.inputs.answers import one_column
from statespan.estimators.inputs.frames import aligned, series_names
from statespan.estimators.inputs.series import Array, Panel
from statespan.estimators.series_estimator import SeriesEstimator
from statespan.estimators.tasks import classes
from statespan.models.pretrained import LoadError
from statespan.train.tasks import Task


@dataclass(kw_only=True, eq=False, repr=False)
class S4Classifier(ClassifierMixin, SeriesEstimator):  # type: ignore[misc]
    """Classifies series with bidirectional S4D layers.

    Settings that are None are chosen from the data, and one line reports the choice. Series may have unequal lengths,
    any number of channels, and another sampling rate at prediction than in training.

    Args:
        d_model: Features of the layers.
        n_layers: Number of layers.
        d_state: State size of each SSM, even.
        stride: Samples that a filter bank summarises in one position of the layers; 1 for none. Long series are slow
            without.
        dropout: Probability of dropping a feature.
        epochs: Passes over the training series, at most.
        batch_size: Series an update.
        learning_rate: Of everything but A, B and Δ of the SSMs, which learn with 0.001.
        validation_fraction: Share of the series that is held out to choose the best weights; 0.0 for none, the default
            for fewer than 300 series.
        patience: Passes without improvement on the held-out part after which training ends.
        class_weight: None, "balanced" (rare classes count as much as frequent ones) or a dictionary {class: weight}.
        standardize: "channel": with the mean and deviation of the training series; "series": each series with its
            own, where its level and scale say nothing; "none".
        missing: "error" rejects NaN and masked values; "mask" passes flags of missing values to the network.
        channels_first: Arrays are (n, channels, length), as in aeon and sktime; arrays of a list (channels, length).
        device: "cpu", "cuda"…; CUDA if available by default.
        random_state: Seed of the weights, the held-out part and the order of the series.
        verbose: 0 for silence, 1 for one line about the choice and a progress bar.
        threads: Threads on a CPU; by default one for a small network, otherwise torch's own choice.

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
        >>> model = model.fit(X, y, sampling_rate=50)
        >>> model.predict(X[:2, ::2], sampling_rate=25).tolist()  # the same, in samples a second
        ['slow', 'fast']
    """

    _body: ClassVar[str] = "classifier"

    class_weight: Any = None

    def predict(
        self, X: Any, *, dt_scale: float | None = None, times: Any = None, sampling_rate: float | None = None
    ) -> Array:
        """The most likely class of each series.

        Args:
            X: As in ``fit``.
            dt_scale: Step of these samples relative to those of training: 2.0 for series sampled half as often.
            times: Times of the samples, if ``fit`` was given times.
            sampling_rate: Samples a second, if ``fit`` was given that; instead of ``dt_scale``.

        Returns:
            (n,) classes.
        """
        scores = self._outputs(X, dt_scale, times, sampling_rate)
        return self.classes_[scores.argmax(1)]

    def predict_proba(
        self, X: Any, *, dt_scale: float | None = None, times: Any = None, sampling_rate: float | None = None
    ) -> Array:
        """The probabilities of the classes, in the order of ``classes_``; the arguments are those of ``predict``.

        Returns:
            (n, K), rows that add up to 1.
        """
        return softmax(self._outputs(X, dt_scale, times, sampling_rate))

    def score(
        self, X: Any, y: Any, *, dt_scale: float | None = None, times: Any = None, sampling_rate: float | None = None
    ) -> float:
        """The accuracy: the share of series whose class is predicted correctly.

        The arguments are those of ``predict``, and ``y`` is the true classes (n,).
        """
        predicted = self.predict(X, dt_scale=dt_scale, times=times, sampling_rate=sampling_rate)
        return float((predicted == one_column(aligned(y, series_names(X)), len(predicted))).mean())

    def _fit_answers(self, y: Any, panel: Panel) -> tuple[Array, int, Array | None]:
        labels = one_column(aligned(y, panel.ids), len(panel))
        try:
            check_classification_targets(labels)
        except ValueError:
            if labels.dtype.kind != "f":
                raise
            raise ValueError(
                f"y must be classes, got fractions such as {float(labels[labels % 1 != 0][0])!r}: S4Regressor predicts "
                "numbers, and y.astype(int) makes integers (Unknown label type: continuous)"
            ) from None
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least two classes, got only 1 class: {store.plain(self.classes_[0])!r}")
        self._weights = self._class_weights(labels)
        return numbers.astype(np.int64), len(self.classes_), numbers

    def _class_weights(self, labels: Array) -> tuple[float, ...]:
        if self.class_weight is None:
            return ()
        if self.class_weight != "balanced" and not isinstance(self.class_weight, dict):
            raise TypeError(f"class_weight must be None, 'balanced' or a dictionary, got {self.class_weight!r}")
        if isinstance(self.class_weight, dict):
            if unknown := [label for label in self.class_weight if label not in self.classes_.tolist()]:
                raise ValueError(f"class_weight must name classes of y, got {store.plain(unknown[0])!r}")
            if any(not np.isfinite(weight) or weight < 0 for weight in self.class_weight.values()):
                raise ValueError(f"class_weight must be numbers >= 0, got {self.class_weight}")
        weights = compute_class_weight(self.class_weight, classes=self.classes_, y=labels)
        return tuple(float(weight) for weight in weights)

    def _task(self) -> Task:
        return classes(self._weights)

    def _answers_in_words(self) -> str:
        return f", {len(self.classes_)} classes"

    def _fitted(self) -> dict[str, Any]:
        return {"classes": store.labels_out(self.classes_)}

    def _restore(self, fitted: dict[str, Any]) -> None:
        self.classes_ = store.labels_in(fitted["classes"])
        if len(self.classes_) != self.network_.body.config.d_output:
            raise LoadError("the estimator has another number of classes than its network")
