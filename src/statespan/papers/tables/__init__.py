"""The tables and figures of the S4 and the S4D paper, made again: ``statespan reproduce``."""
