"""The API's numbers are the library's."""

import json

import numpy as np
import pytest
import torch

from statespan import S4D, plot
from statespan.plot.source import fresh, kernel_of, step_sizes
from statespan.ssm.discretize import RULES
from statespan.view import Api
from statespan.view.fields import RefusedError
from statespan.view.layers import CHOICES, curves, discretized
from tests.view.serve import trained

CASES = [(layer, init) for layer, choice in CHOICES.items() for init in choice["init"] or (None,)]


def ask(content, api=None):
    answer = (api or Api()).answer("/api/curves", "application/json", json.dumps(content).encode())
    return json.loads(json.dumps(answer, allow_nan=False))  # what the page reads


@pytest.mark.parametrize(("layer", "init"), CASES)
def test_curves_of_an_untrained_layer_are_those_of_its_plots(layer, init):
    options = {} if init is None else {"init": init}
    rules = CHOICES[layer]["discretization"]
    if rules:
        options["discretization"] = rules[-1]
    answer = ask({"layer": layer, "d_state": 6, "length": 33, "seed": 3, **options})
    parts = fresh(layer, {"d_model": 16, "d_state": 6, **options}, seed=3)
    for kind, key in (("kernels", "kernels"), ("response", "decibels")):
        lines = getattr(plot, kind)(parts, length=33).axes[0].lines
        assert len(lines) == len(answer[key]) > 1
        for line, row in zip(lines, answer[key]):
            row = np.array(row)
            wanted = row / np.abs(row).max() if kind == "kernels" else row[1:]
            np.testing.assert_allclose(line.get_ydata(), wanted, atol=1e-12)
    dots = plot.eigenvalues(parts, head=answer["heads"][0]).axes[0].lines[0]
    np.testing.assert_array_equal(np.array(answer["A"][0]), np.stack([dots.get_xdata(), dots.get_ydata()], 1))
    np.testing.assert_array_equal(answer["dt"], step_sizes(parts[0])[answer["heads"]])


@pytest.mark.parametrize("rule", RULES)
def test_discrete_eigenvalues_are_those_of_the_dense_matrix(rule):
    """Of LSSL, whose Ā is a dense matrix that the library computes by other means."""
    part = fresh("lssl", {"d_model": 2, "d_state": 4, "init": "fout", "discretization": rule})[0]
    structure = part.layer.structure()
    A = torch.linalg.eigvals(structure.A[1].double())
    dense, _ = RULES[rule](structure.A, structure.B, structure.dt)
    found = discretized(A, structure.dt[1].expand(4), rule)
    wanted = torch.linalg.eigvals(dense[1])
    assert (found[:, None] - wanted).abs().amin(1).max() < 1e-7  # fout has a double eigenvalue at 0
    answer = curves(part, 8, head=1)
    assert {tuple(pair) for pair in answer["discrete"][0]} <= {(z.real, z.imag) for z in found.tolist()}


def test_scaled_modes_are_those_of_the_initialization_s_own_option():
    options = {"layer": "s4d", "init": "lin", "d_state": 8, "length": 50, "dt_min": 0.01, "dt_max": 0.01}
    scaled = ask({**options, "imag_scale": 0.5, "real_scale": 4.0})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = S4D(16, 8, init="lin", init_options={"imag_scale": 0.5}, dt_min=0.01, dt_max=0.01)
    A = np.array(scaled["A"][0])
    np.testing.assert_allclose(A[:, 0], -2.0, rtol=1e-6)
    np.testing.assert_allclose(A[:, 1], own.structure().A[0].imag.detach(), rtol=1e-6)
    with torch.no_grad():
        own.ssm.A_real.fill_(np.log(2.0))
    kernel = own.structure().kernel(50)[0].detach()
    for row, head in zip(scaled["kernels"], scaled["heads"]):
        np.testing.assert_allclose(row, kernel[head], atol=1e-5 * kernel[head].abs().max())
    np.testing.assert_allclose(scaled["dt"], 0.01, rtol=1e-6)


def test_a_layer_of_a_model_at_another_sampling_rate():
    api = Api(trained("digits-s4d"), "digits-s4d")
    answer = ask({"part": 1, "head": 5, "dt_scale": 2.5, "length": 70}, api)
    part = api.parts[1]
    np.testing.assert_array_equal(answer["kernels"], kernel_of(part, 70, dt_scale=2.5)[0, [5]])
    np.testing.assert_array_equal(answer["dt"], 2.5 * step_sizes(part)[[5]])
    assert answer["heads"] == [5]
    assert len(ask({"part": 0, "head": None}, api)["heads"]) == 4
    about = api.setup({})["model"]
    assert about["names"] == [str(n) for n in range(10)]
    assert (about["parts"], about["amplitude"], about["offset"]) == (
        [{"name": "layer 1", "heads": 32}, {"name": "layer 2", "heads": 32}],
        16.0,
        0.0,
    )


MISTAKES = {
    "a misspelt field": ({"lenght": 3}, "'lenght' is not a field of this request; did you mean length?"),
    "a misspelt layer": ({"layer": "s4e"}, "layer must be one of s4d, s4, dss, lssl, s5, lru, got 's4e'; did you"),
    "an initialization of another layer": ({"layer": "s4", "init": "lin"}, "init must be one of legs, legt, fout"),
    "an odd state": ({"d_state": 7}, "d_state must be even, got 7"),
    "a huge state": ({"d_state": 10**9}, "d_state must be a whole number from 2 to 256, got 1000000000"),
    "a long kernel": ({"length": 4097}, "length must be a whole number from 2 to 4096, got 4097"),
    "true for a number": ({"length": True}, "length must be a whole number"),
    "a step of 0": ({"dt_min": 0}, "dt_min must be a number from 0.0001 to 1, got 0"),
    "steps in disorder": ({"dt_min": 0.5}, "dt_min must be at most dt_max=0.1, got 0.5"),
    "a ring inside out": ({"layer": "lru", "r_min": 0.9, "r_max": 0.5}, "r_min must be at most r_max=0.5, got 0.9"),
    "an option LRU has not": ({"layer": "lru", "init": "lin"}, "init is not an option of lru"),
    "scales of a dense matrix": ({"layer": "lssl", "imag_scale": 2}, "are for s4d, s4, dss, s5, got lssl"),
    "a model's option": ({"dt_scale": 2}, "dt_scale is for layers of a model"),
    "no model": ({"part": 0}, "there is no model: name one"),
    "a seed below 0": ({"seed": -1}, "seed must be a whole number from 0 to 2147483647, got -1"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    content, said = MISTAKES[name]
    with pytest.raises(RefusedError) as caught:
        ask(content)
    assert said in str(caught.value)
    assert caught.value.status == 400
