"""torch.compile and torch.export: one graph for every batch and length, with the numbers of eager mode."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from statespan import DSS, S4D
from tests.nn.make import LAYER_IDS, LAYERS, peak_error

# Every layer; both ways for each kind of engine, dense and diagonal; with padding once, for it is outside the SSM.
OTHER = {
    "S4-legt": "bidirectional",
    "S4D-lin-zoh": "bidirectional",
    "S4D-inv-foh": "bidirectional",
    "S4D-": "lengths",
    "S5-2": "bidirectional",
    "LRU-": "lengths",
}
USES = [(cls, options, OTHER.get(name, "causal")) for (cls, options), name in zip(LAYERS, LAYER_IDS, strict=True)]
SHORT = {"S4-", "S4D-"}  # the others compile in tests/nn/test_precision.py, too
uses = pytest.mark.parametrize(
    ("cls", "options", "use"),
    [
        pytest.param(*use, id=f"{name}-{use[-1]}", marks=[pytest.mark.soak] * (name not in SHORT))
        for name, use in zip(LAYER_IDS, USES, strict=True)
    ],
)


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()


def make(cls, options, use):
    return cls(4, 8, dtype=torch.float64, bidirectional=use == "bidirectional", **options)


def arguments(use, batch, length):
    """An input, and where asked the true lengths of its sequences."""
    x = torch.randn(batch, length, 4, dtype=torch.float64, requires_grad=True)
    return x, {"lengths": torch.arange(batch) + length - batch + 1} if use == "lengths" else {}


def run(function, layer, x, options, weight):
    """The output, and the gradients of x and of every parameter."""
    y = function(x, **options)
    return [y, *torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])]


def check(function, layer, use, batch, length):
    x, options = arguments(use, batch, length)
    weight = torch.randn(batch, length, 4, dtype=torch.float64)
    got, wanted = run(function, layer, x, options, weight), run(layer, layer, x, options, weight)
    for name, one, other in zip(["y", "x", *dict(layer.named_parameters())], got, wanted, strict=True):
        assert peak_error(one, other) <= 1e-10, name


@uses
def test_compiled(cls, options, use):
    """Forward and backward, then other batches and lengths, one chunk or more, without compiling again."""
    layer = make(cls, options, use)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    check(compiled, layer, use, 2, 70)
    graphs = counter.frame_count
    assert graphs > 0
    check(compiled, layer, use, 3, 64)
    check(compiled, layer, use, 5, 131)
    assert counter.frame_count == graphs


def test_compiled_without_being_told_about_lengths():
    """The second length makes the graph a general one, which serves all others."""
    layer = S4D(4, 8, dtype=torch.float64)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    check(compiled, layer, "causal", 2, 70)
    check(compiled, layer, "causal", 2, 100)
    graphs = counter.frame_count
    for length in (64, 131, 300):
        check(compiled, layer, "causal", 2, length)
    assert counter.frame_count == graphs


@uses
def test_exported(cls, options, use):
    layer = make(cls, options, use)
    x, lengths = arguments(use, 2, 70)
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=1, max=4096)
    shapes = {"x": {0: batch, 1: length}, **{name: {0: batch} for name in lengths}}
    program = torch.export.export(layer, (x.detach(),), lengths, dynamic_shapes=shapes)
    for sizes in ((1, 5), (3, 64), (5, 200)):
        x, lengths = arguments(use, *sizes)
        assert peak_error(program.module()(x, **lengths), layer(x, **lengths)) <= 1e-10


def test_exported_softmax_over_each_inputs_length():
    layer = DSS(4, 8, softmax_length=None, dtype=torch.float64)
    x, _ = arguments("causal", 2, 70)
    length = torch.export.Dim("length", min=1, max=4096)
    program = torch.export.export(layer, (x.detach(),), dynamic_shapes={"x": {1: length}})
    for size in (5, 64, 200):
        x, _ = arguments("causal", 2, size)
        assert peak_error(program.module()(x), layer(x)) <= 1e-10


def test_lengths_are_checked_where_the_graph_runs():
    layer = S4D(4, 8, dtype=torch.float64)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x, _ = arguments("causal", 2, 70)
    compiled(x, lengths=torch.tensor([70, 3]))
    for wrong in ([71, 3], [70, -1]):
        with pytest.raises(RuntimeError, match="lengths must be between 0 and the length of x"):
            compiled(x, lengths=torch.tensor(wrong))


@pytest.mark.soak  # a minute
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's own compiler needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators:UserWarning")
def test_torchs_own_compiler():
    layer = S4D(4, 8, dtype=torch.float64)
    check(torch.compile(layer, fullgraph=True), layer, "causal", 2, 70)


START, END = ["_transpose_kernel"], ["_transpose_kernel"]  # into the order of the kernels and back
PARTS = ["states_kernel", "segments_kernel"]  # of sequences that are cut into segments
SEEN = {
    "layer": [*START, "diagonal_kernel", "forward_kernel"],
    "layer of any length": [],
    "layer in full precision": [],
    "diagonal": [
        *START, "diagonal_kernel", "forward_kernel",
        *START, "backward_kernel", "diagonals_kernel", "diagonal_backward_kernel", *END,
    ],
    "rank one": [
        *START, "lowrank_kernel", "_add_product_kernel", "forward_kernel", *START, "backward_kernel",
        "diagonals_kernel", "_gradients_kernel", "lowrank_backward_kernel", "lowrank_finish_kernel", *END,
    ],
    "both directions": [
        *START, "diagonal_kernel", "states_kernel", "forward_kernel", *START, "joined_backward_kernel",
        "joined_backward_kernel", "diagonals_kernel", "diagonal_backward_kernel", *END,
    ],
    "shared parameters": [
        *START, "diagonal_kernel", *PARTS, "forward_kernel", *START, *PARTS, "backward_kernel", "diagonals_kernel",
        "joined_diagonal_backward_kernel", "_shares_kernel", *END,
    ],
    "shared parameters, rank one": [
        *START, "lowrank_kernel", "_add_product_kernel", *PARTS, "forward_kernel", *START, *PARTS, "backward_kernel",
        "diagonals_kernel", "_gradients_kernel", "lowrank_backward_kernel", "joined_lowrank_finish_kernel",
        "_shares_kernel", *END,
    ],
    "gate": ["_glu_backward_kernel", "_shares_kernel"],
    "norms": ["_norm_kernel", "_norm_backward_kernel", "_shares_kernel"],
}  # fmt: skip
WRITES = {
    "_transpose_kernel": "out",
    "diagonal_kernel": "K E G O",
    "forward_kernel": "y states",
    "backward_kernel": "du dT dE dG dO",
    "joined_backward_kernel": "du sums",
    "diagonals_kernel": "dK dD",
    "diagonal_backward_kernel": "ddt dC ddecay dfreq dB",
    "joined_diagonal_backward_kernel": "ddt dC sums",
    "lowrank_kernel": "K E O F J G",
    "_add_product_kernel": "G",
    "_gradients_kernel": "dF dJ",
    "lowrank_backward_kernel": "task dC",
    "lowrank_finish_kernel": "ddt ddecay dfreq dB dP",
    "joined_lowrank_finish_kernel": "ddt sums",
    "states_kernel": "states end",
    "segments_kernel": "first",
    "_shares_kernel": "a b c d",
    "_glu_backward_kernel": "dz share",
    "_norm_kernel": "y mean rstd",
    "_norm_backward_kernel": "dx share",
}


def test_a_compiler_sees_the_kernels_where_it_knows_the_sizes():
    """And which of their arguments they write: it would copy all of them if it could not tell."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.ops.graphs", *SEEN]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for case, names in SEEN.items():
        assert [name for name, _ in found[case]["kernels"]] == names, case
        assert found[case]["graphs"] == 1, case
        assert found[case]["operators"] == ([] if names else ["statespan.ssm.default"]), case
        for name, writes in found[case]["kernels"]:
            wanted = [f"{argument}_ptr" for argument in WRITES[name].split()]
            assert writes, name
            assert {*writes} <= {*wanted}, name
            assert name in ("forward_kernel", "states_kernel", "_shares_kernel") or writes == wanted, name
