"""Every path, and the plain twin of every kernel of the engine, against the recurrence itself."""

import pytest
import torch

from statespan.ops import apply, chunked, use_path
from statespan.ops.ssm.naive import naive
from tests.ops.make import assert_near
from tests.ssm.make import make

KINDS = ["diagonal-trained bilinear", "dplr-trained bilinear", "dense-trained bilinear", "diagonal-trained foh",
         "dplr-trained foh"]  # fmt: skip


def drawn(kind, channels):
    name, rule = kind.split()
    ssm = make(name, 4, rule, H=2, channels=channels)
    return ssm, torch.randn(2, 37, 2, dtype=torch.float64), torch.randn(1, 2, dtype=torch.float64)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["chunks", "fft", "triton"])
def test_every_path(path, kind, bidirectional):
    if path == "triton":
        pytest.importorskip("triton")
        if torch.cuda.is_available():
            pytest.skip("a GPU's kernels have no float64")
    ssm, u, D = drawn(kind, 2 if bidirectional else 1)
    wanted = naive(ssm, u, D, bidirectional=bidirectional)
    with use_path(path):
        assert_near(apply(ssm, u, D, bidirectional=bidirectional), wanted, 1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_the_readable_chunk_view(kind):
    ssm, u, _ = drawn(kind, 2)
    assert_near(chunked(ssm, u, chunk=8)[0], naive(ssm, u), 1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_against_the_scan_of_the_structure(kind):
    ssm, u, _ = drawn(kind, 2)
    assert_near(naive(ssm, u), ssm.scan(u)[0], 1e-12)
