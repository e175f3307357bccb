"""The command line: one module per command; commands of other packages are found through entry points."""

from statespan.cli.app import main

__all__ = ["main"]
