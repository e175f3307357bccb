"""The adaptive embedding and softmax against their definition over the whole vocabulary."""

import math

import pytest
import torch

from statespan import param_groups
from statespan.nn import AdaptiveTokens
from tests.nn.make import peak_error
from tests.nn.make_stack import check_gradients

f64 = torch.float64
V, D, EDGES = 40, 16, (0, 7, 20, 40)


@pytest.fixture
def tokens():
    tokens = AdaptiveTokens(V, D, cutoffs=(7, 20), div_val=4, dtype=f64)
    with torch.no_grad():
        for parameter in tokens.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return tokens


def embedding(tokens, token):
    """Row of the cluster's table, through the cluster's projection, times the root of D."""
    cluster = sum(token >= edge for edge in EDGES[1:-1])
    row = tokens.tables[cluster].weight[token - EDGES[cluster]]
    return tokens.projections[cluster].weight @ row * math.sqrt(D)


def probability(tokens, h, token):
    """P(cluster) · P(token | cluster), every softmax written out."""
    z = tokens.head.weight @ h
    scores = [tokens.tables[0].weight[i] @ z + tokens.bias[i] for i in range(EDGES[1])]
    scores += [tokens.clusters.weight[i] @ z + tokens.clusters.bias[i] for i in range(2)]
    first = torch.stack(scores).exp()
    first = first / first.sum()
    cluster = sum(token >= edge for edge in EDGES[1:-1])
    if cluster == 0:
        return first[token]
    low, high = EDGES[cluster], EDGES[cluster + 1]
    z = tokens.projections[cluster].weight.T @ h
    within = torch.stack([tokens.tables[cluster].weight[i] @ z + tokens.bias[low + i] for i in range(high - low)]).exp()
    return first[EDGES[1] + cluster - 1] * within[token - low] / within.sum()


def test_against_definition(tokens):
    x = torch.arange(V).view(2, 20)
    wanted = torch.stack([embedding(tokens, token) for token in range(V)]).view(2, 20, D)
    assert peak_error(tokens(x), wanted) <= 1e-14
    h = torch.randn(3, D, dtype=f64)
    wanted = torch.stack([torch.stack([probability(tokens, row, token) for token in range(V)]) for row in h])
    assert peak_error(tokens.log_probs(h).exp(), wanted) <= 1e-13
    torch.testing.assert_close(wanted.sum(-1), torch.ones(3, dtype=f64))


def test_losses_are_those_of_the_whole_softmax(tokens):
    h = torch.randn(2, 20, D, dtype=f64, requires_grad=True)
    parameters = [h, *tokens.parameters()]
    for y in (torch.arange(V).view(2, 20), torch.zeros(2, 20, dtype=torch.int64)):  # the second: clusters of no token
        weight = torch.randn(2, 20, dtype=f64)
        whole = -tokens.log_probs(h).gather(-1, y[..., None])[..., 0]
        losses = tokens.losses(h, y)
        assert peak_error(losses, whole) <= 1e-13
        got = torch.autograd.grad((losses * weight).sum(), parameters, materialize_grads=True)
        wanted = torch.autograd.grad((whole * weight).sum(), parameters, materialize_grads=True)
        for one, other in zip(got, wanted):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_losses_in_one_graph(tokens):
    torch._dynamo.reset()
    h, y = torch.randn(2, 20, D, dtype=f64), torch.randint(V, (2, 20))
    compiled = torch.compile(tokens.losses, backend="eager", fullgraph=True)
    assert peak_error(compiled(h, y), tokens.losses(h, y)) <= 1e-13


def test_start():
    """Nearly equal scores, features of moderate size, every parameter trained, tables and biases not decayed."""
    tokens = AdaptiveTokens(1000, 64, cutoffs=(100, 500))
    x = torch.arange(1000)
    features = tokens(x)
    assert (tokens.losses(features[:100], x[:100]).mean() - math.log(102)).abs() < 0.1
    assert 0.2 < features.std() < 0.3
    assert [table.embedding_dim for table in tokens.tables] == [64, 16, 4]
    check_gradients(tokens, tokens.losses(tokens(x), x.flip(0)))
    groups = {g["name"]: sum(p.numel() for p in g["params"]) for g in param_groups(tokens, 0.1, 0.1)}
    assert groups["no_decay"] == 100 * 64 + 400 * 16 + 500 * 4 + 1000 + 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cutoffs": ()}, "cutoffs must be at least one"),
        ({"cutoffs": (20, 7)}, "cutoffs must increase"),
        ({"cutoffs": (7, 40)}, "below vocabulary=40"),
        ({"cutoffs": (0, 7)}, "cutoffs must be an integer >= 1"),
        ({"cutoffs": (7, 20), "div_val": 5}, "div_val must leave each cluster at least one feature"),
    ],
)
def test_mistakes(options, words):
    with pytest.raises(ValueError, match=words):
        AdaptiveTokens(V, D, **options)
