"""The command line: one module a command; commands of other packages are found by entry point."""

from statespan.cli.app import main

__all__ = ["main"]
