"""The kernels against plain torch in float64: interpreted where there is no GPU, real where there is one."""

import pytest
import torch

from tests.ops.make import assert_near, poison

pytest.importorskip("triton")

from statespan.ops._triton.transpose import lengthwise, like
from statespan.ops.ssm import chunks as plain
from statespan.ops.ssm._triton import launch
from statespan.ops.ssm.arguments import ChunkOperators, ChunkOptions, Sequences
from statespan.ops.ssm.tiles import Tiles
from tests.ops.kernels import ALL, BOUNDS, DEVICE, LOW, Case, by_autograd, by_kernels, check_16_bits, given

pytestmark = pytest.mark.share(5)

CUDA = torch.cuda.is_available()
DTYPES = [torch.float32] if CUDA else [torch.float64, torch.float32]
KINDS = ["diagonal-trained", "dplr-trained"]
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)
    assert torch.empty(3).isnan().all()


# Every length, batch, number of heads, state size, chunk, way to cut and use, but not their product; the third and the
# fourth have no edge anywhere, so that the kernels without masks run too.
CASES = [
    Case(1, 1, 1, 2, 1, 16, Tiles(16, ALL)),
    Case(3, 1, 2, 6, 2, 16, Tiles(16, 1), "first"),
    Case(16, 1, 64, 16, 1, 16, Tiles(16, ALL), "gelu"),
    Case(4, 1, 64, 16, 1, 16, Tiles(16, 1), "first"),
    Case(17, 3, 31, 16, 1, 16, Tiles(16, 1)),
    Case(1, 3, 33, 34, 1, 32, Tiles(16, 1), "first"),
    Case(3, 1, 65, 6, 2, 16, Tiles(16, 2), "first"),
    Case(1, 1, 100, 16, 1, 64, Tiles(16, ALL), "first"),
    Case(17, 1, 33, 2, 1, 32, Tiles(32, ALL), "gelu"),
    Case(3, 3, 65, 6, 2, 16, Tiles(16, ALL), "first gelu"),
    Case(1, 1, 1, 2, 1, 16, Tiles(16, ALL), "both"),
    Case(1, 3, 31, 6, 2, 16, Tiles(16, ALL), "both"),
    Case(3, 1, 64, 6, 2, 16, Tiles(16, 2), "both"),
    Case(3, 1, 100, 34, 1, 32, Tiles(16, 1), "both"),
    Case(3, 2, 45, 6, 2, 16, Tiles(16, ALL), "both gelu keep"),
    Case(16, 1, 32, 16, 1, 16, Tiles(16, 1), "both gelu keep"),
    Case(3, 1, 65, 6, 2, 16, Tiles(16, 2), "first gelu keep"),
    Case(19, 1, 64, 16, 1, 16, Tiles(16, ALL), "gelu keep"),
    Case(19, 1, 32, 16, 1, 16, Tiles(16, 1), "first"),
    Case(3, 2, 45, 34, 1, 16, Tiles(16, ALL), "both gelu keep"),
    Case(16, 1, 128, 16, 1, 16, Tiles(16, ALL), "both"),
]
APART = Tiles(16, ALL, apart=True)
CASES += [
    Case(17, 3, 31, 16, 1, 16, APART),
    Case(19, 1, 64, 16, 1, 16, APART, "gelu keep"),
    Case(3, 2, 45, 6, 2, 16, APART, "both gelu keep"),
    Case(1, 1, 100, 16, 1, 64, APART, "first"),
    Case(33, 1, 64, 34, 1, 32, APART._replace(columns=64), "first gelu keep"),
    Case(3, 1, 65, 6, 2, 16, APART._replace(per_segment=2), "first gelu keep"),
    Case(16, 1, 32, 16, 1, 16, APART._replace(per_segment=1), "both"),
    Case(40, 1, 64, 16, 1, 32, APART._replace(columns=64)),
    Case(64, 1, 64, 16, 1, 32, APART._replace(columns=64), "gelu keep"),
]


def fits(case):
    """Whether a low-rank G has it: in one walk, and what is in front of an activation kept."""
    return case.tiles.per_segment == ALL and ("gelu" not in case.use or "keep" in case.use)


WITH_KINDS = [(case, kind) for case in CASES for kind in [*KINDS, LOW] if kind != LOW or fits(case)]


# The interpreter has float64, in which a mistake cannot hide in rounding; in float32 it has every third of them.
EXACT = [(case, kind, dtype) for i, (case, kind) in enumerate(WITH_KINDS) for dtype in DTYPES
         if CUDA or dtype == torch.float64 or i % 3 == 0]  # fmt: skip


@pytest.mark.parametrize(("case", "kind", "dtype"), EXACT, ids=str)
def test_every_result_and_gradient(case, kind, dtype):
    x = given(case, kind, dtype)
    got, wanted = by_kernels(case, x), by_autograd(case, x)
    assert got.keys() == wanted.keys()
    for name, value in got.items():
        assert_near(value, wanted[name], BOUNDS[dtype][name not in ("y", "last")], name)


HALVES = [
    Case(17, 3, 100, 16, 1, 32, Tiles(16, ALL), "first"),
    Case(5, 3, 100, 34, 2, 16, Tiles(16, ALL), "first gelu"),
    Case(5, 3, 100, 34, 2, 16, Tiles(16, ALL), "both gelu keep"),
    Case(17, 3, 65, 6, 2, 16, Tiles(32, 2), "both"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", [*KINDS, LOW])
@pytest.mark.parametrize("case", HALVES, ids=str)
def test_16_bits(case, kind, dtype):
    """No worse than 1.5 times what rounding the inputs and the outputs alone does to an exact computation."""
    if kind == LOW and not fits(case):
        case = case._replace(tiles=case.tiles._replace(per_segment=ALL), use=case.use.replace(" gelu", ""))
    if not CUDA and (dtype == torch.bfloat16 or kind != "diagonal-trained"):
        pytest.skip(
            "the interpreter multiplies bfloat16, in which G is applied unless diagonal, as if it were whole numbers"
        )
    check_16_bits([case], kind, dtype)


@kinds
def test_same_bits_every_time(kind):
    case = Case(3, 1, 100, 6, 2, 16, Tiles(16, 2), "first")
    x = given(case, kind, torch.float32)
    first, second = by_kernels(case, x), by_kernels(case, x)
    for name, value in first.items():
        assert (value == second[name]).all(), name


@kinds
def test_the_same_numbers_however_the_work_is_cut(kind):
    """A state that is handed from segment to segment is the state of one walk, to rounding."""
    case = Case(3, 1, 200, 6, 1, 16, Tiles(16, ALL), "first")
    x = given(case, kind, torch.float64 if not CUDA else torch.float32)
    whole = by_kernels(case, x)
    for tiles in (Tiles(16, 1), Tiles(32, 2), Tiles(16, 4)):
        cut = by_kernels(case._replace(tiles=tiles), x)
        for name, value in whole.items():
            assert_near(cut[name], value, BOUNDS[x.u.dtype][1], f"{name} with {tiles}")


@pytest.mark.parametrize("segment", [ALL, 64], ids=["one walk", "segments"])
@pytest.mark.parametrize("signal", ["noise", "constant", "resonant"])
def test_a_float32_state_is_carried_over_65536_samples(signal, segment):
    """Within docs/promises.md: modes that hardly decay, driven at random, by their mean, and at their own frequency."""
    chunk, count, N = 64, 1024, 16
    A = torch.polar(torch.full((N // 2,), 1 - 1e-6, dtype=torch.float64), torch.linspace(0, 1, N // 2).double())
    powers = A ** torch.arange(chunk + 1)[:, None]  # (c + 1, modes)

    def real(x):
        return torch.view_as_real(x.resolve_conj()).flatten(-2)[None]

    times = torch.arange(chunk * count, dtype=torch.float64)
    signals = {"noise": torch.randn(len(times)), "constant": torch.ones(len(times)), "resonant": (times / 7 * 3).cos()}
    u = signals[signal].float()[None, None].to(DEVICE)
    E, O = real(powers[:-1].flip(0)), real(powers[1:].conj())  # noqa: E741
    K = real(powers[:-1])[..., 0::2].sum(-1)[None]
    operators = ChunkOperators(*(x.contiguous().to(DEVICE) for x in (K, E, real(powers[-1]), O[None])))
    plan = launch.launch_plan(u, operators, tiles=Tiles(16, segment, apart=True))
    y, last, _ = launch.forward(plan, Sequences(u), operators, ChunkOptions("triton", u.dtype, last=True))
    wanted = plain.forward(u.double(), operators)
    assert_near(y, wanted.y[0], 2e-6, "y")
    assert_near(last, wanted.last, 2e-6, "the state")


@pytest.mark.parametrize("save", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_only_what_is_asked_for(save, last):
    case = Case(2, 1, 40, 6, 1, 16, Tiles(16, ALL))
    x = given(case, "diagonal-trained", torch.float32)
    g = launch.launch_plan(x.u, x.operators, tiles=case.tiles)
    options = ChunkOptions("triton", torch.float32, save=save, last=last)
    y, end, saved = launch.forward(g, Sequences(x.u), x.operators, options)
    assert_near(y, by_autograd(case, x)["y"], 4e-6)
    assert (end is not None) is last
    assert (saved.states.numel() > 0) is save


@pytest.mark.parametrize("case", [CASES[6], CASES[12]], ids=str)
def test_an_activation_needs_one_walk(case):
    """Its gradient comes from the outputs, which several segments or directions do not have one at a time."""
    x = given(case, "diagonal-trained", torch.float32)
    with pytest.raises(AssertionError, match="one walk"):
        by_kernels(case._replace(use=f"{case.use} gelu"), x)


LAYOUTS = {
    "features last": lambda B, L, H, **as_: torch.randn(B, L, H, **as_).permute(2, 0, 1),
    "features last, part of more": lambda B, L, H, **as_: torch.randn(B, L, H + 3, **as_)[..., :H].permute(2, 0, 1),
    "batch second": lambda B, L, H, **as_: torch.randn(L, B, H, **as_).permute(2, 1, 0),
    "length last": lambda B, L, H, **as_: torch.randn(B, H, L, **as_).transpose(0, 1),
    "every second sample": lambda B, L, H, **as_: torch.randn(B, H, 2 * L, **as_)[..., ::2].transpose(0, 1),
    "one value everywhere": lambda B, L, H, **as_: torch.randn(1, 1, 1, **as_).expand(H, B, L),
}
TYPES = [(torch.float64, torch.float32), (torch.float32, torch.float16), (torch.float32, torch.float32)]
TYPES += [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)] if CUDA else []


@pytest.mark.parametrize(("here", "there"), TYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 70, 1), (3, 1, 70), (2, 130, 65), (1, 64, 64)], ids=str)
def test_changing_the_order_in_memory(sizes, layout, here, there):
    u = LAYOUTS[layout](*sizes, device=DEVICE, dtype=here)
    x = lengthwise(u, there)
    assert x.stride(2) == 1 or x.shape[2] == 1
    assert x.dtype == there
    assert torch.equal(x, u.to(there))
    back = like(x.contiguous(), u)
    assert back.dtype == here
    assert torch.equal(back, u.to(there).to(here))
    if u.stride(0) == 1 and u.shape[2] > 1 and u.shape[0] > 1:  # features last, as what a layer hands on should be
        assert back.stride(0) == 1
