"""The settings of S4 Tables 9, 13 and 14 on the available data, and the paper's number in each."""

from __future__ import annotations

from typing import NamedTuple

from statespan.train import recipes

SEASONS = {"etth1": 24, "etth2": 24, "ettm1": 96, "weather": 24, "ecl": 24}  # rows of a day
HORIZONS = {
    "etth1": (24, 48, 168, 336, 720),
    "etth2": (24, 48, 168, 336, 720),
    "ettm1": (24, 48, 96, 288, 672),
    "weather": (24, 48, 168, 336, 720),
    "ecl": (48, 168, 336, 720, 960),
}
MODELS = ("S4", "Informer", "LSTM", "NLinear", "DLinear", "SeasonalNaive")
SHOWN = {"S4": "S4D-LegS"}  # what a model of the records is called where people read: its layers


class Setting(NamedTuple):
    """A dataset, "S" (one series) or "M" (all), and a horizon.

    Example:
        >>> Setting("etth1", "S", 24).name
        'etth1-S-24'
    """

    dataset: str
    features: str
    horizon: int

    @property
    def name(self) -> str:
        """The setting as one word."""
        return f"{self.dataset}-{self.features}-{self.horizon}"


class ForecastErrors(NamedTuple):
    """Test errors in standardised units.

    Example:
        >>> errors = ForecastErrors(mse=0.25, mae=0.5)
        >>> errors._asdict()
        {'mse': 0.25, 'mae': 0.5}
    """

    mse: float
    mae: float


def settings(datasets: tuple[str, ...] = ("etth1", "etth2", "ettm1", "weather")) -> list[Setting]:
    """All settings of these datasets.

    Example:
        >>> len(settings()), settings(("ettm1",))[0].name
        (40, 'ettm1-S-24')
    """
    return [Setting(name, kind, horizon) for name in datasets for kind in "SM" for horizon in HORIZONS[name]]


def paper(setting: Setting) -> ForecastErrors | None:
    """The S4 paper's numbers for S4, from the recipes.

    Example:
        >>> paper(Setting("etth1", "S", 24)), paper(Setting("etth1", "M", 720))
        (ForecastErrors(mse=0.061, mae=0.191), ForecastErrors(mse=1.162, mae=0.842))
    """
    name = f"{setting.dataset}-s4"
    about, data = recipes.read(name).about, recipes.read(name).data
    longest = int(data["horizon"])
    if (setting.features, setting.horizon) == ("S", longest):
        return ForecastErrors(float(str(about.number)), float(str(about.note).rpartition("MAE ")[2]))
    for row in recipes.rows(name):
        changes = dict(change.split("=") for change in row.overrides)
        horizon = int(changes.get("data.horizon", longest))
        if (changes.get("data.features", "S"), horizon) == (setting.features, setting.horizon):
            return ForecastErrors(float(row.number), float(row.label.rpartition("MAE ")[2]))
    return None
