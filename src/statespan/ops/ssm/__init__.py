"""Applies a state space model to a sequence; README.md explains the mathematics and the layout of this folder."""
