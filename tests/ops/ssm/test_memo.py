"""The set-up that is kept in evaluation mode: every change counts, nothing else does, and nothing is left behind."""

import copy
import gc
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from statespan import DSS, LRU, LSSL, S4, S4D, S5
from statespan.ops.ssm import apply as engine
from statespan.ops.ssm import memo, short

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for layers on a CPU")
SHORT, LONG = 12, 80  # by the series, and by chunks
KINDS = {
    "s4d": (S4D, {}), "s4": (S4, {}), "legt": (S4, {"init": "legt"}), "cauchy": (S4, {"kernel": "cauchy"}),
    "dss": (DSS, {}), "lssl": (LSSL, {}), "s5": (S5, {}), "lru": (LRU, {}),
    "ahead": (S4D, {"bidirectional": True, "discretization": "zoh"}),
}  # fmt: skip


@pytest.fixture
def made(monkeypatch):
    """Every set-up that is made."""
    count = []
    original = memo.Memo.get

    def get(self, key, values, make):
        return original(self, key, values, lambda: count.append(key[0]) or make())

    monkeypatch.setattr(memo.Memo, "get", get)
    return count


def given(cls=S4, length=SHORT, **options):
    torch.manual_seed(2)
    return cls(4, 8, **options).eval(), torch.randn(2, length, 4)


def uncached(layer, x, **options):
    """What a layer that was never called gives."""
    with torch.no_grad():
        return copy.deepcopy(layer)(x, **options)


@pytest.mark.parametrize("length", [SHORT, LONG])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_same_bits_from_one_set_up(kind, length, made):
    cls, options = KINDS[kind]
    layer, x = given(cls, length, **options)
    wanted = uncached(layer, x)
    made.clear()
    for _ in range(3):
        assert torch.equal(layer(x), wanted)
    assert len(made) == 1
    layer(torch.cat([x, x]) if length == SHORT else x + 1)  # what depends on the input alone is not part of it
    assert len(made) == 1


@torch.no_grad()
def test_prefill_uses_it_too(made):
    layer, x = given(length=LONG)
    y, state = layer.prefill(x)
    again, _ = layer.prefill(x)
    assert torch.equal(y, again)
    assert made == ["chunks"]
    layer.prefill(x, state)
    assert len(made) == 1


def step_of_an_optimizer(layer):
    layer.train()
    with torch.enable_grad():
        layer(torch.randn(1, 3, 4)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    layer.eval()


def twice_through_data(layer):
    """Fresh memory twice: the second may be where the first was, and no version changes."""
    for _ in range(2):
        layer.ssm.A_real.data = layer.ssm.A_real.data * 0.9


def through_numpy(layer):
    layer.ssm.C.detach().numpy()[0, 0, 0, 0] += 1.0


def sign_of_zero(layer):
    layer.D.data[0, 0] = -0.0


def replaced(layer):
    layer.ssm.B = nn.Parameter(layer.ssm.B.detach() + 1)


CHANGES = {
    "optimizer": step_of_an_optimizer,
    "load_state_dict": lambda layer: layer.load_state_dict({k: 1.1 * v for k, v in layer.state_dict().items()}),
    "assign": lambda layer: layer.load_state_dict({k: 1.1 * v for k, v in layer.state_dict().items()}, assign=True),
    "copy_": lambda layer: layer.ssm.log_dt.copy_(layer.ssm.log_dt - 1),
    "data": lambda layer: layer.ssm.P.data.mul_(1.1) if hasattr(layer.ssm, "P") else layer.ssm.C.data.mul_(1.1),
    "twice": twice_through_data,
    "numpy": through_numpy,
    "replaced": replaced,
    "skip": lambda layer: layer.D.data.add_(1),
    "zero": sign_of_zero,
}


@pytest.mark.parametrize("length", [SHORT, LONG])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("cls", [S4D, S4])
@torch.no_grad()
def test_every_change_of_a_parameter_counts(cls, change, length, made):
    layer, x = given(cls, length)
    layer.D.data[0, 0] = 0.0
    layer(x)
    made.clear()
    CHANGES[change](layer)
    got = layer(x)
    assert len(made) == 1
    assert torch.equal(got, uncached(layer, x))


@pytest.mark.parametrize("length", [SHORT, LONG])
@torch.no_grad()
def test_everything_else_that_matters_counts(length, made):
    layer, x = given(length=length)
    layer(x)
    uses = [
        lambda: layer(x, dt_scale=2.0),
        lambda: layer(x[:, :-5] if length == SHORT else torch.randn(20, 3000, 4)),  # another length, another chunk
        lambda: layer.double()(x.double()),
        lambda: layer.to(torch.float32)(x),
    ]
    for use in uses:
        before = len(made)
        use()
        assert len(made) == before + 1
    torch.set_num_threads(torch.get_num_threads() + 1)  # sums may have another order
    try:
        layer(x)
    finally:
        torch.set_num_threads(torch.get_num_threads() - 1)
    assert len(made) == len(uses) + 2


@torch.no_grad()
def test_options_of_the_ssm_count(made):
    layer, x = given(S4D, real_part="relu")
    layer(x)
    layer.ssm.real_part = "softplus"
    assert torch.equal(layer(x), uncached(layer, x))
    dss, _ = given(DSS, softmax_length=20)
    before = dss(x)
    dss.ssm.softmax_length = 30
    assert not torch.equal(dss(x), before)


@torch.no_grad()
def test_parametrizations_and_other_parameters_for_a_call(made):
    layer, x = given(S4D)
    wanted = layer(x)
    other = {name: 1.1 * p for name, p in layer.named_parameters()}
    changed = functional_call(layer, other, x)
    assert not torch.equal(changed, wanted)
    assert torch.equal(layer(x), wanted)

    class Twice(nn.Module):
        factor = 2.0

        def forward(self, value):
            return self.factor * value

    parametrize.register_parametrization(layer.ssm, "C", Twice())
    doubled = layer(x)
    assert not torch.equal(doubled, wanted)
    layer.ssm.parametrizations.C[0].factor = 1.0
    assert torch.equal(layer(x), wanted)


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_only_in_evaluation_without_gradients(length, made):
    layer, x = given(length=length)
    layer(x)
    assert made == []  # with gradients
    with torch.no_grad():
        layer(x)
        assert len(made) == 1
        layer.train()(x)
        assert len(made) == 1
        assert layer.ssm not in memo._memos  # training needs the memory
        layer.eval()(x)
    assert layer(x).requires_grad
    assert len(made) == 2


def test_inference_mode_is_kept_apart(made):
    layer, x = given(length=LONG)
    with torch.inference_mode():
        wanted = layer(x)
    with torch.no_grad():
        y = layer(x)
    assert torch.equal(y, wanted)
    assert not y.is_inference()
    assert len(made) == 2


def test_nothing_is_left_in_the_module():
    layer, x = given()
    before = set(layer.state_dict()), set(layer.ssm.__dict__), len(pickle.dumps(layer))
    with torch.no_grad():
        wanted = layer(x)
        assert (set(layer.state_dict()), set(layer.ssm.__dict__), len(pickle.dumps(layer))) == before
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert twin.ssm not in memo._memos
            assert torch.equal(twin(x), wanted)
    count = len(memo._memos)
    del twin, layer
    gc.collect()
    assert len(memo._memos) < count


@torch.no_grad()
def test_no_more_than_so_many_bytes(made, monkeypatch):
    layer, x = given()
    monkeypatch.setattr(memo, "LARGEST", 4 * 8 * 13 - 1)  # the spectrum: 4 heads, 13 complex64 numbers
    layer(x)
    layer(x)
    assert len(made) == 2
    monkeypatch.setattr(memo, "LARGEST", 4 * 8 * 13)
    layer(x)
    layer(x)
    assert len(made) == 3


@torch.no_grad()
def test_a_value_that_changes_meanwhile_is_not_kept(made, monkeypatch):
    """As by a thread that trains."""
    layer, x = given()
    original, before = short._with_skip, layer.D.clone()

    def changing(*arguments):
        layer.D.data.add_(1)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(short, "_with_skip", changing)
        layer(x)
    layer.D.copy_(before)
    assert torch.equal(layer(x), uncached(layer, x))


def test_threads():
    """Two lengths in turn, whose set-ups replace each other."""
    layer, x = given()
    inputs = [x, x[:, :7]]
    with torch.no_grad():
        wanted = [uncached(layer, one) for one in inputs]
    wrong = []

    def work(which):
        with torch.no_grad():
            for _ in range(50):
                if not torch.equal(layer(inputs[which]), wanted[which]):
                    wrong.append(which)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@torch.no_grad()
def test_a_structure_of_a_user_is_not_kept(made):
    """It may depend on more than the tensors that are known."""
    layer, x = given(S4D, discretization="zoh")
    own = type("Own", (type(layer.ssm.structure()),), {})

    def structure(dt_scale=1.0, length=None):
        ssm = type(layer.ssm).structure(layer.ssm, dt_scale, length)
        ssm.__class__ = own
        return ssm

    layer.ssm.structure, layer.ssm.modal = structure, lambda dt_scale: None
    layer(x)
    layer(x)
    assert made == []


@torch.no_grad()
def test_compiled_code_does_not_use_it(made):
    layer, x = given(length=LONG)
    torch.compile(layer, backend="eager")(x)
    assert made == []
    assert engine.remembered is memo.remembered
