"""Forward and backward passes of a module as CUDA graphs, for training loops of any kind."""

from statespan.nn.capture.module import capture

__all__ = ["capture"]
