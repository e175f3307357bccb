"""Meta device, to_empty, reset_parameters: what the constructor makes, after the same seed to the bit."""

import pytest
import torch
from torch import nn

from statespan import DSS, LRU, LSSL, S4, S4D, S5, models
from statespan.nn import FeedForward
from statespan.nn.parameters import SSMParameters
from statespan.papers.baselines.attention import Attention
from statespan.papers.baselines.linear_attention import LinearAttention, Performer
from statespan.papers.baselines.transformer import Transformer
from tests.models.make import ALL, SMALL


def of_models(case):
    name, own = ALL[case]
    return lambda: models.build(name, None, {**SMALL, **own})


MIXED = {"init": "inv/random", "init_options": {"random_real": True}, "n_ssm": 2}
MAKE = {
    **{f"model {case}": of_models(case) for case in ALL},
    "S4": lambda: S4(6, 4, mix="glu"),
    "S4 fixed": lambda: S4(6, 4, init="legs/fout", n_ssm=2, train_A=False, train_B=False, channels=2),
    "S4D": lambda: S4D(6, 4, bidirectional=True, real_part="softplus", mix=None),
    "S4D random": lambda: S4D(6, 4, **MIXED),
    "DSS": lambda: DSS(6, 4),
    "DSS trained": lambda: DSS(6, 4, train_B=True, init="inv"),
    "LSSL": lambda: LSSL(6, 4),
    "S5": lambda: S5(6, 8, blocks=2),
    "LRU": lambda: LRU(6, 4),
    "FeedForward": lambda: FeedForward(6),
    "Transformer": lambda: Transformer(6, [Attention(6, 2), Performer(6, 2), LinearAttention(6, 3), S4D(6, 4)], d_ff=8),
}


def seeded(make):
    torch.manual_seed(5)
    return make()


def emptied(make):
    """From the meta device, with NaN for all values."""
    with torch.device("meta"):
        module = make()
    assert all(x.is_meta for x in module.state_dict().values())
    module.to_empty(device="cpu")
    for value in module.state_dict().values():
        value.fill_(torch.nan if value.is_floating_point() else -1)
    return module


@pytest.mark.parametrize("name", MAKE)
def test_one_call_gives_what_the_constructor_gives(name):
    wanted, module = seeded(MAKE[name]).state_dict(), emptied(MAKE[name])
    seeded(module.reset_parameters)
    got = module.state_dict()
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert (got[key] == value).all(), key
    seeded(module.reset_parameters)
    assert all((value == wanted[key]).all() for key, value in module.state_dict().items())


def moments(value):
    return torch.stack([value.double().mean(), value.double().std(correction=0), value.abs().max().double()])


@pytest.mark.parametrize("name", MAKE)
def test_every_module_for_itself_draws_from_the_same_distributions(name):
    """In the order of torch: what is not random is the same, and what is random has the same moments."""
    again, module = [seeded(MAKE[name]).state_dict(), MAKE[name]().state_dict()], emptied(MAKE[name])
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
        else:
            assert not [*part.parameters(recurse=False), *part.buffers(recurse=False)]
    for key, value in module.state_dict().items():
        assert value.isfinite().all(), key
        one, other = (state[key] for state in again)
        if (one == other).all():
            assert (value == one).all(), key
        elif value.numel() >= 30:
            assert (moments(value) - moments(one)).abs().max() <= 0.75 * moments(one)[2], key


def test_a_layer_is_initialised_on_its_own_device_and_in_its_own_dtype():
    layer = S4D(6, 4, dtype=torch.float64, train_A=False)
    wanted = seeded(lambda: S4D(6, 4, dtype=torch.float64, train_A=False))
    seeded(layer.reset_parameters)
    assert all((value == wanted.state_dict()[key]).all() for key, value in layer.state_dict().items())
    low = seeded(lambda: S4D(6, 4, dtype=torch.bfloat16))
    other = S4D(6, 4, dtype=torch.bfloat16)
    seeded(other.reset_parameters)
    assert all((value == low.state_dict()[key]).all() for key, value in other.state_dict().items())
    assert other.ssm.C.dtype == torch.float32


def test_initial_scales_of_an_adaptive_embedding_survive_torch_s_order():
    torch.manual_seed(0)
    model = models.build("language", None, {**SMALL, "d_model": 64, "vocabulary": 900, "cutoffs": [100, 400]})
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for i, table in enumerate(model.tokens.tables):
        assert table.weight.std().item() == pytest.approx(0.5 * (64 // 4**i) ** -0.5, rel=0.1)
    assert model.tokens.head.weight.std().item() == pytest.approx(0.5 / 8, rel=0.1)
    assert (model.tokens.clusters.weight == 0).all()


def test_every_part_that_holds_values_can_be_initialised():
    for make in MAKE.values():
        for module in make().modules():
            if module._parameters or module._buffers or isinstance(module, SSMParameters):
                assert callable(module.reset_parameters)
            assert isinstance(module, nn.Module)
