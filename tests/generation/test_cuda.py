"""What only a GPU has: graphs, the kernel in them, and streams by tiles of a GPU's size."""

import pytest
import torch

from statespan import Stream, generate
from statespan.ops import use_path
from tests.generation.test_generate import CASES, model_of, prompt_of
from tests.models.make import inputs, make

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_graphs_give_the_same_samples(case, dtype):
    model = model_of(case).cuda().to(dtype)
    prompt = prompt_of(model, 5, 7)
    plain = generate(model, prompt, 60, seed=3, graph=False)
    graph = generate(model, prompt, 60, seed=3, graph=True)
    assert (graph.values == plain.values).all()
    assert (graph.log_probs == plain.log_probs).all()


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_gives_the_samples_of_plain_torch(case):
    model = model_of(case).cuda()
    prompt = prompt_of(model, 3, 7)
    fused = generate(model, prompt, 50, seed=3)
    with use_path("chunks"):
        plain = generate(model, prompt, 50, seed=3, graph=False)
    assert (fused.values == plain.values).all()
    assert (fused.log_probs - plain.log_probs).abs().max() < 1e-4
    on_cpu = generate(model.cpu(), prompt, 50, seed=3)
    assert (on_cpu.values == plain.values.cpu()).float().mean() > 0.9  # until one differs by rounding


@pytest.mark.parametrize("case", ["classifier", "pixels", "language"])
def test_streams_have_the_same_bits_alone(case):
    model = make(case, dtype=torch.float32).cuda()
    x, _ = inputs(model.cpu(), 300, 9)
    x = x.cuda()
    model = model.cuda()
    together = Stream(model, 300).push(x)
    for i in (0, 17, 299):
        assert torch.equal(Stream(model).push(x[i : i + 1])[0], together[i])
