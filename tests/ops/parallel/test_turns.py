"""Ranks that run in threads of this process: layers, whole models and mistakes."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from statespan import S4D, sequence_parallel
from statespan.models import Forecaster, ForecasterConfig
from statespan.nn import Backbone, SequenceLayer, UNet
from statespan.nn.irregular import with_gaps
from tests.nn.make import LAYER_IDS, LAYERS
from tests.ops.parallel.cases import Case, assert_near_one_process, assert_same, draw, joined, results
from tests.ops.parallel.stacks import LENGTHS, MODELS, trained
from tests.ops.parallel.turns import run


def compare(case):
    made = case.make()
    got = joined(run(len(case.sizes), lambda shards: results(case, made, shards)))
    assert_near_one_process(got, case, made)


@pytest.mark.parametrize("mode", ["causal", "bidirectional", "prefill"])
@pytest.mark.parametrize("layer", range(len(LAYERS)), ids=LAYER_IDS)
def test_shards_of_a_layer(layer, mode):
    """Three uneven shards, the second of one sample, with padding: outputs, states and every gradient."""
    sizes = (37, 1, 20)
    compare(Case(layer, layer, sizes, bidirectional=mode == "bidirectional", prefill=mode == "prefill", padded=True))


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10_000, 11_000))
def test_random_shards(number):
    compare(draw(number, 2 + number % 5))


@pytest.mark.parametrize("padding", LENGTHS)
@pytest.mark.parametrize("name", MODELS)
def test_whole_models(name, padding):
    """Pools, heads, losses and batch statistics: the loss, every gradient and the running statistics."""
    made, lengths = MODELS[name](), LENGTHS[padding]
    wanted = trained(name, made, lengths)
    for found in run(4, lambda shards: trained(name, made, lengths, shards)):
        assert_same(found, wanted, 1e-11, name)


def test_a_long_sequence():
    """Many chunks a shard, with lengths that are no powers of two."""
    compare(Case(5, 0, (9001, 3000), bidirectional=True))
    compare(Case(6, 4, (5000, 4001), prefill=True))


def test_shard_and_gather_are_inverse():
    x = torch.randn(2, 11, 3, dtype=torch.float64)
    w = torch.randn(3, 2, 11, 3, dtype=torch.float64)  # one for each rank

    def work(shards):
        part = shards.shard(x).clone().requires_grad_()
        whole = shards.gather(part)
        (whole * w[shards.ranks.rank]).sum().backward()
        return whole.detach(), part.grad

    wholes, gradients = zip(*run(3, work))
    assert all(torch.equal(whole, x) for whole in wholes)
    assert [gradient.shape[1] for gradient in gradients] == [4, 4, 3]
    assert (torch.cat(gradients, 1) - w.sum(0)).abs().max() <= 1e-14


@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_empty_batch(bidirectional):
    layer = S4D(4, 8, bidirectional=bidirectional)
    for y in run(2, lambda shards: layer(shards.shard(torch.ones(0, 50, 4)))):
        assert y.shape == (0, 25, 4)


def test_bytes_do_not_depend_on_the_length():
    layer = S4D(8, 16, bidirectional=True)

    def work(total, shards):
        layer(shards.shard(torch.randn(2, total, 8))).sum().backward()
        return shards.ranks.sent

    short, long = (run(4, lambda shards, n=total: work(n, shards)) for total in (10, 10_000))
    # two directions of float64 states (2, 8, 16) to three others, and back
    assert short == long == [2 * (3 * 2 * 2 * 8 * 16 * 8)] * 4


def test_tied_dropout_drops_the_same_features_in_every_shard():
    layer = S4D(64, 2, dropout=0.5, mix=None, activation=None)
    outputs = run(2, lambda shards: layer(shards.shard(torch.randn(1, 20, 64))).detach())
    dropped = [(y == 0).all(1) for y in outputs]
    assert torch.equal(*dropped)
    assert 10 < dropped[0].sum() < 54


def test_activation_checkpointing_inside_the_block():
    """The forward pass that is repeated in the backward pass makes its exchanges again."""
    layer, x = S4D(4, 8, dtype=torch.float64), torch.randn(2, 31, 4, dtype=torch.float64)
    layer(x).sin().sum().backward()
    wanted, weights = layer.ssm.C.grad, copy.deepcopy(layer)

    def work(shards):
        own = copy.deepcopy(weights)
        own.zero_grad()
        checkpoint(own, shards.shard(x), use_reentrant=False).sin().sum().backward()
        shards.reduce_gradients(own)
        return 3 * own.ssm.C.grad

    for found in run(3, work):
        assert (found - wanted).abs().max() <= 1e-11 * wanted.abs().max()


class Reversed(SequenceLayer):
    d_model = d_output = 4

    def forward(self, x, *, lengths=None, dt_scale=1.0):
        return x.flip(1)


def unet():
    return UNet(4, lambda width: [S4D(width, 4)], pools=(2,))


def forecaster():
    return Forecaster(ForecasterConfig(d_input=4, d_output=1, horizon=2, d_model=4, n_layers=1))


@pytest.mark.parametrize(
    ("make", "name"),
    [(lambda: Backbone([Reversed()]), "Reversed"), (unet, "Resampled"), (forecaster, "forward of a forecaster")],
)
def test_what_cannot_run_on_shards(make, name):
    model, x = make(), torch.randn(2, 8, 4)
    model(x)
    with pytest.raises(TypeError, match=f"{name} cannot run on shards of a sequence: use it outside of seq"):
        run(2, lambda shards: model(x))


def test_irregular_times_cannot_run_on_shards():
    with pytest.raises(TypeError, match="with_gaps cannot run on shards"):
        run(2, lambda shards: with_gaps(S4D(4), torch.randn(1, 5, 4), torch.ones(1, 5)))


def test_mistakes():
    x = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match=r"at least one sample on each rank, got lengths \[1, 1, 1, 0\]"):
        run(4, lambda shards: shards.shard(x))
    with pytest.raises(ValueError, match=r"at least one sample on each rank, got lengths \[0, 1\]"):
        run(2, lambda shards: S4D(4)(x[:, : shards.ranks.rank]))
    with pytest.raises(ValueError, match=r"sizes must be 2 lengths with the sum 3, got \[1, 1\]"):
        run(2, lambda shards: shards.shard(x, sizes=(1, 1)))

    def two_lengths(shards):
        S4D(4)(x)
        S4D(4)(x[:, :2])

    with pytest.raises(ValueError, match="x must have the length of this rank's shard, 3, got 2"):
        run(2, two_lengths)
    with pytest.raises(ValueError, match="lengths must be"):
        run(2, lambda shards: S4D(4)(x, lengths=[7, 1]))
    with pytest.raises(RuntimeError, match="init_process_group first"), sequence_parallel():
        pass
    with pytest.raises(ValueError, match="prefill needs a causal layer"):
        run(2, lambda shards: S4D(4, bidirectional=True).prefill(x))
