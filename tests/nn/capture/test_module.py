"""A captured module is the module in every respect but its calls."""

import contextlib
import copy
import io
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import statespan
from statespan import S4D, models
from statespan.nn.capture.module import CapturedModule
from tests.mistakes import assert_one_clear_line
from tests.nn.capture.make import CpuRecorder, Net, captured, count, replays

x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def test_it_is_the_same_module():
    module = Net()
    model = captured(module)
    assert isinstance(model, Net)
    assert isinstance(model, CapturedModule)
    assert not isinstance(module, CapturedModule)
    assert all(p is q for p, q in zip(model.parameters(), module.parameters(), strict=True))
    assert list(model.state_dict()) == list(module.state_dict())
    assert [name for name, _ in model.named_modules()] == [name for name, _ in module.named_modules()]
    assert model.first is module.first
    assert repr(model) == repr(module).replace("Net(", "CapturedNet(", 1)
    assert set(dir(module)) <= set(dir(model))
    model.eval()
    assert not module.training
    model.note = "shared"
    assert module.note == "shared"
    module.zero_grad()
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in module.parameters())
    assert model.double() is model
    assert module.first.weight.dtype == torch.float64
    with pytest.raises(AttributeError, match="absent"):
        _ = model.absent


def test_the_module_itself_stays_eager():
    module = Net()
    model = captured(module)
    module(x)
    model.forward(x)
    assert count(model) == 0
    model(x)
    assert int(module.norm.num_batches_tracked) == 3


def test_checkpoints_are_unchanged(tmp_path):
    model, other = captured(Net()), Net()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(other.first.weight, model.first.weight)
    small = models.build("classifier", None, {"d_input": 1, "d_output": 2, "d_model": 4, "n_layers": 1})
    captured(small).save_pretrained(tmp_path / "model")
    again = statespan.load(tmp_path / "model")
    assert type(again) is models.Classifier
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in small.state_dict().items())
    assert [len(group["params"]) for group in statespan.param_groups(captured(small), 0.1)] == [
        len(group["params"]) for group in statespan.param_groups(small, 0.1)
    ]


def test_copies_and_pickles_are_plain():
    """A copy for an average of weights, or for another process, has no graphs of the first one."""
    model = captured(Net(0.0, norm=False))
    model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [
        copy.deepcopy(model),
        copy.copy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
        torch.optim.swa_utils.AveragedModel(model).module,
    ]
    for each in copies:
        assert type(each) is Net
        assert torch.equal(each(x)["y"], model(x)["y"])
    assert copies[1].first is model.first
    assert copies[1] is not model._calls.module
    with torch.no_grad():
        copies[0].first.weight.zero_()
    assert model.first.weight.any()


def test_capturing_again_begins_anew():
    module = Net()
    first = statespan.capture(module)
    second = statespan.capture(first, graphs=3)
    assert type(second) is type(first)
    assert second._calls.module is module
    assert (second._calls.graphs, first._calls.graphs) == (3, 8)


def test_an_example():
    module = S4D(4, 8)
    for arguments in ((torch.randn(2, 9, 4),), ((torch.randn(2, 9, 4),), {"dt_scale": 2.0})):
        with pytest.warns(UserWarning, match=r"S4D runs without CUDA graphs here: .* it is on cpu") as seen:
            model = statespan.capture(module, *arguments)
        assert len(seen) == 1
        assert seen[0].filename == __file__
        z = torch.randn(2, 9, 4)
        assert torch.equal(model(z), module(z))
    only_names = statespan.capture(Net())  # nothing is recorded before the first call
    with pytest.warns(UserWarning, match="it is on cpu"):
        only_names(x=x)


MISTAKES = {
    "model": (lambda: statespan.capture(lambda x: x), TypeError, ["model", "torch.nn.Module", "function"]),
    "script": (lambda: statespan.capture(torch.jit.script(nn.Linear(1, 1))), TypeError, ["model", "ScriptModule"]),
    "args": (lambda: statespan.capture(Net(), 3), TypeError, ["args", "tuple", "int"]),
    "kwargs": (lambda: statespan.capture(Net(), x, [x]), TypeError, ["kwargs", "dictionary", "list"]),
    "graphs": (lambda: statespan.capture(Net(), graphs=0), ValueError, ["graphs", "0", ">= 1"]),
}


@pytest.mark.parametrize("case", MISTAKES)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
def test_mistakes(case):
    assert_one_clear_line(*MISTAKES[case])


def test_wrong_arguments_are_the_modules_errors():
    with pytest.raises(TypeError, match="forward"):
        captured(Net())(x, 1.0, 2.0)
    with pytest.raises(ValueError, match=r"x must have shape"):
        captured(S4D(4, 8))(torch.randn(2, 3))


def test_registries_of_subclasses_are_left_alone():
    registered = []

    class Base(nn.Linear):
        def __init_subclass__(cls, **options):
            registered.append(cls)

    class Own(Base):
        pass

    captured(Own(2, 2))
    assert registered == [Own]


def test_under_torch_compile():
    """The compiler reads the module; a compiled module can be captured."""
    module = Net(0.0)
    eager = copy.deepcopy(module)
    model = captured(module)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x)["y"], eager(x)["y"])
    assert count(model) == 0
    model = captured(torch.compile(module, backend="aot_eager"))
    for _ in range(2):
        mine, wanted = model(x)["y"], eager(x)["y"]
        torch.testing.assert_close(mine, wanted)
        mine.sum().backward(), wanted.sum().backward()
    torch.testing.assert_close(module.first.weight.grad, eager.first.weight.grad)
    assert replays(model) == 2
    torch._dynamo.reset()


def test_torch_export():
    model = captured(Net(0.0, norm=False).eval())
    program = torch.export.export(model, (x,))
    assert torch.equal(program.module()(x)["y"], model(x)["y"])
    assert replays(model) == 1


@pytest.fixture
def process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_inside_ddp(process):
    """DDP around a captured module: its hooks see the gradients, also where they accumulate."""
    module = Net(0.0)
    eager, seen = copy.deepcopy(module), []
    model = captured(module)
    parallel, plain = DistributedDataParallel(model), DistributedDataParallel(eager)

    def hook(state, bucket):
        seen.append(bucket.buffer().clone())
        return allreduce_hook(None, bucket)

    parallel.register_comm_hook(None, hook)
    for each in (parallel, plain):
        for scale in (1.0, 2.0, 3.0):
            with each.no_sync() if scale == 2.0 else contextlib.nullcontext():
                result = each(scale * x)
                (result["y"].square().sum() + result["pair"].scores.sum()).backward()
    assert replays(model) == 3
    assert len(seen) == 2
    for (name, p), q in zip(module.named_parameters(), eager.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), name


def test_around_ddp(process):
    model = captured(DistributedDataParallel(Net(0.0)))
    with pytest.warns(UserWarning, match=r"DistributedDataParallel\(statespan\.capture\(model\)\)"):
        model(x)["y"].sum().backward()
    assert model.module.second.bias.grad is not None
    assert CpuRecorder.strict is False


def test_a_sharded_module_runs_eagerly(process):
    """Also one that was captured before: sharding replaces its parameters and registers hooks."""
    mesh = init_device_mesh("cpu", (1,))
    before = captured(Net(0.0))
    eager = copy.deepcopy(before)
    before(x)
    fully_shard(before, mesh=mesh)
    after = captured(fully_shard(copy.deepcopy(eager), mesh=mesh))
    wanted = eager(x)["y"].detach()
    for model in (before, after):
        replayed = replays(model)
        with pytest.warns(UserWarning, match=r"is a DTensor|a hook is registered"):
            y = model(x)["y"]
        y.sum().backward()
        assert torch.equal(y, wanted)
        assert model.second.bias.grad.full_tensor().eq(5.0).all()
        assert replays(model) == replayed


def test_replicas_run_eagerly():
    """nn.DataParallel makes them without a constructor."""
    model = captured(Net(0.0))
    replica = model._replicate_for_data_parallel()
    replica._parameters = dict(model._parameters)
    assert torch.equal(replica(x)["y"], model(x)["y"])
    assert count(model) == 1
