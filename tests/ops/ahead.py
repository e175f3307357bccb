"""Compile kernels for a GPU that is not here, and say how much shared memory each takes.

    python -m tests.ops.ahead CAPABILITY MEMORY CASE…

Nothing runs: what kernels would have written stays as it was in memory. A process that interprets kernels cannot
compile them, so this is one of its own. The last line of its output is JSON: for each case, the bytes of each kernel.
"""

import json
import sys
import warnings
from functools import partial
from itertools import product

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from statespan import S4
from statespan.ops import apply, apply_from, dispatch, memory, use_path
from statespan.ops._triton import transpose
from statespan.ops._triton.launcher import tracing
from statespan.ops.batch_norm import _triton as batch_norm
from statespan.ops.glu import _triton as glu
from statespan.ops.glu import _triton_float32 as float32_linear
from statespan.ops.norm._triton import after as norm_after
from statespan.ops.norm._triton import before as norm
from statespan.ops.norm.before import Affine, SavedNorm
from statespan.ops.sample import _triton as sampling
from statespan.ops.ssm._triton import build
from statespan.ops.ssm.arguments import BuildOptions, BuiltLists, ChunkOperators, ModeTensors
from statespan.ops.ssm.tiles import fits
from statespan.ops.step import _triton as step
from tests.ssm.make import make

HALF, FULL = torch.bfloat16, torch.float32
MANY, FEW, WIDE = (64, 256, 512), (3, 4001, 8), (16, 200, 512)
"""Batch, length and heads: the largest tiles, all whole; segments and rests; small tiles, each sequence in one walk."""


class Absent:
    """What triton asks of a driver before it launches anything."""

    def __init__(self, capability):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device):
        return 0

    def get_current_target(self):
        return self.target


def engine(kind, d_state, dtype, both, size, rule="bilinear"):
    """An SSM with an activation, from its parameters to all gradients."""
    batch, length, heads = size
    ssm = make(kind, d_state, rule, H=heads, channels=2 if both else 1, dtype=torch.float32)
    for x in (ssm.C, ssm.B):
        x.requires_grad_()
    u = torch.zeros(batch, length, heads, requires_grad=True)
    D = torch.ones(1, heads, requires_grad=True)
    apply(ssm, u, D, bidirectional=both, activation="gelu", dtype=dtype).sum().backward()
    if not both:
        apply_from(ssm, u, None, D, dtype=dtype)


def seen_by_a_compiler(rank):
    """Kernels that write their shares of several sums into one tensor."""
    modes = ModeTensors(
        torch.zeros(8), torch.zeros(2, 32), torch.zeros(2, 32), torch.zeros(2, 32, 2), torch.zeros(1, 8, 32, 2), None,
        torch.zeros(rank, 2, 32, 2) if rank else None,
    )  # fmt: skip
    options = BuildOptions(64, 0, "bilinear", "exp", True, False)
    with tracing():
        K, E, G, O, W = build.forward(modes, options)  # noqa: E741
        build.backward(ChunkOperators(K, E, G, O), modes, BuiltLists(E, O, W), options)
        engine("dplr-trained" if rank else "diagonal-trained", 64, HALF, True, FEW)


def norms(width, dtype):
    """Every norm, in both orders, of whole and of padded batches; dropout's scales with them."""
    x, w = torch.zeros(3, 50, width, dtype=dtype), torch.zeros(width)
    lengths, turned = torch.zeros(3, dtype=torch.int64), torch.zeros(width, 3, 50, dtype=dtype)
    affine = Affine(w, w, 1e-5)
    norm.forward(x, affine, dtype)
    norm.backward(SavedNorm(x, w, w, w), turned, x)
    for scale in (None, x[:, 0]):
        norm_after.forward(norm_after.ResidualSum(x, x, scale), affine, dtype)
        norm_after.backward(norm_after.SavedSumNorm(x, x, scale, w, w, w), x)
    for given, turn in ((None, True), (lengths, False), (lengths, True)):
        batch_norm.forward(x, given, batch_norm.Norm(w, w, w, w, 0.1, 1e-5), batch_norm.OutputLayout(turn, dtype))
        saved = batch_norm.SavedBatchNorm(x, given, w, w, w, w)
        batch_norm.backward(saved, turned if turn else x, x if turn else None, turn)


def gates(width):
    z, bias = torch.zeros(100, 2 * width, dtype=HALF), torch.zeros(2 * width)
    glu.backward(z, bias, glu.forward(z, bias))


def linear_maps(gated):
    """Of float32 features, with all gradients."""
    y, weight = torch.zeros(256, 2000), torch.zeros(256, 256)
    out, z = float32_linear.forward(y, weight, weight[0], gated=gated, save=True)
    float32_linear.forward(y, weight, weight[0], gated=gated, save=False)
    float32_linear.backward(y, weight, z, out)


def orders(dtype):
    x = torch.zeros(3, 70, 50, dtype=dtype)
    transpose.featurewise(transpose.lengthwise(x.permute(2, 0, 1), HALF).permute(1, 2, 0), HALF)


def steps(d_state, rank, early=False):
    """One step of the recurrence, of a diagonal SSM or one with a low-rank part."""
    u, state = torch.zeros(300, 8), torch.zeros(300, 8, d_state)
    vector, factors = torch.zeros(8, d_state), torch.zeros(rank, 8, d_state) if rank else None
    system = step.System(vector, factors, factors, None, vector, vector[None], torch.zeros(1, 8))
    step.step(u, state, system, step.StepOptions(True, FULL, early), out=state)


def choices(width, dtype, inverse):
    parts = [(torch.zeros(200, width, dtype=dtype), torch.zeros(words, width, dtype=dtype), torch.zeros(words))
             for words in (100, 3000)]  # fmt: skip
    sampling.sample(parts, torch.zeros(200, 1), torch.zeros(200), inverse)


def cauchy(d_state, dtype, both):
    """The kernel of S4 as in its paper, and all gradients; with growing modes nodes differ between heads."""
    layer = S4(64, d_state, kernel="cauchy", bidirectional=both, real_part="none" if both else "exp", dtype=dtype)
    layer.ssm(torch.zeros(1, 1000, 64, dtype=dtype)).sum().backward()


KINDS = {
    "diagonal": "diagonal-trained", "rank one": "dplr-trained", "low rank": "dplr-trained2", "dense": "dense-trained",
}  # fmt: skip
DTYPES = {"half": HALF, "full": FULL}
STATES = (64, 128, 256)
TEMPERATURE = torch.ones(1, dtype=torch.float64)


def engine_cases():
    """By what Ā is, the precision, the state size and the input: whole tiles in both directions, the others in one."""
    for (power, kind), (precision, dtype), d_state in product(KINDS.items(), DTYPES.items(), STATES):
        yield f"{power}, {precision}, {d_state}, many", partial(engine, kind, d_state, dtype, True, MANY)
        yield f"{power}, {precision}, {d_state}, few", partial(engine, kind, d_state, dtype, False, FEW)
        yield f"{power}, {precision}, {d_state}, wide", partial(engine, kind, d_state, dtype, False, WIDE)


CASES = {
    **dict(engine_cases()),
    **{f"norms, {name}, {width}": partial(norms, width, dtype)
       for name, dtype in DTYPES.items() for width in (100, 1024)},
    **{f"choices, {name}, {width}": partial(choices, width, dtype, None)
       for name, dtype in DTYPES.items() for width in (40, 1024)},
    "choices, warm": partial(choices, 512, HALF, TEMPERATURE),
    **{f"orders, {name}": partial(orders, dtype) for name, dtype in DTYPES.items()},
    **{f"steps, {d_state}, {rank}": partial(steps, d_state, rank) for d_state in STATES for rank in (0, 1)},
    "steps, early": partial(steps, 64, 0, True),
    **{f"first-order hold, {name}": partial(engine, "diagonal-trained", 64, dtype, True, MANY, "foh")
       for name, dtype in DTYPES.items()},
    **{f"one mode a head, {name}": partial(engine, "diagonal-trained", 2, dtype, True, MANY)
       for name, dtype in DTYPES.items()},
    "gates": partial(gates, 512),
    **{f"seen by a compiler, {rank}": partial(seen_by_a_compiler, rank) for rank in (0, 1)},
    **{f"cauchy, {d_state}, {both}": partial(cauchy, d_state, FULL, both)
       for d_state in STATES for both in (False, True)},
    "cauchy, double": partial(cauchy, 64, torch.float64, False),
    "float32 maps, gated": partial(linear_maps, True),
    "float32 maps, plain": partial(linear_maps, False),
}  # fmt: skip


def fitting(bytes_of_memory):
    """The cases that people run on a GPU with so much memory."""
    for name in CASES:
        power, *rest = name.split(", ")
        if power not in KINDS or fits(int(rest[1]), power, DTYPES[rest[0]], bytes_of_memory):
            yield name


def kernel_name(kernel):
    return f"{kernel.fn.__module__.removeprefix('statespan.ops.')}.{kernel.__name__}"


def compiled(capability, bytes_of_memory, names):
    """The kernels of each case, each with the most shared memory that one of its forms takes."""
    run, found = JITFunction.run, {}

    def only_compile(self, *arguments, grid, warmup, **options):
        result = run(self, *arguments, grid=grid, warmup=True, **options)
        kernel = kernel_name(self)
        found[name][kernel] = max(found[name].get(kernel, 0), result.metadata.shared)
        return result

    driver.set_active(Absent(capability))
    JITFunction.run = only_compile
    memory.UNLIMITED = bytes_of_memory
    dispatch.check_kernels = lambda path, x: None  # nothing is launched, so the tensors may be on the CPU
    with use_path("triton"):
        for name in names:
            found[name] = {}
            CASES[name]()
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    capability, bytes_of_memory, *names = sys.argv[1:]
    print(json.dumps(compiled(int(capability), int(bytes_of_memory), names)))
