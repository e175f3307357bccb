"""Forecasting as the papers measure it: the baselines, and one harness that trains them and S4 on the same windows.

Every model is called ``model(x, marks=marks)`` with x (B, context + horizon, C), of which the horizon is not known, and
answers with (B, horizon, K).
"""

from statespan.forecasting.informer import Informer
from statespan.forecasting.linear import DLinear, NLinear
from statespan.forecasting.lstm import LSTM
from statespan.forecasting.mean import Mean
from statespan.forecasting.naive import SeasonalNaive
from statespan.forecasting.s4 import S4

__all__ = ["LSTM", "S4", "DLinear", "Informer", "Mean", "NLinear", "SeasonalNaive"]
