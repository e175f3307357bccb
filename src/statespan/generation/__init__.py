"""Generating sequences and streaming them, in constant time and memory a step."""

from statespan.generation.loop import Generated, generate
from statespan.generation.noise import uniforms
from statespan.generation.sampling import Sampling

__all__ = ["Generated", "Sampling", "generate", "uniforms"]
