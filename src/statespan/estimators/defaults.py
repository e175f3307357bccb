"""Default sizes and training settings, chosen from the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LONGEST = 256  # positions of the body beyond which neighbouring samples are brought together


@dataclass(frozen=True)
class Choice:
    """The sizes and training settings of an estimator."""

    d_model: int
    n_layers: int
    d_state: int
    stride: int  # samples a position stands for
    dropout: float
    epochs: int  # passes over the training series, at most
    batch_size: int  # series an update
    learning_rate: float  # of everything but the SSMs
    validation_fraction: float  # share of the series that is held out; 0.0 for none
    patience: int  # passes without improvement on the held-out part after which training ends

    @classmethod
    def of(cls, n: int, length: int, given: dict[str, Any]) -> Choice:
        """The settings for n series of this length; ``given`` holds the user's, None where not set.

        Example:
            >>> Choice.of(50, 150, {"d_model": 32}).d_model
            32
            >>> few, many = Choice.of(50, 150, {}), Choice.of(5000, 4000, {})
            >>> few.validation_fraction, many.validation_fraction, few.stride, many.stride
            (0.0, 0.1, 1, 16)
        """
        stride = 1
        while length / stride > LONGEST:
            stride *= 2
        updates = 2000
        batch = 16 if n < 1000 else 32
        auto: dict[str, Any] = {
            "d_model": 64,
            "n_layers": 3,
            "d_state": 16,
            "stride": stride,
            "dropout": 0.1,
            "epochs": max(10, min(100, updates * batch // n)),
            "batch_size": min(batch, n),
            "learning_rate": 0.004,
            "validation_fraction": 0.1 if n >= 300 else 0.0,
            "patience": 10,
        }
        return cls(**{name: auto[name] if given.get(name) is None else given[name] for name in auto})

    def line(self, held_out: int, parameters: int, device: str) -> str:
        """The choice in words."""
        each = "" if self.stride == 1 else f", {self.stride} samples a position"
        judged = f"{held_out} held out for early stopping" if held_out else "none held out"
        return (
            f"{self.n_layers} layers of {self.d_model} features (state {self.d_state}{each}), {parameters:,} weights; "
            f"up to {self.epochs} epochs of batches of {self.batch_size}, {judged}; on {device}"
        )
