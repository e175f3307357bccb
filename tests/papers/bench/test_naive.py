"""The naive kernels are the library's kernels."""

from functools import partial

import pytest
import torch

from statespan import LSSL, S4, S4D
from statespan.papers.bench import naive

KERNELS = {
    "vandermonde": (S4D, partial(naive.vandermonde, dtype=torch.complex128), 1e-9),
    "vandermonde in complex64": (S4D, naive.vandermonde, 1e-3),
    "cauchy": (S4, partial(naive.cauchy, dtype=torch.complex128), 1e-9),
    "cauchy in complex64": (S4, naive.cauchy, 1e-5),
    "krylov": (LSSL, partial(naive.krylov, dtype=torch.float64), 1e-12),
    "krylov in float32": (LSSL, naive.krylov, 1e-5),
}


@pytest.mark.parametrize("length", [1, 2, 101, 1024])
@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name, length):
    kind, kernel, tolerance = KERNELS[name]
    layer = kind(6, 16, dtype=torch.float64, channels=2)
    got, want = kernel(layer, length), layer.structure().kernel(length)
    assert got.shape == want.shape == (2, 6, length)
    assert (got - want).abs().max() <= tolerance * want.abs().max()


@pytest.mark.parametrize("name", ["vandermonde", "cauchy in complex64", "krylov in float32"])
def test_layer_and_its_gradients(name):
    kind, kernel, _ = KERNELS[name]
    layer = kind(4, 16, mix="glu")
    x = torch.randn(2, 300, 4, requires_grad=True)
    dy = torch.randn(2, 300, 4)
    results = []
    for forward in (naive.forward_with(kernel), lambda layer, x: layer(x)):
        y = forward(layer, x)
        results.append((y, torch.autograd.grad(y, x, dy)[0]))
    for got, want in zip(*results):
        assert (got - want).abs().max() < 1e-5 * want.abs().max()


def test_krylov_matrix_is_held_whole():
    """Its memory is that of (H, N, L) numbers, which the library's own kernel never has."""
    from statespan.papers.bench.measure import measure_memory

    layer, length = LSSL(4, 8), 4096
    whole = 4 * 8 * length * 4  # bytes
    with torch.no_grad():
        naive_peak = measure_memory(lambda: naive.krylov(layer, length), torch.device("cpu"))
        own_peak = measure_memory(lambda: layer.structure().kernel(length), torch.device("cpu"))
    assert naive_peak > whole
    assert own_peak < whole
