"""Reproduces the tables and figures of the S4 and S4D papers: ``statespan reproduce``."""
