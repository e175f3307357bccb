"""Outputs and gradients in flight: whose memory they are, and which backward passes are errors."""

import pytest
import torch

from statespan.nn.capture import calls
from statespan.nn.capture.recorder import CannotCaptureError
from tests.nn.capture.make import Alone, assert_eager, captured, count, quiet, replays

x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def test_outputs_are_tensors_of_their_own():
    model = captured(quiet())
    first = model(x)
    kept = first["y"].clone(), first["pair"].hidden.clone()
    first["y"].data.add_(0.0)
    second = model(2 * x)
    assert torch.equal(first["y"], kept[0])
    assert torch.equal(first["pair"].hidden, kept[1])
    assert not torch.equal(second["y"], first["y"])
    with torch.no_grad():
        model(x)["y"].zero_()
        assert torch.equal(model(x)["y"], first["y"])


def test_losses_of_several_steps_may_be_kept():
    model, eager = captured(quiet()), quiet()
    eager.load_state_dict(model.state_dict())
    pairs = [(model(i * x)["y"].sum(), eager(i * x)["y"].sum()) for i in range(3)]
    assert count(model) == 3
    for loss, wanted in reversed(pairs):  # backward in another order than forward
        loss.backward()
        wanted.backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.first.parameters(), eager.first.parameters()))


def test_a_lane_is_free_after_backward_or_without_outputs():
    model = captured(quiet())
    for _ in range(3):
        loss = model(x)["y"].sum()
        loss.backward()  # the loss stays alive
    for _ in range(3):
        model(x)
    result = model(x)["y"]
    with torch.no_grad():
        model(x)  # which needs another lane for its moment
    assert [lane.is_busy for lane in model._calls.lanes] == [True, False]
    del result
    assert [lane.is_busy for lane in model._calls.lanes] == [False, False]
    assert count(model) == 2


def test_shapes_share_the_memory_of_a_lane_and_flights_do_not():
    model = captured(quiet())
    for size in (2, 3, 4):
        model(x[:size])["y"].sum().backward()
    assert len(model._calls.lanes) == 1
    assert count(model) == 3
    waiting = model(x[:2])["y"], model(x[:3])["y"]
    assert len(model._calls.lanes) == 2
    for y in waiting:
        y.sum().backward()


def test_more_calls_in_flight_than_lanes():
    model, eager = captured(quiet(), graphs=20), quiet()
    eager.load_state_dict(model.state_dict())
    waiting = [model(i * x)["y"].sum() for i in range(calls.LANES)]
    extra = assert_eager(model, lambda m: m(9 * x)["y"].sum(), f"{calls.LANES} calls already wait")
    for loss in (extra, *waiting):
        loss.backward()
    for i in (9, *range(calls.LANES)):
        eager(i * x)["y"].sum().backward()
    torch.testing.assert_close(model.first.weight.grad, eager.first.weight.grad)
    assert count(model) == calls.LANES
    model(x)["y"].sum().backward()  # and graphs again
    assert replays(model) == calls.LANES + 1


def test_a_second_backward_pass_is_an_error():
    model = captured(quiet())
    loss = model(x)["y"].sum()
    loss.backward(retain_graph=True)
    model(x)
    with pytest.raises(RuntimeError, match=r"once for each forward pass.*retain_graph"):
        loss.backward()


def test_second_derivatives_are_an_error():
    model, z = captured(quiet()), x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"no second derivatives \(create_graph=True\)"):
        torch.autograd.grad(model(z)["y"].sum(), z, create_graph=True)
    model(z)["y"].sum().backward()


@pytest.mark.parametrize("name", ["weight", "buffer"])
def test_a_step_between_forward_and_backward_is_an_error(name):
    """The graph of the backward pass would read the new values."""
    module = Alone(lambda self, x: x * self.weight.exp() * self.buffer)
    module.register_buffer("buffer", torch.ones(4))
    model = captured(module)
    loss = model(x).sum()
    with torch.no_grad():
        getattr(model, name).add_(1.0)
    with pytest.raises(RuntimeError, match=r"changed in place between a forward pass and its backward pass"):
        loss.backward()
    model(x).sum().backward()


def test_replaced_parameters_between_forward_and_backward():
    """The backward pass still has the old ones."""
    model = captured(Alone(lambda self, x: x * self.weight.exp()))
    z = x.clone().requires_grad_()
    loss, old = model(z).sum(), model.weight.detach().clone()
    model.weight.data = torch.zeros(4)
    model(x).sum().backward()
    loss.backward()
    torch.testing.assert_close(z.grad, old.exp().expand(5, 4))


def test_the_error_is_a_runtime_error():
    assert issubclass(CannotCaptureError, RuntimeError)
