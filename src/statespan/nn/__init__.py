"""The layers, and the building blocks of whole models."""

from statespan.nn.adaptive import AdaptiveTokens
from statespan.nn.backbone import Backbone
from statespan.nn.block import FeedForward, ResidualBlock
from statespan.nn.dropout import TiedDropout
from statespan.nn.heads import PairHead, SequenceHead
from statespan.nn.in_turn import in_turn
from statespan.nn.layer import SSMLayer
from statespan.nn.lru import LRU
from statespan.nn.lssl import LSSL, DenseParameters
from statespan.nn.norm import BatchNorm
from statespan.nn.options import SSMOptions
from statespan.nn.parameters import DiagonalParameters, DPLRParameters, SSMParameters
from statespan.nn.pool import SequencePool
from statespan.nn.positions import SinusoidalPositions
from statespan.nn.s4 import S4
from statespan.nn.s4d import DSS, S4D
from statespan.nn.s5 import S5
from statespan.nn.sequence import SequenceLayer
from statespan.nn.unet import UNet

__all__ = [
    "DSS",
    "LRU",
    "LSSL",
    "S4",
    "S4D",
    "S5",
    "AdaptiveTokens",
    "Backbone",
    "BatchNorm",
    "DPLRParameters",
    "DenseParameters",
    "DiagonalParameters",
    "FeedForward",
    "PairHead",
    "ResidualBlock",
    "SSMLayer",
    "SSMOptions",
    "SSMParameters",
    "SequenceHead",
    "SequenceLayer",
    "SequencePool",
    "SinusoidalPositions",
    "TiedDropout",
    "UNet",
    "in_turn",
]
