"""Forecasting under the papers' protocol: one harness that trains S4 and the baselines on the same windows.

Every model is called as ``model(x, marks=marks)`` with x (B, context + horizon, C), whose horizon is unknown, and
returns (B, horizon, K).
"""
