"""Sampling rates: the step of data relative to that of the training data."""

from __future__ import annotations

from statespan._check import check_number


def relative_step(trained: float | None, *, dt_scale: float | None = None, sampling_rate: float | None = None) -> float:
    """The step relative to training: ``dt_scale``, or the sampling rate of training over that of the data.

    Args:
        trained: Samples a second of the training data; None if unknown.
        dt_scale: Step relative to training, > 0; 1 if neither is given.
        sampling_rate: Samples a second of the data, > 0, in place of ``dt_scale``.

    Example:
        >>> relative_step(16000.0, sampling_rate=8000.0), relative_step(None, dt_scale=0.5), relative_step(None)
        (2.0, 0.5, 1.0)
    """
    if sampling_rate is None:
        return 1.0 if dt_scale is None else check_number("dt_scale", dt_scale, above=0.0)
    if dt_scale is not None:
        raise ValueError(f"give dt_scale or sampling_rate, not both, got {dt_scale:g} and {sampling_rate:g}")
    check_number("sampling_rate", sampling_rate, above=0.0)
    if trained is None:
        raise ValueError("sampling_rate needs a model that knows the rate it was trained at, got none; give dt_scale")
    return trained / sampling_rate
