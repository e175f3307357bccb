"""The kernels compile for GPUs that are not here, and fit into the shared memory that a program has there."""

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from statespan import ops
from statespan.ops.ssm.tiles import fits
from tests.ops.ahead import CASES, FULL, HALF, fitting, kernel_name

GPUS = {
    "workstation": (89, 99 << 10),
    "workstation-2025": (120, 99 << 10),
    "data-centre-2020": (80, 163 << 10),
    "data-centre-2022": (90, 227 << 10),
    "data-centre-2024": (100, 227 << 10),
}
"""The capability, and the most shared memory of a program, as NVIDIA documents them."""


def compile_for(gpu, names, folder):
    """The bytes of each kernel of each case, compiled anew."""
    capability, memory = GPUS[gpu]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.ops.ahead", str(capability), str(memory), *names]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_fit(found, gpu):
    memory = GPUS[gpu][1]
    for name, kernels in found.items():
        assert kernels, name
        for kernel, size in kernels.items():
            assert size <= memory, f"{kernel} of {name} takes {size} of {memory} bytes"


def launched():
    """All kernels that are started by themselves."""
    for module in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."):
        if "._triton" in module.name:
            names = vars(importlib.import_module(module.name))
            yield from (kernel_name(x) for name, x in names.items()
                        if name.endswith("_kernel") and x.fn.__module__ == module.name)  # fmt: skip


def test_what_most_people_run_fits_a_small_gpu(tmp_path):
    """Compiling takes long: other kernels, structures, 32 bits and other GPUs are for `make soak`."""
    names = ("diagonal, half, 64, many", "gates")
    assert_fit(compile_for("workstation", names, tmp_path), "workstation")


@pytest.mark.soak
@pytest.mark.parametrize("gpu", GPUS)
def test_everything_compiles(gpu, tmp_path):
    found = compile_for(gpu, [*fitting(GPUS[gpu][1])], tmp_path)
    assert_fit(found, gpu)
    assert {kernel for kernels in found.values() for kernel in kernels} == {*launched()}


def test_large_states_go_without_kernels_where_memory_is_small():
    left_out = {gpu: {*CASES} - {*fitting(memory)} for gpu, (_, memory) in GPUS.items()}
    too_large = ("dense, full, 128", "dense, full, 256", "dense, half, 256", "low rank, half, 256")
    never = {name for name in CASES if name.startswith(too_large)}
    assert len(never) == 12
    for gpu, names in left_out.items():
        more = {name for name in CASES if name.startswith("diagonal, full, 256") and gpu.startswith("workstation")}
        assert names == never | more, gpu
    for power in ("diagonal", "rank one", "low rank", "dense"):
        assert not any(fits(2, power, dtype, 64 << 10) for dtype in (HALF, FULL))
