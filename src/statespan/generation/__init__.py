"""Generation and streaming of sequences, in constant time and memory per step."""

from statespan.generation.loop import Generated, generate
from statespan.generation.noise import uniforms
from statespan.generation.sampling import Sampling
from statespan.generation.stream import Stream

__all__ = ["Generated", "Sampling", "Stream", "generate", "uniforms"]
