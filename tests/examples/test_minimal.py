"""S4D and S4 on one page: they equal the library, and their own checks can fail."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    return page


@pytest.mark.parametrize(("name", "lines"), [("s4d_minimal", 6), ("s4_minimal", 3)])
def test_the_page_equals_the_library(name, lines, capsys):
    load(name).main()
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == lines
    for line in shown:
        assert "statespan.S4" in line
        differences = [float(number) for number in re.findall(r" (\de[-+]\d+)", line)]
        assert len(differences) == 2
        assert max(differences) < 1e-9


@pytest.mark.parametrize(
    ("name", "function", "change", "message"),
    [
        ("s4d_minimal", "discretize", lambda A_bar, B_bar: (A_bar, 1.001 * B_bar), "statespan.S4D differ"),
        ("s4d_minimal", "vandermonde_kernel", lambda K: 1.001 * K, "the recurrence and the convolution differ"),
        ("s4d_minimal", "init_A", lambda A: A + 0.001j, "not close"),
        ("s4_minimal", "discrete_DPLR", lambda A_bar, B_bar: (A_bar, 1.001 * B_bar), "differ"),
        ("s4_minimal", "kernel_DPLR", lambda K: 1.001 * K, "the recurrence and the convolution differ"),
        ("s4_minimal", "cauchy", lambda k: 1.01 * k, "the recurrence and the convolution differ"),
        ("s4_minimal", "causal_convolution", lambda y: y.roll(1, -1), "the recurrence and the convolution differ"),
        ("s4_minimal", "make_NPLR_HiPPO", lambda A, P, B: (A, 1.001 * P, B), "not close"),
    ],
)
def test_a_wrong_formula_is_noticed(name, function, change, message, monkeypatch):
    page = load(name)
    right = getattr(page, function)

    def wrong(*arguments):
        result = right(*arguments)
        return change(*result) if isinstance(result, tuple) else change(result)

    monkeypatch.setattr(page, function, wrong)
    with pytest.raises(AssertionError, match=message):
        page.main()


def test_the_pages_train():
    """Every parameter has a gradient, so that a reader can start from them."""
    for name in ("s4d_minimal", "s4_minimal"):
        page = load(name)
        layer = page.S4D(4, 8) if name == "s4d_minimal" else page.S4(4, 8)
        layer = layer.double()
        layer(torch.randn(2, 20, 4, dtype=torch.float64)).square().sum().backward()
        for parameter in layer.parameters():
            assert parameter.grad is not None
            assert float(parameter.grad.abs().max()) > 0
