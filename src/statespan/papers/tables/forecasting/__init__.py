"""Forecasting under the papers' protocol: one harness that trains S4 and the baselines on the same windows.

Every model is called as ``model(x, marks=marks)`` with x (B, context + horizon, C), whose horizon is unknown, and
returns (B, horizon, K).
"""

from statespan.papers.baselines.informer import Informer
from statespan.papers.baselines.linear import DLinear, NLinear
from statespan.papers.baselines.lstm import LSTM
from statespan.papers.baselines.mean import Mean
from statespan.papers.baselines.naive import SeasonalNaive
from statespan.papers.baselines.s4 import S4

__all__ = ["LSTM", "S4", "DLinear", "Informer", "Mean", "NLinear", "SeasonalNaive"]
