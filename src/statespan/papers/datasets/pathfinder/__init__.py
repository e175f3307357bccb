"""Pathfinder and Path-X images, drawn by the rules of the benchmark's release."""

from statespan.papers.datasets.pathfinder import dataset  # noqa: F401 - registers its datasets
