"""Every tile configuration that the rule can return, on a GPU: each is its own compiled kernel."""

from itertools import product

import pytest
import torch

from tests.ops.make import assert_near

pytest.importorskip("triton")

from statespan.ops.memory import shared_memory
from statespan.ops.ssm._triton.apart import summing
from statespan.ops.ssm._triton.launch import LaunchPlan
from statespan.ops.ssm.chunk_length import kernel_chunk_length
from statespan.ops.ssm.tiles import Tiles, choose_tiles, fits
from tests.ops.kernels import ALL, BOUNDS, DEVICE, LOW, Case, by_autograd, by_kernels, check_16_bits, given

HEADS, BATCHES, LENGTHS = (1, 7, 64, 512), (1, 3, 16, 17, 24, 64), (1, 100, 1024, 16384, 2**20)
STATES, DTYPES = (2, 16, 32, 64, 128, 256), (torch.float32, torch.bfloat16, torch.float16)
KINDS = {"diagonal-trained": (False, False), "dplr-trained": (True, False), LOW: (False, True)}
SEGMENT = 2  # chunks: enough to hand states on, few enough to be quick


def configurations(memory):
    """Of all that people run: dtype, kind, state size and tiles, a cut sequence standing for all cuts."""
    found = {}
    for dtype, (kind, (dense, low)), state in product(DTYPES, KINDS.items(), STATES):
        power = "rank one" if low else "dense" if dense else "diagonal"
        if (low and (state <= 64 or dtype == torch.float32)) or not fits(state, power, dtype, memory):
            continue  # these are not run: see dispatch
        chunk = kernel_chunk_length(state, dtype, memory, dense=dense, factored=low)
        for heads, batch, length, both in product(HEADS, BATCHES, LENGTHS, (False, True)):
            tiles = choose_tiles(
                heads=heads, batch=batch, length=length, d_state=state, chunk=chunk, dense=dense, factored=low,
                dtype=dtype, memory=memory, both=both,
            )  # fmt: skip
            cut = tiles.per_segment * chunk < length
            found[dtype, kind, state, chunk, both, tiles._replace(per_segment=SEGMENT if cut else ALL)] = None
    return list(found)


CONFIGURATIONS = configurations(shared_memory(torch.device(DEVICE)))


def test_there_is_a_configuration_of_every_sort():
    tiles = [(*each[:3], each[-1]) for each in CONFIGURATIONS]
    assert {t.columns for *_, t in tiles} == {16, 32, 64}
    assert {(d, t.per_segment == ALL) for d, *_, t in tiles} == {*product(DTYPES, (True, False))}
    assert {(k, s) for _, k, s, _ in tiles} == {
        *(("diagonal-trained", s) for s in STATES),
        *(("dplr-trained", s) for s in STATES if s <= 128),
        *((LOW, s) for s in STATES if s > 64),
    }


def title(case):
    dtype, kind, state, _, both, tiles = case
    segment = "all" if tiles.per_segment == ALL else "cut"
    way = "both" if both else "one"
    return f"{str(dtype)[6:]}-{kind}-{state}-{way}-{tiles.columns}-{segment}-{'.'.join(map(str, tiles[2:]))}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("dtype", "kind", "state", "chunk", "both", "tiles"), CONFIGURATIONS, ids=map(title, CONFIGURATIONS)
)
def test_every_configuration(dtype, kind, state, chunk, both, tiles):
    """With an edge in the batch and the length, and without."""
    use = "both gelu keep" if both else ""
    sizes = (tiles.columns + 1, 5 * chunk - 3), (tiles.columns, 4 * chunk)
    cases = [Case(batch, max(2, 128 // state), length, state, 1, chunk, tiles, use) for batch, length in sizes]
    if dtype != torch.float32:
        check_16_bits(cases, kind, dtype)
        return
    for case in cases:
        x = given(case, kind, dtype)
        got, wanted = by_kernels(case, x), by_autograd(case, x)
        for name, value in got.items():
            assert_near(value, wanted[name], BOUNDS[dtype][name not in ("y", "last")], name)


def test_chunks_are_as_long_as_the_memory_allows():
    """Of 227, 163 and 99 KiB: what GPUs have."""
    wanted = {
        ("diagonal", torch.bfloat16, 64): (64, 64, 64),
        ("diagonal", torch.bfloat16, 65): (64, 64, 32),
        ("dense", torch.bfloat16, 128): (64, 64, 32),
        ("low", torch.float16, 128): (32, 32, 32),
        ("low", torch.float16, 129): (32, 32, 16),
        ("diagonal", torch.float32, 64): (64, 64, 32),
        ("diagonal", torch.float32, 128): (32, 32, 16),
        ("diagonal", torch.float32, 256): (16, 16, 8),  # the last of which has no kernels
        ("dense", torch.float32, 64): (64, 32, 32),
    }
    for (kind, dtype, state), chunks in wanted.items():
        options = {"dense": kind == "dense", "factored": kind == "low"}
        got = [kernel_chunk_length(state, dtype, kib << 10, **options) for kib in (227, 163, 99)]
        assert (*got,) == chunks, (kind, dtype, state)


def chosen(d_state, chunk, dense, kib):
    return choose_tiles(
        heads=512, batch=64, length=4096, d_state=d_state, chunk=chunk, dense=dense, factored=False,
        dtype=torch.bfloat16, memory=kib << 10,
    )  # fmt: skip


def test_tiles_of_a_dense_matrix_are_smaller_where_memory_is():
    for kib, (columns, stages) in {227: (32, 2), 163: (32, 2), 99: (16, 1)}.items():
        tiles = chosen(128, 32, True, kib)
        assert (tiles.columns, tiles.stages, tiles.backward_stages) == (columns, stages, stages)
    for kib, stages in {227: 4, 163: 4, 99: 2}.items():
        assert chosen(64, 64, True, kib).stages == stages
    diagonal = [chosen(128, 32, False, kib) for kib in (227, 99)]
    assert diagonal[0] == diagonal[1]


@pytest.mark.parametrize(("d_state", "columns"), [(2, 32), (32, 32), (33, 64), (64, 64), (128, 32)])
def test_gradients_in_full_precision_take_columns_that_compile(d_state, columns):
    """64 columns and fewer than 64 states give wrong products on sm_90 with Triton 3.6."""
    plan = LaunchPlan(512, 512, 64, 1024, d_state, 64, False, False, torch.float32, Tiles(64, apart=True))
    assert summing(plan)[0].tiles.columns == columns
