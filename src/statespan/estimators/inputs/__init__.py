"""Reads series from arrays, lists and frames; checks and standardises them."""
