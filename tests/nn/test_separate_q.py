"""S4 with a Q of its own, A = Λ - P Qᴴ: the truth in numpy, gradients, kernels that do not know it, files, training."""

import numpy as np
import pytest
import torch

from statespan import S4, from_reference, models, param_groups, to_reference
from statespan.models.reference.source import NotExpressibleError
from statespan.ops import apply, use_path
from tests.models.reference import brute as published
from tests.models.reference.brute import Block, Sizes, draw
from tests.nn.make import peak_error, perturb
from tests.ssm import brute

f64 = torch.float64
RULES = ("bilinear", "zoh", "foh")


def make(d_model=3, d_state=6, amount=0.1, dtype=f64, **options):
    torch.manual_seed(3)
    return perturb(S4(d_model, d_state, separate_Q=True, dtype=dtype, **options), amount)


def test_it_starts_as_the_tied_one():
    torch.manual_seed(0)
    apart = S4(4, 8, init="legs/fout", n_ssm=2, separate_Q=True, dtype=f64)
    torch.manual_seed(0)
    tied = S4(4, 8, init="legs/fout", n_ssm=2, dtype=f64)
    assert torch.equal(apart.ssm.Q, apart.ssm.P)
    assert apart.ssm.Q.data_ptr() != apart.ssm.P.data_ptr()
    assert sum(p.numel() for p in apart.parameters()) - sum(p.numel() for p in tied.parameters()) == tied.ssm.P.numel()
    x = torch.randn(2, 90, 4, dtype=f64)
    assert peak_error(apart(x), tied(x)) <= 1e-12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("init", ["legs", "legt"])
@pytest.mark.parametrize("length", [1, 7, 100])
def test_every_view_is_the_dense_recurrence(rule, init, length):
    """The kernel, the recurrence and the chunks against matrices that are written out."""
    ssm = make(init=init, discretization=rule).ssm.structure()
    assert not torch.equal(ssm.Q, ssm.P)
    kernel = torch.from_numpy(brute.structure_kernel(ssm, length))
    assert peak_error(ssm.kernel(length), kernel) <= 1e-10
    u = torch.randn(2, length, 3, dtype=f64)
    wanted = torch.stack([
        sum(kernel[..., j] * u[:, None, t - j] for j in range(t + 1)) for t in range(length)
    ], 1)  # fmt: skip
    assert peak_error(ssm.scan(u)[0], wanted) <= 1e-10
    for path in ("fft", "chunks"):
        with use_path(path):
            assert peak_error(apply(ssm, u), wanted) <= 1e-10


def test_the_papers_algorithm_with_growing_modes():
    """Poles on both sides of the circle: the sum is finite, so that nothing diverges."""
    ssm = make(d_state=8, kernel="cauchy", dt_min=0.05, dt_max=0.1).ssm
    with torch.no_grad():
        ssm.Q.copy_(-0.2 * ssm.P)
    structure = ssm.structure()
    assert structure.algorithm == "cauchy"
    assert any(np.linalg.eigvals(A).real.max() > 0.05 for A, *_ in brute.dense_form(structure))
    for length in (5, 64, 300):
        wanted = torch.from_numpy(brute.structure_kernel(structure, length))
        assert peak_error(structure.kernel(length), wanted) <= 1e-11


@pytest.mark.parametrize("options", [{}, {"init": "legt"}, {"kernel": "cauchy"}, {"discretization": "zoh"}])
def test_gradients_of_q(options):
    """Finite differences through a whole layer; Q has a gradient that is not P's."""
    layer = make(2, 4, mix=None, activation=None, dt_min=0.05, **options)
    x = torch.randn(1, 9, 2, dtype=f64)
    weights = torch.randn(1, 9, 2, dtype=f64)
    (layer(x) * weights).sum().backward()
    assert not torch.allclose(layer.ssm.Q.grad, layer.ssm.P.grad)
    with torch.no_grad():
        for name in ("P", "Q"):
            parameter = getattr(layer.ssm, name)
            found = parameter.grad.clone()
            for index in np.ndindex(*parameter.shape):
                both = []
                for step in (1e-6, -1e-6):
                    parameter[index] += step
                    both.append((layer(x) * weights).sum())
                    parameter[index] -= step
                assert abs((both[0] - both[1]) / 2e-6 - found[index]) <= 1e-6 * found.abs().max() + 1e-8, (name, index)


@pytest.mark.parametrize("d_state", [6, 66])
@pytest.mark.parametrize("init", ["legs", "legt"])
def test_the_kernels_of_a_gpu_get_operators_built_in_torch(d_state, init):
    layer = make(2, d_state, amount=0.02, dtype=torch.float32, init=init)
    x = torch.randn(2, 70, 2)
    found = {}
    for path in ("chunks", "triton"):
        layer.zero_grad()
        with use_path(path):
            y = layer(x)
            y.square().sum().backward()
        found[path] = [y.detach(), *(p.grad.clone() for p in layer.parameters())]
    for got, wanted in zip(found["triton"], found["chunks"]):
        assert peak_error(got, wanted) <= 2e-5


def test_changes_of_q_count_in_evaluation():
    """What a layer remembers of its last set-up depends on Q."""
    layer = make().eval()
    x = torch.randn(2, 40, 3, dtype=f64)
    with torch.no_grad():
        before = layer(x)
        layer.ssm.Q.mul_(0.5)
        after = layer(x)
    assert peak_error(after, before) > 1e-4
    assert peak_error(after, layer(x).detach()) <= 1e-12


def test_optimizer_group_is_that_of_c():
    """As in the code of the paper, where Q lies beside C; with ``slow_C``, as the paper says, both are slow."""
    layer = S4(4, 6, separate_Q=True)
    for slow, name in ((False, "decay"), (True, "ssm")):
        groups = {group["name"]: group["params"] for group in param_groups(layer, lr=0.01, slow_C=slow)}
        for parameter in (layer.ssm.C, layer.ssm.Q):
            assert any(parameter is p for p in groups[name])
    frozen = S4(4, 6, separate_Q=True, train_A=False)
    assert {"P", "Q"} <= {name for name, _ in frozen.ssm.named_buffers()}


def test_saved_and_loaded(tmp_path):
    options = {"d_input": 1, "d_output": 2, "d_model": 4, "d_state": 6, "n_layers": 2, "ssm": {"separate_Q": True}}
    model = perturb(models.build("classifier", options=options), 0.05)
    model.save_pretrained(tmp_path)
    loaded = models.from_pretrained(tmp_path)
    assert loaded.config.ssm == {"separate_Q": True}
    x = torch.randn(2, 50, 1)
    assert torch.equal(loaded(x), model.eval()(x))
    with pytest.raises(TypeError, match="separate_Q must be True or False, got str 'yes'"):
        models.check("classifier", {"ssm": {"separate_Q": "yes"}}, values=True)


@pytest.mark.parametrize("name", ["v1", "v2"])
@pytest.mark.parametrize("rank", [1, 2])
def test_checkpoints_of_the_public_code_keep_their_q(name, rank):
    """Version 1 has Q in the rows of C, version 2 as a tensor of its own, conjugated."""
    torch.manual_seed(5)
    ssm = draw(Sizes(R=rank))
    ssm.Q = ssm.P + 0.1 * torch.randn(*ssm.P.shape, dtype=torch.complex128)
    if name == "v1":
        layout, tensors = "v1", published.v1(ssm)
    else:
        layout, tensors = "v3", published.v2(ssm, free=True)
    block = Block(ssm, tensors, layout)
    layer = from_reference(block.tensors)
    assert layer.ssm.separate_Q
    x = torch.randn(2, 50, layer.d_model, dtype=f64)
    assert peak_error(layer(x), block(x)) <= 1e-11
    assert peak_error(layer.ssm.structure().scan(x)[0], ssm.run(x)) <= 1e-11
    with pytest.raises(NotExpressibleError, match="separate_Q=True"):
        to_reference(layer, l_kernel=40)
