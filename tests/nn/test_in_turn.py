"""Shards of a sequence one after the other equal one pass, and store little for the backward pass."""

import pytest
import torch

from statespan import LRU, LSSL, S4, S4D
from statespan.models import LanguageConfig, LanguageModel
from statespan.nn import Backbone, FeedForward, in_turn
from tests.ops.make import assert_near
from tests.ops.parallel.turns import run

WIDE = {"dtype": torch.float64}


def backbone():
    return Backbone([S4(6, 8, **WIDE), FeedForward(6, **WIDE), S4D(6, 8, **WIDE), LRU(6, 8, **WIDE)], **WIDE)


def gradients(module, x, y, after):
    leaves = [x, *module.parameters()]
    loss = y.sin().sum() + sum(state.sin().sum() for state in torch.utils._pytree.tree_leaves(after))
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("lengths", [None, (61, 20, 0)], ids=["whole", "padded"])
@pytest.mark.parametrize("make", [backbone, lambda: LSSL(6, 8, **WIDE)], ids=["backbone", "LSSL"])
def test_shards_in_turn_equal_one_pass(make, lengths):
    module = make()
    lengths = None if lengths is None else torch.tensor(lengths)
    x = torch.randn(3, 61, 6, **WIDE, requires_grad=True)
    y, after = module.prefill(x, lengths=lengths)
    wanted = gradients(module, x, y, after)
    for shards in (1, 4, 61):
        z, end = in_turn(module, x, shards=shards, lengths=lengths)
        assert_near(z, y, 1e-12)
        for got, state in zip(torch.utils._pytree.tree_leaves(end), torch.utils._pytree.tree_leaves(after)):
            assert_near(got, state, 1e-12)
        for got, gradient in zip(gradients(module, x, z, end), wanted):
            assert_near(got, gradient, 1e-11)


def test_tokens_in_turn():
    model = LanguageModel(LanguageConfig(vocabulary=20, d_model=8, n_layers=1), **WIDE)
    x = torch.randint(20, (2, 33))
    assert_near(in_turn(model, x, shards=5)[0], model(x), 1e-12)


def test_truncated():
    """The numbers are those of one pass; the gradients are those of the shards, each from a state that is given."""
    module, x = backbone(), torch.randn(2, 60, 6, **WIDE, requires_grad=True)
    y, after = in_turn(module, x, shards=4, truncate=True)
    assert_near(y, module(x), 1e-12)
    found, state, wanted = gradients(module, x, y, after), None, 0
    for number, part in enumerate(x.split(15, 1)):
        y, state = module.prefill(part, state)
        end = state if number == 3 else ()
        wanted = [have + new for have, new in zip(wanted or len(found) * [0], gradients(module, x, y, end))]
        state = torch.utils._pytree.tree_map(torch.Tensor.detach, state)
    for got, gradient in zip(found, wanted):
        assert_near(got, gradient, 1e-11)
    whole = gradients(module, x, *module.prefill(x))
    assert (found[0] - whole[0]).abs().max() > 1e-3 * whole[0].abs().max()


def test_little_is_stored():
    """Only inputs and states: an eighth of what one pass stores, and x once."""
    module, x = backbone(), torch.randn(1, 4096, 6, **WIDE, requires_grad=True)

    def stored(work):
        storages = {}

        def count(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            held = work()
        del held
        return sum(storages.values())

    whole = stored(lambda: module.prefill(x))
    assert stored(lambda: in_turn(module, x, shards=16)) <= whole / 8


def test_mistakes():
    x = torch.randn(1, 5, 6)
    with pytest.raises(ValueError, match="shards must be at most the length of x, 5, got 6"):
        in_turn(S4D(6), x, shards=6)
    with pytest.raises(ValueError, match="shards must be"):
        in_turn(S4D(6), x, shards=0)
    with pytest.raises(ValueError, match="prefill needs a causal layer"):
        in_turn(S4D(6, bidirectional=True), x, shards=2)
    with pytest.raises(TypeError, match="in_turn cannot run on shards of a sequence"):
        run(2, lambda shards: in_turn(S4D(6), x, shards=2))
