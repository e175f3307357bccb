"""Which implementation runs, and that it does not matter: all paths give the same numbers."""

import contextlib
import copy
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from statespan import DSS, S4, S4D, models
from statespan.ops import apply, apply_from, dispatch, memory, use_path
from statespan.ops.memory import UNLIMITED
from statespan.ops.ssm import apply as engine
from statespan.ops.ssm import chunks as plain
from statespan.ops.ssm.arguments import ChunkOperators
from statespan.ops.ssm.source import source_of
from statespan.ssm import DPLR
from tests.nn.make import LAYER_IDS, LAYERS
from tests.ops.make import assert_near
from tests.ssm.make import make

pytest.importorskip("triton")

from statespan.ops.ssm._triton import launch, probe
from statespan.ops.ssm.tiles import choose_tiles

pytestmark = pytest.mark.share(5)

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
layers = pytest.mark.parametrize(("cls", "options"), LAYERS, ids=LAYER_IDS)


@pytest.fixture
def calls(monkeypatch):
    """The paths that really run, in order."""
    found = []

    def spy(owner, name, path):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: found.append(path) or original(*a, **k))

    spy(plain, "forward", "chunks")
    spy(launch, "forward", "triton")
    spy(engine, "fftconv", "fft")
    return found


def layer_and_input(cls=S4D, **options):
    return cls(1, 4, device=DEVICE, **options), torch.randn(2, 5, 1, device=DEVICE)


@pytest.mark.parametrize("path", ["triton", "chunks", "fft"])
def test_the_path_asked_for_is_the_one_that_runs(path, calls):
    layer, x = layer_and_input()
    with use_path(path):
        layer(x)
        assert calls == [path]
        layer.prefill(x)  # has a state, which only chunks have
        assert calls == [path, "chunks" if path == "fft" else path]


@pytest.mark.skipif(CUDA, reason="the rule for the CPU")
def test_left_alone_the_length_decides(calls, monkeypatch):
    monkeypatch.setattr(dispatch, "LONG", 6)
    (layer, x), (dss, _), (cauchy, _) = layer_and_input(), layer_and_input(DSS), layer_and_input(S4, kernel="cauchy")
    layer(x)
    longer = torch.randn(2, 6, 1)
    layer(longer)
    assert calls == []  # a bilinear SSM has a series for short sequences
    monkeypatch.setattr(dispatch, "SHORT", 0)
    layer(x)
    layer(longer)
    assert calls == ["fft", "chunks"]
    dss(longer)
    cauchy(longer)
    assert calls[2:] == ["fft", "fft"]  # which ask for a convolution


def test_nested_and_restored():
    assert dispatch.forced_path() == "auto"
    with use_path("fft"):
        with use_path("chunks"):
            assert dispatch.forced_path() == "chunks"
            with use_path("auto"):
                assert dispatch.forced_path() == "auto"
        assert dispatch.forced_path() == "fft"
        with pytest.raises(ZeroDivisionError), use_path("triton"):
            raise ZeroDivisionError
        assert dispatch.forced_path() == "fft"
    assert dispatch.forced_path() == "auto"


@pytest.mark.skipif(CUDA, reason="for machines without a GPU")
def test_kernels_that_cannot_run_are_refused(monkeypatch):
    """One error instead of Triton's own, for a layer and for a whole model, whose norm comes first."""
    layer, x = layer_and_input()
    model = models.build("classifier", options={"d_input": 1, "d_output": 2, "d_model": 4, "n_layers": 1})
    monkeypatch.delenv("TRITON_INTERPRET")
    for module in (layer, model):
        with pytest.raises(ValueError, match='path "triton" needs x on a CUDA device, got cpu; use "auto"'):  # noqa: SIM117
            with use_path("triton"):
                module(x)
    monkeypatch.setattr(dispatch, "_has_triton", lambda: False)
    with pytest.raises(ValueError, match='path "triton" needs the package triton'), use_path("triton"):
        layer(x)


def test_wrong_names():
    with pytest.raises(ValueError, match=r"path must be one of \('auto', 'triton', 'chunks', 'fft'\), got 'cuda'"):
        use_path("cuda").__enter__()
    with pytest.raises(TypeError, match="path must be one of"):
        use_path(None).__enter__()
    assert dispatch.forced_path() == "auto"


def python(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True
    )


PROGRAM = """
import torch
from statespan import S4D
from statespan.ops import dispatch, use_path
from statespan.ops.ssm import chunks as plain
original, calls = plain.forward, []
plain.forward = lambda *a, **k: calls.append("chunks") or original(*a, **k)
S4D(1, 4)(torch.randn(1, 5, 1))
with use_path("fft"):
    S4D(1, 4)(torch.randn(1, 5, 1))
print(dispatch.forced_path(), calls)
"""


@pytest.mark.parametrize(("value", "wanted"), [("chunks", "chunks ['chunks']"), ("", "auto []")])
def test_environment(value, wanted):
    run = python(PROGRAM, STATESPAN_PATH=value)
    assert run.stdout.strip() == wanted, run.stderr


def test_wrong_name_in_the_environment():
    run = python(PROGRAM, STATESPAN_PATH="gpu")
    assert run.returncode != 0
    assert "ValueError: STATESPAN_PATH must be one of ('auto', 'triton', 'chunks', 'fft'), got 'gpu'" in run.stderr


def everything(layer, x, weights):
    """y, and the gradients of the input and of every parameter."""
    x = x.clone().requires_grad_()
    y = layer(x)
    names = ["y", "x", *dict(layer.named_parameters())]
    return dict(zip(names, [y, *torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()])]))


def check_paths(layer, x, paths, bounds):
    """Against the convolution in float64."""
    weights = torch.randn(*x.shape[:2], layer.d_output, device=DEVICE)
    with use_path("fft"):
        wanted = everything(copy.deepcopy(layer).double(), x.double(), weights.double())
    for path in paths:
        with use_path(path):
            got = everything(layer, x, weights.to(x.dtype))
        for name, value in got.items():
            assert value.dtype == x.dtype
            assert_near(value, wanted[name], bounds[name != "y"], f"{name} by {path}")


BOUNDS = {torch.float32: (2e-6, 2e-5), torch.float64: (1e-10, 1e-10)}


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@layers
def test_all_paths_agree(cls, options, dtype, bidirectional):
    layer = cls(8, 16, channels=2, mix="glu", dtype=dtype, device=DEVICE, bidirectional=bidirectional, **options)
    check_paths(layer, torch.randn(3, 150, 8, dtype=dtype, device=DEVICE), ["chunks", "fft"], BOUNDS[dtype])


@pytest.mark.parametrize("bidirectional", [False, True])
@layers
def test_the_kernels_agree_with_them(cls, options, bidirectional):
    """One small shape, for the interpreter, which has float64 one way; everything from the parameters on."""
    dtype = torch.float32 if CUDA or bidirectional else torch.float64
    layer = cls(1, 4, dtype=dtype, device=DEVICE, bidirectional=bidirectional, **options)
    check_paths(layer, torch.randn(16, 70, 1, dtype=dtype, device=DEVICE), ["triton"], BOUNDS[dtype])


@pytest.mark.parametrize("init", ["legs", "legt"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_large_state_of_low_rank(bidirectional, init):
    """S4 with so large a state that the kernels go step by step, or in 16 bits, of rank one, keep the factors of G."""
    layer = S4(2, 66, init=init, n_ssm=1, device=DEVICE, bidirectional=bidirectional)
    source = layer.ssm.source()
    assert dispatch.runs_stepwise("triton", source, torch.float32)
    assert not dispatch.runs_stepwise("triton", source, torch.bfloat16)
    assert not dispatch.runs_stepwise("chunks", source, torch.float32)
    assert dispatch.keeps_factors("triton", source, torch.bfloat16) == (init == "legs")
    check_paths(layer, torch.randn(2, 9, 2, device=DEVICE), ["triton"], BOUNDS[torch.float32])


@pytest.mark.parametrize(
    ("cls", "d_state", "options"),
    [(S4, 4, {}), (S4D, 4, {}), (S4, 66, {}), (S4, 4, {"init": "legt"}), (S4, 66, {"init": "legt"})],
)
def test_rates_and_states_by_the_kernels(cls, d_state, options):
    layer, x = cls(1, d_state, device=DEVICE, **options), torch.randn(2, 70, 1, device=DEVICE)
    state = torch.randn(2, 1, d_state, dtype=torch.float64, device=DEVICE)
    results = {}
    for path in ("chunks", "triton"):
        with use_path(path), torch.no_grad():
            results[path] = [layer(x, dt_scale=1.7), *layer.prefill(x, state, dt_scale=0.5)]
    for got, wanted in zip(results["triton"], results["chunks"], strict=True):
        assert got.dtype == wanted.dtype
        assert_near(got, wanted, 2e-6)
    assert (layer(x) - results["chunks"][0]).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["diagonal-trained", "dplr-trained", "dplr-trained2", "dense-trained"])
def test_structures_by_every_path(kind):
    """With a skip and both ways; what the kernels do not build from parameters comes from the structure."""
    ssm = make(kind, 4, "bilinear", H=1, channels=2, dtype=torch.float32)
    for name in ("A", "B", "C", "dt", *(["P"] if isinstance(ssm, DPLR) else [])):
        setattr(ssm, name, getattr(ssm, name).to(DEVICE))
    u, D, two = (torch.randn(*s, device=DEVICE) for s in ((2, 70, 1), (1, 1), (2, 1)))
    outputs = {}
    for path in ("fft", "chunks", "triton"):
        with use_path(path):
            y, state = apply_from(ssm, u, None, two)
            outputs[path] = [apply(ssm, u, D, bidirectional=True), apply(ssm, u, two, activation="gelu"), y, state]
    for path in ("chunks", "triton"):
        for got, wanted in zip(outputs[path], outputs["fft"], strict=True):
            assert_near(got, wanted, 2e-6, path)


@pytest.mark.parametrize("path", ["triton", "chunks", "fft"])
def test_nothing_to_do(path):
    ssm = make("diagonal-trained", 4, "bilinear", dtype=torch.float32)
    for shape in ((0, 5, 2), (3, 0, 2)):
        u = torch.zeros(shape)
        with use_path(path):
            assert apply(ssm, u).shape == (*shape[:2], 2, 2)
            assert apply(ssm, u, bidirectional=True).shape == (*shape[:2], 1, 2)
            y, state = apply_from(ssm, u, None)
        assert y.shape == (*shape[:2], 2, 2)
        assert (state == 0).all()


@pytest.mark.parametrize("d_state", [2, 64, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("power", ["diagonal", "rank one", "low rank", "dense"])
def test_what_an_activation_had_is_computed_again_only_in_one_walk(d_state, dtype, power):
    """Its gradient is made from the outputs on the way back, which works only if there is one way."""
    fused = 0
    source = SimpleNamespace(d_state=d_state, power=power, dense=power != "diagonal")
    dense = power != "diagonal"
    for batch in (1, 3, 16, 17, 64, 256):
        for heads in (1, 7, 64, 512):
            for length in (1, 64, 65, 1000, 4096, 16384, 2**20):
                u = SimpleNamespace(shape=(batch, length, heads), device=torch.device("cpu"))
                if dispatch.walks_once(source, u, dtype, channels=2, both=False, chunk=64):
                    tiles = choose_tiles(
                        heads=2 * heads, batch=batch, length=length, d_state=d_state, chunk=64, dense=dense,
                        factored=False, dtype=dtype, memory=UNLIMITED,
                    )  # fmt: skip
                    x = torch.empty(heads, batch, length, device="meta", dtype=dtype)
                    E = torch.empty(heads, 64, d_state, device="meta")
                    G = torch.empty(heads, *[d_state] * (1 + dense), device="meta")
                    K = torch.empty(2, heads, 64, device="meta")
                    g = launch.launch_plan(x, ChunkOperators(K, E, G, K))
                    assert g.tiles.per_segment <= tiles.per_segment
                    assert g.segments == 1
                    fused += 1
    never = dtype == torch.float32 or (power == "rank one" and d_state > 64)
    assert fused == 0 if never else fused > 20


def test_a_path_that_cannot_run_is_left_out(monkeypatch):
    """A compiler that fails is reported once, and the next path taken."""

    def broken(*arguments, **options):
        raise OSError("no compiler")

    monkeypatch.setattr(launch, "forward", broken)
    monkeypatch.setattr(dispatch, "_probed", {})
    source = source_of(make("diagonal-trained", 4, "bilinear", dtype=torch.float32))
    u = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0), shape=(1, 10, 2))
    monkeypatch.setattr(memory, "_found", {0: 227 << 10})
    with pytest.warns(UserWarning, match="kernels do not run here; using plain torch"):
        assert dispatch.choose_path(source, u, torch.float32) != "triton"
    assert dispatch.choose_path(source, u, torch.float32) != "triton"  # a second warning would be an error


@pytest.mark.parametrize(("kib", "path"), [(227, "triton"), (163, "triton"), (99, "chunks"), (64, "chunks")])
def test_a_path_that_has_no_room_is_left_out(kib, path, monkeypatch):
    """Large states in full precision: the kernels' tiles of them fit on some GPUs only."""
    monkeypatch.setattr(dispatch, "_probed", {0: True})
    monkeypatch.setattr(memory, "_found", {0: kib << 10})
    source = source_of(make("diagonal-trained", 256, "bilinear", dtype=torch.float32))
    u = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0), shape=(1, 5000, 2))
    assert dispatch.choose_path(source, u, torch.float32) == path
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert dispatch.choose_path(source, u, torch.float32) == path


@pytest.mark.parametrize(
    ("d_state", "dtype", "again"),
    [(64, torch.bfloat16, (True, True, True)), (128, torch.bfloat16, (True, True, False)),
     (64, torch.float32, (False, False, False))],
)  # fmt: skip
def test_what_an_activation_had_is_kept_where_there_is_no_room_to_compute_it_again(d_state, dtype, again, monkeypatch):
    source = SimpleNamespace(d_state=d_state, power="diagonal", dense=False)
    u = SimpleNamespace(shape=(64, 1024, 512), device=torch.device("cuda", 0))
    for kib, wanted in zip((227, 163, 99), again, strict=True):
        monkeypatch.setattr(memory, "_found", {0: kib << 10})
        assert dispatch.walks_once(source, u, dtype, channels=1, both=False, chunk=32) is wanted, kib


@pytest.mark.parametrize(("kib", "tried"), [(99, True), (96, False)])
def test_old_gpus_are_not_tried(kib, tried, monkeypatch):
    """Triton is not made for them: nothing is compiled, and nobody is warned."""
    calls = []
    monkeypatch.setattr(probe, "probe", lambda device: calls.append(device) or True)
    monkeypatch.setattr(dispatch, "_probed", {})
    monkeypatch.setattr(memory, "_found", {0: kib << 10})
    x = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))
    assert [dispatch.kernels_run(x) for _ in range(2)] == [tried, tried]
    assert len(calls) == tried
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert dispatch.kernels_run(x) is tried


@pytest.mark.parametrize(("factor", "works"), [(1.0, True), (1.1, False), (float("nan"), False)])
def test_a_path_that_is_wrong_is_left_out(factor, works, monkeypatch):
    def forward(g, inputs, operators, options):
        return factor * plain.forward(inputs.u.float(), operators).y[0], None, None

    monkeypatch.setattr(launch, "forward", forward)
    if works:
        assert probe.probe(torch.device(DEVICE)) is True
    else:
        with pytest.warns(UserWarning, match="kernels are wrong here"):
            assert probe.probe(torch.device(DEVICE)) is False


@pytest.mark.parametrize("where", ["autocast", "float64 by default", "inference"])
def test_the_trial_is_the_same_wherever_the_first_call_comes_from(where, monkeypatch):
    def forward(g, inputs, operators, options):
        assert (inputs.u.dtype, operators.K.dtype, operators.G.dtype) == (torch.bfloat16, torch.float32, torch.float64)
        assert not torch.is_autocast_enabled(DEVICE)
        return plain.forward(inputs.u.float(), operators).y[0], None, None

    if DEVICE == "cpu":  # whose interpreter has no bfloat16 to be trusted
        monkeypatch.setattr(launch, "forward", forward)
    around = {"autocast": torch.autocast(DEVICE, torch.bfloat16), "inference": torch.inference_mode()}
    default = torch.get_default_dtype()
    with around.get(where, contextlib.nullcontext()):
        torch.set_default_dtype(torch.float64 if where == "float64 by default" else default)
        try:
            assert probe.probe(torch.device(DEVICE)) is True
        finally:
            torch.set_default_dtype(default)


def test_each_device_is_tried_once(monkeypatch):
    tried = []
    monkeypatch.setattr(dispatch, "_probed", {})
    monkeypatch.setattr(memory, "_found", {0: 99 << 10, 1: 99 << 10})
    monkeypatch.setattr(probe, "probe", lambda device: tried.append(device.index) or device.index == 1)
    assert [dispatch.triton_works(i) for i in (0, 1, 0, 1)] == [False, True, False, True]
    assert tried == [0, 1]


def test_without_triton(monkeypatch):
    monkeypatch.setattr(dispatch, "_probed", {})
    monkeypatch.setitem(sys.modules, "statespan.ops.ssm._triton.probe", None)
    assert dispatch.triton_works(0) is False
