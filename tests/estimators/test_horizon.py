"""The forecasting network alone: what its mask hides, what its centre takes off, which marks it reads."""

import dataclasses

import pytest
import torch

from statespan.estimators.horizon import Horizon, HorizonConfig

CONFIG = HorizonConfig(
    columns=2, context=20, horizon=6, d_marks=3, quantiles=1, centre="last", joint=False, masked=False,
    options={"d_model": 8, "n_layers": 2, "d_state": 8, "layer": "s4d"},
)  # fmt: skip
joint = pytest.mark.parametrize("joint", [False, True])


def network(**changes):
    torch.manual_seed(0)
    return Horizon(dataclasses.replace(CONFIG, **changes)).eval().requires_grad_(False)


@joint
@pytest.mark.parametrize("centre", ["last", "mean", "none"])
def test_what_is_missing_is_not_read(centre, joint):
    """Whatever stands in its place; but for the last row of a window, which is where the forecast starts."""
    model = network(masked=True, centre=centre, joint=joint, d_marks=0)
    values, mask = torch.randn(3, 26, 2), (torch.rand(3, 26, 2) < 0.7).float()
    mask[:, 19] = 1.0
    wanted = model(torch.cat([values, mask], -1))
    other = torch.where(mask == 0, 50.0, values)
    torch.testing.assert_close(model(torch.cat([other, mask], -1)), wanted, atol=1e-5, rtol=1e-5)
    hidden = mask.clone()
    hidden[:, 10] = 1.0 - hidden[:, 10]
    assert (model(torch.cat([values, hidden], -1)) - wanted).abs().max() > 1e-4  # but whether it is missing is read


@joint
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("centre", ["last", "mean"])
def test_the_centre_is_taken_off_and_put_back(centre, masked, joint):
    model = network(masked=masked, centre=centre, joint=joint, d_marks=0)
    plain = network(masked=masked, centre="none", joint=joint, d_marks=0)
    plain.load_state_dict(model.state_dict())
    values, mask = torch.randn(3, 26, 2), (torch.rand(3, 26, 2) < 0.7).float()
    known = mask[:, :20] if masked else torch.ones(3, 20, 2)
    mean = (values[:, :20] * known).sum(1, keepdim=True) / known.sum(1, keepdim=True)
    level = mean if centre == "mean" else values[:, 19:20]

    def given(values):
        return torch.cat([values, mask], -1) if masked else values

    wanted = plain(given(values - level)) + level[..., None]
    torch.testing.assert_close(model(given(values)), wanted, atol=1e-5, rtol=1e-5)


@joint
def test_each_window_reads_its_own_marks(joint):
    model = network(joint=joint)
    x, marks = torch.randn(3, 26, 2), torch.randn(3, 26, 3)
    y = model(x, marks=marks)
    for i in range(3):
        torch.testing.assert_close(model(x[i : i + 1], marks=marks[i : i + 1])[0], y[i], atol=1e-5, rtol=1e-5)
    assert (model(x, marks=marks.roll(1, 0)) - y).abs().max() > 1e-3


@joint
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_other_horizons_read_the_marks_of_their_rows(steps, joint):
    model = network(joint=joint)
    x, marks = torch.randn(3, 29, 2), torch.randn(3, 29, 3)
    y, found = model(x[:, :26], marks=marks[:, :26]), model.after(x[:, :20], steps, marks[:, : 20 + steps])
    assert found.shape == (3, steps, 2, 2)
    both = min(steps, 6)
    torch.testing.assert_close(found[:, :both], y[:, :both], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"), [("columns", 0), ("context", 0), ("horizon", 0), ("quantiles", -1), ("centre", "x")]
)
def test_mistakes(name, value):
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(CONFIG, **{name: value})
