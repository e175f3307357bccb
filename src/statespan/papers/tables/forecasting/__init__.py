"""Forecasting as the papers measure it: the baselines, and one harness that trains them and S4 on the same windows.

Every model is called ``model(x, marks=marks)`` with x (B, context + horizon, C), of which the horizon is not known, and
answers with (B, horizon, K).
"""

from statespan.papers.baselines.informer import Informer
from statespan.papers.baselines.linear import DLinear, NLinear
from statespan.papers.baselines.lstm import LSTM
from statespan.papers.baselines.mean import Mean
from statespan.papers.baselines.naive import SeasonalNaive
from statespan.papers.baselines.s4 import S4

__all__ = ["LSTM", "S4", "DLinear", "Informer", "Mean", "NLinear", "SeasonalNaive"]
