"""The readable chunk view, both ways and with padding, against the convolution of each sequence alone."""

import pytest
import torch

from statespan.ops import chunked, fftconv
from tests.ops.make import assert_near
from tests.ssm.make import make

pytestmark = pytest.mark.share(3)

KINDS = ["diagonal-trained", "diagonal-legs", "dplr-trained", "dplr-trained2", "dense-trained"]
LENGTHS = [50, 1, 0, 33, 32]
kinds = pytest.mark.parametrize("kind", KINDS)
chunks = pytest.mark.parametrize("chunk", [1, 7, 16, 64])


def truth(ssm, u, bidirectional):
    """y of whole sequences, (B, L, K, H)."""
    kernels = ssm.kernel(u.shape[1])
    return fftconv(u, *kernels.chunk(2)) if bidirectional else fftconv(u, kernels)


@pytest.mark.parametrize("length", [1, 16, 50])
@chunks
@kinds
def test_both_ways(kind, chunk, length):
    """The state is that of the recurrence from the left; the first one reaches the channels that look back only."""
    ssm = make(kind, 6, "bilinear", H=3, channels=4)
    u, start = torch.randn(2, length, 3, dtype=torch.float64), torch.randn(2, 3, 6, dtype=torch.float64)
    y, state = chunked(ssm, u, chunk=chunk, bidirectional=True)
    assert_near(y, truth(ssm, u, True), 1e-11)
    assert_near(state, ssm.scan(u)[1], 1e-11)
    y, state = chunked(ssm, u, start, chunk=chunk, bidirectional=True)
    echo = ssm.scan(torch.zeros_like(u), start)[0][:, :, :2]
    assert_near(y, truth(ssm, u, True) + echo, 1e-11)
    assert_near(state, ssm.scan(u, start)[1], 1e-11)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
@chunks
@kinds
def test_each_sequence_as_if_alone(kind, chunk, with_state, bidirectional):
    ssm = make(kind, 6, "zoh", H=3, channels=2)
    u = torch.randn(len(LENGTHS), 50, 3, dtype=torch.float64)
    start = torch.randn(len(LENGTHS), 3, 6, dtype=torch.float64) if with_state else None
    padded = u.clone()
    for b, length in enumerate(LENGTHS):
        padded[b, length:] = torch.nan  # what stands in the padding must not matter
    lengths = torch.tensor(LENGTHS)
    y, state = chunked(ssm, padded, start, chunk=chunk, bidirectional=bidirectional, lengths=lengths)
    assert y.shape == (len(LENGTHS), 50, 1 if bidirectional else 2, 3)
    for b, length in enumerate(LENGTHS):
        alone, first = u[b : b + 1, :length], None if start is None else start[b : b + 1]
        assert (y[b, length:] == 0).all()
        wanted, end = ssm.scan(alone, first)
        if length:
            if bidirectional:
                echo = ssm.scan(torch.zeros_like(alone), first)[0][:, :, :1]
                wanted = truth(ssm, alone, True) + echo
            assert_near(y[b : b + 1, :length], wanted, 1e-11, f"sequence {b}")
        assert_near(state[b : b + 1], end, 1e-11, f"state {b}")


@kinds
def test_gradients_of_padded_sequences(kind):
    """Both ways and with lengths, as the sum of what each sequence gives alone."""
    ssm = make(kind, 4, "bilinear", channels=2)
    u = torch.randn(len(LENGTHS), 50, 2, dtype=torch.float64, requires_grad=True)
    C = ssm.C.clone().requires_grad_()
    ssm.C = C
    weight = torch.randn(len(LENGTHS), 50, 1, 2, dtype=torch.float64)
    y, _ = chunked(ssm, u, chunk=16, bidirectional=True, lengths=torch.tensor(LENGTHS))
    got = torch.autograd.grad((y * weight).sum(), (u, C))
    total = sum(
        (truth(ssm, u[b : b + 1, :length], True) * weight[b : b + 1, :length]).sum()
        for b, length in enumerate(LENGTHS)
        if length
    )
    for one, other in zip(got, torch.autograd.grad(total, (u, C)), strict=True):
        assert_near(one, other, 1e-11)
