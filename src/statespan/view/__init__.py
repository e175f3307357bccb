"""A live page on loopback: layers change as knobs are turned, and models answer signals; see docs/view.md."""

from statespan.view.api import Api
from statespan.view.server import Server

__all__ = ["Api", "Server"]
