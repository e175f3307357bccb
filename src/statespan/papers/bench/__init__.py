"""The benchmarks and their runner; ``statespan bench`` is its face."""
