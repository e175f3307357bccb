"""Pools and heads, over whole sequences and as they come in."""

import pytest
import torch
from torch.nn.functional import gelu

from statespan.nn import PairHead, SequenceHead, SequencePool
from tests.nn.make_stack import check_gradients

f64 = torch.float64
LENGTHS = [9, 1, 0, 6]
DEFINITIONS = {
    "mean": lambda x: x.sum(0) / max(len(x), 1),
    "last": lambda x: x[-1] if len(x) else torch.zeros(4, dtype=f64),
    "first": lambda x: x[0] if len(x) else torch.zeros(4, dtype=f64),
}


@pytest.mark.parametrize("mode", DEFINITIONS)
def test_pool(mode):
    pool, x = SequencePool(4, mode), torch.randn(4, 9, 4, dtype=f64)
    definition = DEFINITIONS[mode]
    torch.testing.assert_close(pool(x), torch.stack([definition(row) for row in x]))
    wanted = torch.stack([definition(row[:n]) for row, n in zip(x, LENGTHS)])
    torch.testing.assert_close(pool(x, lengths=LENGTHS), wanted)
    # in pieces of unequal length, one of them empty
    state, pieces = pool.initial_state(4), [[2, 1, 0, 5], [0, 0, 0, 0], [7, 0, 0, 1]]
    for lengths in pieces:
        start = [0, 0, 0, 0] if lengths is pieces[0] else [2, 1, 0, 5]
        piece = torch.stack([torch.cat([row, row])[s : s + 9] for row, s in zip(x, start)])
        y, state = pool.prefill(piece, state, lengths=lengths)
    torch.testing.assert_close(y, wanted)
    assert state[1].tolist() == LENGTHS
    y, _ = pool.prefill(x[:, :0], state)
    torch.testing.assert_close(y, wanted)
    step, state = pool.stepper(), pool.initial_state(4)
    for t in range(9):
        y, state = step(x[:, t], state)
        torch.testing.assert_close(y, torch.stack([definition(row[: t + 1]) for row in x]))


def test_a_long_mean_in_half_precision():
    x = torch.ones(1, 5000, 4, dtype=torch.bfloat16) * 0.3
    pool = SequencePool(4)
    assert (pool(x) == x[0, 0]).all()
    assert pool(x, lengths=[4999]).dtype == torch.bfloat16


def test_sequence_head():
    head, x = SequenceHead(4, 3, "last", dtype=f64), torch.randn(2, 9, 4, dtype=f64)
    wanted = x[:, -1] @ head.linear.weight.T + head.linear.bias
    torch.testing.assert_close(head(x), wanted)
    _, state = head.prefill(x[:, :8])
    y, _ = head.stepper()(x[:, 8], state)
    torch.testing.assert_close(y, wanted)


def test_pair_head():
    head, x = PairHead(4, 3, dtype=f64), torch.randn(6, 9, 4, dtype=f64)
    y = head(x, lengths=[9, 4, 1, 2, 9, 3])
    u, v = x[1, :4].mean(0), x[4].mean(0)
    hidden = gelu(head.inner.weight @ torch.cat([u, v, u - v, u * v]) + head.inner.bias)
    torch.testing.assert_close(y[1], head.outer.weight @ hidden + head.outer.bias)
    assert head.inner.weight.shape == (4, 16)
    check_gradients(head, y)
    with pytest.raises(ValueError, match="even number of sequences, got 5"):
        head(x[:5])


def test_mistakes():
    with pytest.raises(ValueError, match=r"pool.*'max'"):
        SequenceHead(4, 3, "max")
    with pytest.raises(ValueError, match="d_output"):
        SequenceHead(4, 0)


@pytest.mark.parametrize("cls", [SequenceHead, PairHead])
def test_answers_have_the_precision_of_the_parameters(cls):
    """Of features in 16 bits, under autocast: to the bit what float32 gives, compiled, in pieces and in steps too."""
    head, x = cls(8, 2), torch.randn(4, 30, 8).bfloat16()
    wanted = head(x.float(), lengths=[30, 7, 1, 20])
    compiled = torch.compile(head, backend="eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        for how in (head, compiled):
            got = how(x, lengths=[30, 7, 1, 20])
            assert got.dtype == torch.float32
            assert torch.equal(got, wanted)
        _, state = head.prefill(x[:, :29])
        y, _ = head.stepper()(x[:, 29], state)
        assert y.dtype == head.prefill(x)[0].dtype == torch.float32
        torch.testing.assert_close(y, head(x.float()), atol=1e-6, rtol=1e-6)
        loss = head(x).square().sum()
    (gradient,) = torch.autograd.grad(loss, [next(head.parameters())])
    (exact,) = torch.autograd.grad(head(x.float()).square().sum(), [next(head.parameters())])
    assert torch.equal(gradient, exact)
    assert cls(8, 2, dtype=torch.bfloat16)(x).dtype == torch.bfloat16
