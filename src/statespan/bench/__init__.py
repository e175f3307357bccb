"""The benchmarks and their runner; ``statespan bench`` is its face."""

from statespan.bench import cpu, layer, loop, model, op, scaling, table2, table3
from statespan.bench.registry import Benchmark, choose_settings
from statespan.bench.runner import Result, run_benchmark

BENCHMARKS: dict[str, Benchmark] = {
    module.BENCHMARK.name: module.BENCHMARK for module in (op, layer, model, loop, table2, table3, scaling, cpu)
}

__all__ = ["BENCHMARKS", "Benchmark", "Result", "choose_settings", "run_benchmark"]
