"""The workshop's layers on a GPU, against float64 on the CPU, and trained as a CUDA graph. Skipped without one."""

import copy

import pytest
import torch

from statespan import models
from statespan.train.checkpoint import latest
from statespan.train.run import build_model
from tests.nn.make import peak_error, run_steps
from tests.papers.baselines.make_layers import NAMES, OPTIONS, TWO_WAY, build
from tests.train.make import dataset, recipe, run

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

layers = pytest.mark.parametrize("name", NAMES)


@layers
@pytest.mark.parametrize("bidirectional", [False, True])
def test_outputs_and_gradients(name, bidirectional):
    if bidirectional and name not in TWO_WAY:
        return
    options = {"bidirectional": True} if bidirectional else {}
    layer = build(name, 8, dtype=torch.float32, **options)
    truth, layer = copy.deepcopy(layer).double(), layer.cuda()
    x, lengths = torch.randn(3, 100, 8), [100, 1, 57]
    wanted, y = truth(x.double(), lengths=lengths), layer(x.cuda(), lengths=lengths)
    wanted.square().mean().backward()
    y.square().mean().backward()
    assert peak_error(y.cpu(), wanted) <= 2e-5
    for (key, got), expected in zip(layer.named_parameters(), truth.parameters(), strict=True):
        assert peak_error(got.grad.cpu(), expected.grad) <= 2e-4, key
    if not bidirectional:
        with torch.no_grad():
            wanted = truth(x.double())
            assert peak_error(layer.prefill(x.cuda())[0].cpu(), wanted) <= 2e-5
            assert peak_error(run_steps(layer, x.cuda())[0].cpu(), wanted) <= 2e-5


@layers
def test_a_graph_trains_the_same_model(name, tmp_path):
    """The whole update is recorded, the recurrences too: nothing waits for the device."""

    def model(info):
        own = {"d_model": 16, "n_layers": 2, "layer": name, "ssm": OPTIONS.get(name, {}), "positions": "sinusoidal"}
        return models.build("classifier", info, own)

    for way in ("none", "graph"):  # "graph" raises where a step cannot be recorded
        run(tmp_path / way, {"compile": way, "clip": 1.0}, model=model)
    plain, other = (latest(tmp_path / way / "checkpoints")[0] for way in ("none", "graph"))
    start = build_model(recipe(), dataset(), model).state_dict()
    for key in start:
        moved = (plain[f"model/{key}"] - start[key]).double().norm()
        assert (plain[f"model/{key}"] - other[f"model/{key}"]).double().norm() <= 1e-2 * moved + 1e-6, key
