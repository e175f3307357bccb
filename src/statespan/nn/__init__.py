"""Layers."""

from statespan.nn.dropout import TiedDropout
from statespan.nn.lssl import LSSL
from statespan.nn.s4 import S4
from statespan.nn.s4d import DSS, S4D

__all__ = ["DSS", "LSSL", "S4", "S4D", "TiedDropout"]
