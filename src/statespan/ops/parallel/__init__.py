"""Blocks in which a batch holds shards of sequences, or packed ones; see docs/scaling.md."""

from statespan.ops.parallel.context import Layout, SequenceParallel, active, sequence_parallel, whole_length
from statespan.ops.parallel.packing import Packing, active_packing, packed
from statespan.ops.parallel.ranks import ProcessRanks, Ranks

__all__ = [
    "Layout",
    "Packing",
    "ProcessRanks",
    "Ranks",
    "SequenceParallel",
    "active",
    "active_packing",
    "packed",
    "sequence_parallel",
    "whole_length",
]
