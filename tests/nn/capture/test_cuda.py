"""Captured modules on a GPU: the same training as eager ones, and torch as it was after a failure."""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import statespan
from statespan import models
from statespan.nn.capture import calls
from tests.nn.capture import test_training as training
from tests.nn.capture.make import Net, count, replays

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)


@pytest.fixture(autouse=True)
def _on_the_gpu(monkeypatch):
    monkeypatch.setattr(training, "DEVICE", "cuda")
    torch.backends.cuda.matmul.allow_tf32 = False


def near(model, other):
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("step", training.LOOPS, ids=lambda step: step.__name__)
def test_every_loop_trains_the_same(step):
    near(*training.train_both(statespan.capture, step))


LAYERS = {
    "s4": {"layer": "s4"},
    "s4, both halves": {"layer": "s4", "ssm": {"init": "legs/fout", "n_ssm": 2}},
    "s4d, bidirectional": {"layer": "s4d", "bidirectional": True},
    "s5": {"layer": "s5"},
    "lru": {"layer": "lru"},
    "lssl": {"layer": "lssl"},
    "dss": {"layer": "dss"},
    "the norm behind": {"layer": "s4d", "prenorm": False},
    "batch norm": {"layer": "s4d", "norm": "batch"},
}
PRECISIONS = {"float32": (None, 1e-5), "bf16": (torch.bfloat16, 2e-3), "fp16": (torch.float16, 2e-3)}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_models_of_statespan(name, precision):
    """20 steps with dropout, two shapes, lengths, accumulation, clipping and a gradient scaler."""
    dtype, bound = PRECISIONS[precision]
    options = {"d_model": 32, "d_state": 16, "n_layers": 2, "dropout": 0.1, **LAYERS[name]}
    torch.manual_seed(0)
    module = models.build("classifier", None, {"d_input": 2, "d_output": 5, **options}).cuda()
    start, eager = copy.deepcopy(module.state_dict()), copy.deepcopy(module)
    model = statespan.capture(module)
    for each in (model, eager):
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(statespan.param_groups(each, 0.004), fused=True)
        scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
        for step in range(20):
            for piece in range(2):
                length = 200 if step % 3 else 96
                x, y = torch.randn(8, length, 2, device="cuda"), torch.randint(5, (8,), device="cuda")
                lengths = torch.randint(1, length + 1, (8,), device="cuda") if piece and name != "dss" else None
                with torch.autocast("cuda", dtype) if dtype else contextlib.nullcontext():
                    loss = nn.functional.cross_entropy(each(x, lengths=lengths), y) / 2
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(each.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        each.eval()
        with torch.no_grad():
            each(x)
        each.train()
    assert replays(model) == 41
    assert count(model) == (3 if name == "dss" else 5)
    for key, value in eager.state_dict().items():
        moved = (value - start[key]).norm()
        assert (module.state_dict()[key] - value).norm() <= bound * moved + 1e-6, key


def test_random_numbers():
    """Each replay draws its own, from the same sequence as eager calls."""
    model, x = statespan.capture(nn.Dropout(0.5)), torch.ones(1000, device="cuda")
    eager = nn.Dropout(0.5)
    torch.manual_seed(3)
    wanted = [eager(x) for _ in range(4)]
    torch.manual_seed(3)
    found = [eager(x), *(model(x) for _ in range(2)), eager(x)]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted))
    assert not torch.equal(found[1], found[2])


class Reads(nn.Module):
    """Waits for the device, in one of two ways."""

    def __init__(self, wait):
        super().__init__()
        self.linear, self.dropout, self.wait = nn.Linear(4, 4), nn.Dropout(0.5), wait

    def forward(self, x):
        y = self.linear(self.dropout(x))
        self.wait(y)
        return y


WAITS = {
    "a number": (lambda y: y.sum().item(), "synchronizing CUDA operation"),
    "a size": (lambda y: y[y > 0], "synchronizing CUDA operation"),
    "behind torch's back": (lambda y: torch.cuda.synchronize(), "recording it fails|synchroniz"),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_module_that_waits_leaves_torch_as_it_was(name):
    wait, reason = WAITS[name]
    module, x = Reads(wait).cuda(), torch.ones(500, 4, device="cuda")
    eager, model = copy.deepcopy(module), statespan.capture(module)
    torch.manual_seed(1)
    wanted = eager(x)
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match=reason):
        y = model(x)
    assert torch.equal(y, wanted)
    y.sum().backward()
    assert model.linear.weight.grad is not None
    assert count(model) == 0
    drawn = [nn.functional.dropout(x) for _ in range(2)]  # outside graphs
    assert not torch.equal(*drawn)
    other = statespan.capture(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda())
    one, two = other(x), other(x)
    assert replays(other) == 2
    assert not torch.equal(one, two)


def test_weights_that_change_are_seen():
    module, x = nn.Linear(4, 3).cuda(), torch.randn(5, 4, device="cuda")
    model = statespan.capture(module, x)
    assert count(model) == 1
    for change in (
        lambda: nn.init.ones_(module.weight),
        lambda: setattr(module.weight, "data", torch.zeros(3, 4, device="cuda")),
        lambda: module.load_state_dict({"weight": torch.ones(3, 4).cuda(), "bias": torch.ones(3).cuda()}, assign=True),
        lambda: module.double(),
    ):
        change()
        given = x.to(module.weight.dtype)
        torch.testing.assert_close(model(given), module(given))
    assert replays(model) == 4
    module.cpu()
    with pytest.warns(UserWarning, match="needs? a CUDA device"):
        model(x.double().cpu())


def test_a_loader_with_threads():
    """A thread that pins memory does not disturb a recording in the middle of the loop."""
    data = TensorDataset(torch.randn(4000, 4), torch.randn(4000, 3))
    model = statespan.capture(Net().cuda())
    for i, (x, y) in enumerate(DataLoader(data, 16, pin_memory=True, num_workers=2)):
        size = 16 - 2 * (i // 40 % 4)
        training.error(model, x[:size].cuda(non_blocking=True), y[:size].cuda(non_blocking=True)).backward()
    assert count(model) == 4
    assert replays(model) == 250


def test_several_streams():
    model = statespan.capture(nn.Sequential(*(nn.Linear(256, 256) for _ in range(20))).cuda())
    x = torch.randn(50, 2000, 256, device="cuda")
    with torch.no_grad():
        wanted = [model(each) for each in x]
        streams = [torch.cuda.Stream() for _ in range(5)]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        found = []
        for i, each in enumerate(x):
            with torch.cuda.stream(streams[i % 5]):
                found.append(model(each))
        torch.cuda.synchronize()
    assert all(torch.equal(one, other) for one, other in zip(found, wanted))


def test_shapes_share_memory():
    """A smaller batch needs hardly more than its own inputs and outputs."""

    def reserved():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    layers = [layer for _ in range(16) for layer in (nn.Linear(512, 512), nn.GELU())]
    model = statespan.capture(nn.Sequential(*layers).cuda())
    before = reserved()
    model(torch.randn(16384, 512, device="cuda")).sum().backward()
    model.zero_grad()
    largest = reserved() - before
    for size in (16000, 12000, 8000):
        model(torch.randn(size, 512, device="cuda")).sum().backward()
        model.zero_grad()
    assert largest > 16 * 16384 * 512 * 4
    assert reserved() - before < 1.5 * largest
    del model
    assert reserved() - before < 0.2 * largest  # but for the workspaces of libraries


def test_inside_ddp():
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    try:
        module = Net(0.0).cuda()
        eager = copy.deepcopy(module)
        model = statespan.capture(module)
        for each in (DistributedDataParallel(model), DistributedDataParallel(eager)):
            for i in range(3):
                training.error(each, *training.batch(i)).backward()
        assert replays(model) == 3
        for (name, p), q in zip(module.named_parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, msg=name)
    finally:
        dist.destroy_process_group()


def test_a_compiled_module():
    module, (x, y) = Net(0.0).cuda(), training.batch(1)
    eager = copy.deepcopy(module)
    model = statespan.capture(torch.compile(module))
    for _ in range(3):
        training.error(model, x, y).backward()
        training.error(eager, x, y).backward()
    assert replays(model) == 3
    for (name, p), q in zip(module.named_parameters(), eager.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q[1].grad, rtol=1e-4, atol=1e-5, msg=name)


def test_second_derivatives_and_more_flights_than_lanes():
    model, (x, _) = statespan.capture(Net(0.0, norm=False).cuda(), graphs=20), training.batch(1)
    eager = copy.deepcopy(model)
    waiting = [model(i * x)["y"].sum() for i in range(calls.LANES)]
    with pytest.warns(UserWarning, match="already wait"):
        waiting.append(model(-x)["y"].sum())
    sum(waiting).backward()
    sum(eager(i * x)["y"].sum() for i in (*range(calls.LANES), -1)).backward()
    torch.testing.assert_close(model.first.weight.grad, eager.first.weight.grad, rtol=1e-4, atol=1e-5)
    z = x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(model(z)["y"].sum(), z, create_graph=True)
