"""Every tile configuration that the rule can return, on a GPU: each is its own compiled kernel."""

from itertools import product

import pytest
import torch

from tests.ops.make import assert_near

pytest.importorskip("triton")

from statespan.ops._triton.tiles import choose, chunk_length
from tests.ops.kernels import ALL, BOUNDS, LOW, Case, by_autograd, by_kernels, check_16_bits, given

HEADS, BATCHES, LENGTHS = (1, 7, 64, 512), (1, 3, 16, 17, 24, 64), (1, 100, 1024, 16384, 2**20)
STATES, DTYPES = (2, 16, 32, 64, 128, 256), (torch.float32, torch.bfloat16, torch.float16)
KINDS = {"diagonal-trained": (False, False), "dplr-trained": (True, False), LOW: (False, True)}
SEGMENT = 2  # chunks: enough to hand states on, few enough to be quick


def configurations():
    """Of all that people run: dtype, kind, state size and tiles, a cut sequence standing for all cuts."""
    found = {}
    for dtype, (kind, (dense, low)), state in product(DTYPES, KINDS.items(), STATES):
        wide = dtype == torch.float32
        if (low and (state <= 64 or wide)) or (dense and state > (64 if wide else 128)):
            continue  # these are not run: see dispatch
        chunk = chunk_length(state, low, dtype)
        for heads, batch, length, both in product(HEADS, BATCHES, LENGTHS, (False, True)):
            tiles = choose(heads, batch, length, state, chunk, dense, low, dtype, both)
            cut = tiles.per_segment * chunk < length
            found[dtype, kind, state, chunk, both, tiles._replace(per_segment=SEGMENT if cut else ALL)] = None
    return list(found)


CONFIGURATIONS = configurations()


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
