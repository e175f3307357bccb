"""FSDP2 on a CPU: two processes that hold half of the parameters each, against one that holds all."""

import warnings

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.multiprocessing import spawn

from statespan import S4, S4D, models
from statespan.nn import SSMParameters
from tests.models.make import ALL, SMALL, inputs

LOW = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
ROUNDED = "SSM parameters were rounded to torch.bfloat16"


def made(cls, **options):
    torch.manual_seed(1)
    return cls(4, 4, **options)


def signal(dtype=torch.float32):
    return torch.randn(4, 70, 4, generator=torch.Generator().manual_seed(2)).to(dtype)


def rounded(module):
    """The module as a policy makes it that casts all parameters to bfloat16."""
    module = module.to(torch.bfloat16)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, SSMParameters):
                for parameter in part.parameters():
                    parameter.copy_(parameter.to(torch.bfloat16))
    return module


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradients(module, run, rank):
    """Outputs and the gradients of all parameters; each process has half of the batch, and gradients are their mean."""
    y = run(module, rank)
    y.square().sum().backward()
    return [y.detach(), *(whole(p.grad) for p in module.parameters())]


def compare(sharded, alone, run, rank, tolerance=1e-6):
    got = gradients(sharded, run, rank)
    y, *slopes = gradients(alone, run, None)
    rows = y.shape[0] // 2
    wanted = [y[rank * rows : (rank + 1) * rows], *(slope / 2 for slope in slopes)]
    for one, other in zip(got, wanted, strict=True):
        peak = other.abs().max().clamp(min=1e-3)
        assert (one - other).abs().max() <= tolerance * peak


def half(x, rank):
    return x if rank is None else x[2 * rank : 2 * rank + 2]


def check_parts(rank):
    """The mix alone, a part of it, the SSM alone, a whole layer: in full precision and without a warning."""
    cases = {
        (S4, "glu"): (["mix"], ["mix.0"], ["ssm", "mix", ""]),
        (S4D, "linear"): (["mix"], [""]),
        (S4D, None): ([""],),
    }
    for (cls, mix), choices in cases.items():
        for parts in choices:
            layer = made(cls, mix=mix)
            for part in parts:
                fully_shard(layer.get_submodule(part))
            for parameter in layer.parameters():  # what is not sharded has to be averaged by hand
                if not isinstance(parameter, DTensor):
                    parameter.register_post_accumulate_grad_hook(averaged)
            compare(layer, made(cls, mix=mix), lambda m, r: m(half(signal(), r)), rank)


def averaged(parameter):
    distributed.all_reduce(parameter.grad)
    parameter.grad /= 2


def check_low_precision(rank):
    for cls in (S4, S4D):
        layer = made(cls, mix="glu")
        fully_shard(layer, mp_policy=LOW)
        with pytest.warns(UserWarning, match=ROUNDED):
            y = layer(half(signal(), rank))
        assert y.dtype == torch.bfloat16
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ROUNDED)
            compare_low(layer, rounded(made(cls, mix="glu")), rank)
        layer = made(cls, mix="glu")
        fully_shard(layer.ssm)
        fully_shard(layer, mp_policy=LOW)
        seen = []
        layer.ssm.register_forward_pre_hook(lambda ssm, _, seen=seen: seen.extend(p.dtype for p in ssm.parameters()))
        alone = made(cls, mix="glu").to(torch.bfloat16)
        compare_low(layer, alone, rank)
        assert set(seen) == {torch.float32}


def compare_low(layer, alone, rank):
    """The same numbers forward; backward to the precision of 16 bits, in which one process adds up what two do."""
    got, wanted = layer(half(signal(), rank)), alone(half(signal(torch.bfloat16), rank))
    assert (got.float() - wanted.float()).abs().max() <= 1e-6
    compare(layer, alone, lambda m, r: m(half(signal(torch.bfloat16), r)), rank, tolerance=0.05)


def check_models(rank):
    """Blocks and then the rest, as one does; meta device first, and initialised where they are sharded.

    In float64: a batch of four and two batches of two add up in different orders.
    """
    for case in ("classifier", "regressor", "language", "pixels", "forecaster"):
        name, own = ALL[case]
        options = {**SMALL, **own, "dropout": 0.0}
        torch.manual_seed(3)
        alone = models.build(name, None, options, dtype=torch.float64).eval()
        x, more = inputs(alone, 4, 12)
        with torch.device("meta"):
            model = models.build(name, None, options, dtype=torch.float64).eval()
        for module in (m for m in model.modules() if isinstance(m, SSMParameters)):
            fully_shard(module)
        for block in getattr(model.backbone, "blocks", ()):
            fully_shard(block)
        fully_shard(model)
        model.to_empty(device="cpu")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "DTensor random operators")
            model.reset_parameters()
        for one in model.parameters():
            assert one.full_tensor().isfinite().all()
        model.load_state_dict({key: like(value, model.state_dict()[key]) for key, value in alone.state_dict().items()})

        def run(module, rank, x=x, more=more):
            return module(half(x, rank), **{key: half(value, rank) for key, value in more.items()})

        compare(model, alone, run, rank)


def like(value, other):
    if isinstance(other, DTensor):
        return distribute_tensor(value, other.device_mesh, other.placements)
    return value


def work(rank, folder):
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        check_parts(rank)
        check_low_precision(rank)
        check_models(rank)
    finally:
        distributed.destroy_process_group()


def test_two_processes_compute_what_one_does(tmp_path):
    spawn(work, (str(tmp_path),), nprocs=2)


def test_a_layer_returns_no_view():
    """What FSDP2 hooks; a change in place of a view would drop its hook."""
    for mix in ("linear", "glu", None):
        for layer in (made(S4D, mix=mix), made(S4, mix=mix)):
            y = layer(signal())
            assert y._base is None
            assert layer.prefill(signal())[0]._base is None
    backbone = models.build("classifier", None, {**SMALL, "d_input": 1, "d_output": 2, "norm": "batch"}).eval().backbone
    assert backbone(torch.randn(2, 70, 6))._base is None
