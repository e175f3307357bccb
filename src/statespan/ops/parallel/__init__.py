"""Sequence parallelism: the ranks of a group hold consecutive shards of each sequence; see docs/scaling.md."""

from statespan.ops.parallel.context import Layout, SequenceParallel, active, sequence_parallel, whole_length
from statespan.ops.parallel.ranks import ProcessRanks, Ranks

__all__ = ["Layout", "ProcessRanks", "Ranks", "SequenceParallel", "active", "sequence_parallel", "whole_length"]
