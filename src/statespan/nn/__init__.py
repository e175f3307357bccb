"""Layers."""

from statespan.nn.attention import Attention, KVCache, StaticKVCache
from statespan.nn.dropout import TiedDropout
from statespan.nn.linear_attention import LinearAttention, LinearState, Performer
from statespan.nn.lssl import LSSL
from statespan.nn.s4 import S4
from statespan.nn.s4d import DSS, S4D
from statespan.nn.transformer import Transformer, TransformerBlock

__all__ = [
    "DSS",
    "LSSL",
    "S4",
    "S4D",
    "Attention",
    "KVCache",
    "LinearAttention",
    "LinearState",
    "Performer",
    "StaticKVCache",
    "TiedDropout",
    "Transformer",
    "TransformerBlock",
]
