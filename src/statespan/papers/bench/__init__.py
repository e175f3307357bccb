"""The benchmarks and their runner, behind ``statespan bench``."""
