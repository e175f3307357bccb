"""Every benchmark by its name."""

from statespan.bench import cpu, layer, loop, model, op, scaling, step, table2, table3, table7, table8
from statespan.bench.listing import LISTED
from statespan.bench.registry import Benchmark

_MODULES = (op, layer, model, loop, table2, table3, step, table7, table8, scaling, cpu)
BENCHMARKS: dict[str, Benchmark] = {module.BENCHMARK.name: module.BENCHMARK for module in _MODULES}
assert list(BENCHMARKS) == list(LISTED)
