"""Packed sequences give what the sequences give alone, or in a padded batch: outputs and every gradient."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from statespan import DSS, S4D, capture, packed
from statespan.nn import Backbone, SequenceLayer
from statespan.nn.capture.calls import Calls
from tests.nn.make import LAYER_IDS, LAYERS
from tests.ops.parallel.cases import BOUNDS, assert_same
from tests.ops.parallel.stacks import MODELS, batch
from tests.ops.parallel.turns import run

LENGTHS = (33, 0, 1, 150, 16, 17, 0)
ENDS = torch.tensor((0, *LENGTHS)).cumsum(0)


def outcome(layer, x, w, apply):
    layer, x = copy.deepcopy(layer), x.clone().requires_grad_()
    y = apply(layer, x)
    (y * w).sum().backward()
    return {"y": y.detach(), "x": x.grad} | {name: p.grad for name, p in layer.named_parameters()}


def together(layer, x):
    with packed(ENDS):
        return layer(x)


def alone(layer, x):
    return torch.cat([layer(part) for part in x.split(LENGTHS, 1) if part.shape[1]], 1)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("bidirectional", [False, True], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("number", range(len(LAYERS)), ids=LAYER_IDS)
def test_sequences_in_a_row(number, bidirectional, dtype):
    cls, options = LAYERS[number]
    layer = cls(4, 8, bidirectional=bidirectional, dtype=dtype, **options)
    x, w = torch.randn(2, 1, sum(LENGTHS), 4, dtype=dtype)
    assert_same(outcome(layer, x, w, together), outcome(layer, x, w, alone), BOUNDS[dtype], cls)


@pytest.mark.parametrize("name", MODELS)
def test_whole_models(name):
    """A packed row trains as the same sequences in a padded batch do, batch norms and pools included."""
    lengths, (x, y) = (47, 3, 21, 30), batch(name)
    mask = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]
    row, ends = x[mask][None], [0, *torch.tensor(lengths).cumsum(0).tolist()]

    def loss_of(model, *, is_packed):
        if name == "language":
            losses = model.token_losses(row, y[mask][None]) if is_packed else model.token_losses(x, y, lengths=lengths)
            return losses.sum() / sum(lengths)
        scores = model(row) if is_packed else model(x, lengths=lengths)
        return (scores - y).square().mean() if name == "first" else cross_entropy(scores, y)

    found = []
    made = MODELS[name]()
    for is_packed in (True, False):
        model = copy.deepcopy(made)
        if is_packed:
            with packed(ends):
                loss = loss_of(model, is_packed=True)
        else:
            loss = loss_of(model, is_packed=False)
        loss.backward()
        gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
        buffers = {f"{key} of the norms": value for key, value in model.named_buffers()}
        found.append({"loss": loss.detach()} | gradients | buffers)
    assert_same(*found, 1e-11, name)


def test_sequences_do_not_see_each_other():
    """Not even a NaN."""
    layer, x = S4D(4, 8, bidirectional=True), torch.randn(1, sum(LENGTHS), 4)
    y = together(layer, x)
    x[:, 40] = torch.nan
    spoiled = together(layer, x)
    around = slice(34, 184)
    assert spoiled[:, around].isnan().any()
    keep = torch.ones(x.shape[1], dtype=torch.bool)
    keep[around] = False
    assert torch.equal(spoiled[:, keep], y[:, keep])


@pytest.mark.parametrize("ends", [[0], [0, 0, 0]])
def test_no_samples(ends):
    with packed(ends):
        assert S4D(4, bidirectional=True)(torch.ones(1, 0, 4)).shape == (1, 0, 4)


def test_tied_dropout_draws_for_each_sequence():
    layer = S4D(64, 2, dropout=0.5, mix=None, activation=None)
    with packed([0, 20, 50]):
        y = layer(torch.randn(1, 50, 64))[0].detach()
    first, second = (y[:20] == 0), (y[20:] == 0)
    assert torch.equal(first.all(0), first.any(0))
    assert not torch.equal(first.all(0), second.all(0))


@pytest.mark.parametrize("before", [False, True])
def test_compiled_layers_run_uncompiled_inside(before):
    torch.compiler.reset()
    layer, x = S4D(4, 8, dtype=torch.float64), torch.randn(1, sum(LENGTHS), 4, dtype=torch.float64)
    compiled = torch.compile(layer, backend="eager", fullgraph=before)
    outside = layer(x)
    if before:
        assert (compiled(x) - outside).abs().max() <= 1e-12
    assert torch.equal(together(compiled, x), together(layer, x))
    assert (compiled(x) - outside).abs().max() <= 1e-12
    assert (together(layer, x) - outside).abs().max() > 1e-3


def test_captured_models_run_eagerly_inside(monkeypatch):
    layer, x = S4D(4, 8), torch.randn(1, sum(LENGTHS), 4)
    captured = capture(layer)
    monkeypatch.setattr(Calls, "__call__", lambda *_: pytest.fail("a graph would not know the sequences"))
    assert torch.equal(together(captured, x), together(layer, x))


class Rolled(SequenceLayer):
    d_model = d_output = 4
    runs_on_shards = True

    def forward(self, x, *, lengths=None, dt_scale=1.0):
        return x.roll(1, 1)


def test_mistakes():
    layer, x = S4D(4), torch.randn(1, 6, 4)
    for bad in ([1, 6], [0, 4, 3], [], [0, 2.5], [[0, 6]]):
        with pytest.raises(ValueError, match="cu_seqlens must be 0 and then whole numbers"), packed(bad):
            pass
    with packed([0, 6]):
        for work, name in (
            (lambda: layer.prefill(x), "prefill"),
            (lambda: layer(x, lengths=[3]), "lengths"),
            (lambda: Backbone([Rolled()])(x), "Rolled"),
        ):
            with pytest.raises(TypeError, match=f"{name} cannot run on packed sequences"):
                work()
        with pytest.raises(ValueError, match="lengths needs a fixed softmax_length"):
            DSS(4, softmax_length=None)(x)
    with packed([0, 5]), pytest.raises(ValueError, match="x must have the length 5 that cu_seqlens ends with, got 6"):
        layer(x)
    with pytest.raises(TypeError, match="packed cannot run on shards of a sequence"):
        run(2, lambda shards: together(layer, x))
