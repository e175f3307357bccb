"""Applying a state space model to a sequence; README.md tells the mathematics and the layout of this folder."""
