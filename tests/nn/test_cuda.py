"""The same layers on a GPU, against float64 on the CPU. Skipped where there is none."""

import copy

import pytest
import torch

from statespan import S4, S4D
from statespan.nn import layer as layers
from statespan.nn import parameters
from tests.nn.make import COMBINATIONS, IDS, peak_error, run_steps

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)


@pytest.mark.parametrize(("cls", "options"), COMBINATIONS, ids=IDS)
def test_every_view_and_gradient(cls, options):
    layer = cls(8, 64, **options)
    truth, layer = copy.deepcopy(layer).double(), layer.cuda()
    x = torch.randn(2, 1000, 8)
    wanted = truth(x.double())
    wanted.square().mean().backward()
    y = layer(x.cuda())
    y.square().mean().backward()
    assert peak_error(y.cpu(), wanted) <= 2e-6
    for (name, got), expected in zip(layer.named_parameters(), truth.parameters(), strict=True):
        assert peak_error(got.grad.cpu(), expected.grad) <= 2e-5, name
    with torch.no_grad():
        by_prefill, state = layer.prefill(x.cuda())
        by_step, end = run_steps(layer, x[:, :100].cuda())
    assert peak_error(by_prefill.cpu(), wanted) <= 2e-6
    assert peak_error(by_step.cpu(), wanted[:, :100]) <= 2e-6
    assert state.is_cuda
    assert end.is_cuda


@pytest.mark.parametrize(("cls", "options"), COMBINATIONS[:3], ids=IDS[:3])
def test_autocast(cls, options, monkeypatch):
    layer = cls(8, 16, **options).cuda()
    x = torch.randn(2, 100, 8, device="cuda")
    types = []
    for owner, name in ((parameters, "apply"), (layers, "apply_gated")):
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, f=function, **k: types.append(k["dtype"]) or f(*a, **k))
    with torch.autocast("cuda", torch.bfloat16):
        y = layer(x)
    assert set(types) == {torch.bfloat16}  # also inside, and from a wider input
    assert y.dtype == torch.bfloat16
    monkeypatch.undo()
    assert peak_error(y, layer(x)) < 0.02


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"n_ssm": 2}, {"channels": 2}], ids=str)
@pytest.mark.parametrize("batch", [2, 64])
@pytest.mark.parametrize("cls", [S4D, S4])
def test_compiled_kernels_compute_the_same(cls, batch, options):
    """Where a compiler launches the kernels itself: one program's sums and several, both directions, shared modes."""
    layer = cls(16, 64, **options).cuda()
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(batch, 700, 16, device="cuda", requires_grad=True)
    results = []
    for call in (layer, compiled):
        with torch.autocast("cuda", torch.bfloat16):
            y = call(x)
        results.append([y.detach(), *torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])])
    for one, other in zip(*results, strict=True):
        assert peak_error(other, one) <= 2e-2
    torch._dynamo.reset()
