"""Low-rank parameters of S4: the kernels build their operators, for every initialization, as plain torch does."""

import pytest
import torch

from statespan import S4
from statespan.ops import use_path
from statespan.ops.ssm import source
from statespan.ssm import DPLR
from tests.nn.make import peak_error, perturb

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUNDS = {torch.float32: (2e-6, 2e-5), torch.float64: (1e-10, 1e-10)}
LAYERS = {
    "rank 2": {"init": "legt"},
    "both ways": {"init": "legt", "bidirectional": True},
    "mixture": {"init": "legs/legt", "n_ssm": 2, "channels": 2},
    "mixture both ways": {"init": "legt/fout", "n_ssm": 2, "bidirectional": True, "real_part": "softplus"},
}


def make(options, d_state, dtype):
    layer = S4(2, d_state, **{"n_ssm": 1, **options}, mix=None, dtype=dtype, device=DEVICE)
    return perturb(layer, 0.05)  # also the terms that a mixture fills with 0


def results(layer, x, weights, dt_scale):
    """The output, and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    y = layer(x, dt_scale=dt_scale)
    names = ["y", "x", *dict(layer.named_parameters())]
    return dict(zip(names, [y, *torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()])]))


def check(layer, length, dt_scale=1.0):
    x = torch.randn(2, length, 2, dtype=layer.D.dtype, device=DEVICE)
    weights = torch.randn(2, length, layer.d_output, dtype=x.dtype, device=DEVICE)
    found = {}
    for path in ("chunks", "triton"):
        with use_path(path):
            found[path] = results(layer, x, weights, dt_scale)
    for name, wanted in found["chunks"].items():
        assert peak_error(found["triton"][name], wanted) <= BOUNDS[x.dtype][name != "y"], name


@pytest.fixture
def no_structure(monkeypatch):
    """Building the operators in plain torch is an error."""

    def refuse(self, *_, **__):
        raise AssertionError("built in plain torch")

    monkeypatch.setattr(DPLR, "operators", refuse)
    monkeypatch.setattr(DPLR, "factors", refuse)


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float32) for name in LAYERS), ("rank 2", torch.float64)])
def test_kernels_and_plain_torch_agree(name, dtype):
    check(make(LAYERS[name], 6, dtype), 70, dt_scale=1.7)


@pytest.mark.parametrize("name", LAYERS)
def test_a_large_state_goes_step_by_step(name):
    check(make(LAYERS[name], 66, torch.float32), 5)


@pytest.mark.parametrize(("d_state", "length"), [(6, 70), (66, 5)])
def test_nothing_is_built_in_torch(d_state, length, no_structure):
    layer, x = make(LAYERS["mixture"], d_state, torch.float32), torch.randn(2, length, 2, device=DEVICE)
    with use_path("triton"):
        layer(x).sum().backward()
    assert all((p.grad != 0).any() for p in layer.ssm.parameters())
    with use_path("chunks"), pytest.raises(AssertionError, match="built in plain torch"):
        layer(x)


@pytest.mark.parametrize(
    ("options", "power"),
    [({}, "rank one"), ({"init": "fout"}, "rank one"), ({"init": "legt"}, "low rank"),
     ({"init": "legs/legt", "n_ssm": 2}, "low rank"), ({"discretization": "zoh"}, "dense"),
     ({"init": "legt", "discretization": "zoh"}, "dense"), ({"separate_Q": True}, "dense"),
     ({"init": "legt", "separate_Q": True}, "dense")],
)  # fmt: skip
def test_the_form_of_the_state_matrix(options, power):
    """Of a layer and of the same as a structure; what is dense has no parameters for the kernels."""
    ssm = S4(4, 6, **options).ssm
    for each in (ssm.source(), source.source_of(ssm.structure())):
        assert each.power == power
        modal = each.modal()
        if power == "dense":
            assert modal is None
        else:
            assert modal.parameters.P.shape[0] == (1 if power == "rank one" else 2)
