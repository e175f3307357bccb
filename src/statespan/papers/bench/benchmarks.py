"""Every benchmark by its name."""

from statespan.papers.bench import cpu, layer, loop, model, op, scaling, step
from statespan.papers.bench import s4_table2 as table2
from statespan.papers.bench import s4_table3 as table3
from statespan.papers.bench import s4_table7 as table7
from statespan.papers.bench import s4_table8 as table8
from statespan.papers.bench.listing import LISTED
from statespan.papers.bench.registry import Benchmark

_MODULES = (op, layer, model, loop, table2, table3, step, table7, table8, scaling, cpu)
BENCHMARKS: dict[str, Benchmark] = {module.BENCHMARK.name: module.BENCHMARK for module in _MODULES}
assert list(BENCHMARKS) == list(LISTED)
