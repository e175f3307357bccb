"""Readers of series in any form: they check and standardise arrays, lists and frames."""
