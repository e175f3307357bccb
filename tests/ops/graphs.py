"""Trace code for a GPU that is not here, and say which kernels a compiler would find in the graph.

    python -m tests.ops.graphs CASE…

Nothing runs: all tensors are fake. A process that interprets kernels cannot show them to a compiler, so this is one of
its own. The last line of its output is JSON: for each case, every kernel with what it writes, every operator of ours
that is left, and the number of graphs.
"""

import json
import sys
import warnings
from functools import partial

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from triton.runtime import driver

from statespan import S4D
from statespan.ops import memory
from statespan.ops.glu.operator import bias_glu_backward
from statespan.ops.norm.before import Affine, SavedNorm, norm, norm_backward
from statespan.ops.ssm.arguments import ModeTensors, WholeOptions, WholeParts
from statespan.ops.ssm.registered.whole import Arriving, ssm_in_parts, ssm_in_parts_backward
from tests.ops.ahead import Absent

HALF = torch.bfloat16


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="cuda")


def contents(function, *calls, dynamic=False):
    """The kernels in the graphs of calls, with the arguments that each writes; our operators; how many graphs."""
    kernels, operators, graphs = [], [], 0

    def note(graph, _inputs):
        nonlocal graphs
        graphs += 1
        for node in graph.graph.nodes:
            if "tensors_to_clone" in node.kwargs:
                kernel = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
                kernels.append([getattr(kernel, "fn", kernel).__name__, node.kwargs["tensors_to_clone"]])
            elif str(node.target).startswith("statespan"):
                operators.append(str(node.target))
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(function, backend=aot_autograd(fw_compiler=note), fullgraph=True, dynamic=dynamic)
        for arguments in calls:
            compiled(*arguments)
    return {"kernels": kernels, "operators": operators, "graphs": graphs}


def layer(dtype=HALF, dynamic=False):
    with unset_fake_temporarily():
        model = S4D(64, 64, dtype=dtype)
    for module in model.modules():
        for values in (module._parameters, module._buffers):
            found = {name: empty(*x.shape, dtype=x.dtype) for name, x in values.items() if x is not None}
            values.update({name: torch.nn.Parameter(x, requires_grad=False) for name, x in found.items()})
    lengths = (256, 700, 5000) if dynamic else (256,)
    return contents(model, *((empty(16, length, 64, dtype=dtype),) for length in lengths), dynamic=dynamic)


def engine(batch, *, rank=0, both=False, sets=None):
    """Forward and backward, from the parameters to all gradients."""
    H, M, L, channels = 512, 32, 1024, 2 if both else 1
    sets = sets or H
    options = WholeOptions(
        64, 1 if both else 0, "bilinear", "exp", True, False, False, False, HALF,
        gelu=False, keep_preactivation=False, save=True,
    )  # fmt: skip
    modes = ModeTensors(
        empty(H), empty(sets, M), empty(sets, M), empty(sets, M, 2), empty(channels, H, M, 2), empty(1, H),
        empty(rank, sets, M, 2) if rank else None,
    )  # fmt: skip

    def forward_and_backward(u, modes, dy):
        y, *parts = ssm_in_parts(u, modes, options)
        return y, ssm_in_parts_backward(Arriving(dy, u), WholeParts(*parts), modes, options)

    return contents(forward_and_backward, (empty(batch, L, H, dtype=HALF), modes, empty(batch, L, 1, H, dtype=HALF)))


def gate():
    z, bias, dout = empty(100, 32, dtype=HALF), empty(32), empty(100, 16, dtype=HALF)
    return contents(lambda *given: bias_glu_backward(*given), (z, bias, dout))


def norms():
    x, w, saved = empty(3, 50, 16), empty(16), empty(3, 50)

    def both(x, w, saved, dy):
        return norm(x, Affine(w, w, 1e-5), HALF), norm_backward(SavedNorm(x, w, saved, saved), dy, x)

    return contents(both, (x, w, saved, empty(16, 3, 50, dtype=HALF)))


CASES = {
    "layer": layer,
    "layer of any length": partial(layer, dynamic=True),
    "layer in full precision": partial(layer, torch.float32),
    "diagonal": partial(engine, 64),
    "rank one": partial(engine, 64, rank=1),
    "both directions": partial(engine, 64, both=True),
    "shared parameters": partial(engine, 8, sets=2),
    "shared parameters, rank one": partial(engine, 8, rank=1, sets=2),
    "gate": gate,
    "norms": norms,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    driver.set_active(Absent(90))
    torch.cuda.current_device = lambda: 0
    memory._found[0] = 227 << 10
    with FakeTensorMode(allow_non_fake_inputs=True):
        print(json.dumps({name: CASES[name]() for name in sys.argv[1:] or CASES}))
