"""The U-Net: causal at any length, and the same in all three uses."""

import pytest
import torch

from statespan import S4, S4D
from statespan.nn import FeedForward, UNet
from tests.nn.make import peak_error, perturb
from tests.nn.make_stack import check_gradients, check_lengths, check_streaming, row

f64 = torch.float64


def make(pools=(3, 2), layer=S4D, expand=2, **options):
    def layers(width):
        return [layer(width, 4, dtype=f64), FeedForward(width, 2, dtype=f64)]

    return perturb(UNet(4, layers, pools=pools, expand=expand, dtype=f64, **options), 0.1).eval()


@pytest.mark.parametrize(
    ("pools", "options"),
    [((4, 2), {}), ((3, 2, 2), {"expand": 1, "norm": "batch"}), ((1,), {"prenorm": False}), ((), {"layer": S4})],
    ids=str,
)
@pytest.mark.parametrize("length", [1, 24, 35])
def test_views(pools, options, length):
    model = make(pools, **options)
    check_streaming(model, torch.randn(2, length, 4, dtype=f64), dt_scale=1.5)


def test_against_its_definition():
    """Two blocks, a frame of 3, two blocks, written out position by position."""
    model = make((3,))
    first, second = model.level.down
    last, final = model.level.up
    pool, coarse = model.level.inner, model.level.inner.inner.down
    x = torch.randn(1, 8, 4, dtype=f64)
    a = first(x)
    b = second(a)
    frames = torch.stack([torch.cat([b[0, 3 * k + j] for j in range(3)]) for k in range(2)])[None]
    z = pool.down(frames)
    for block in coarse:
        z = block(z)
    z = pool.up(z)[0]
    up = torch.zeros(8, 4, dtype=f64)
    for t in range(3, 8):  # during a frame, what came of the one before
        up[t] = z[t // 3 - 1].view(3, 4)[t % 3]
    wanted = model.norm(final(last(up + b) + a))
    assert peak_error(model(x), wanted) <= 1e-12


def test_causal():
    model = make((4, 2))
    x = torch.randn(1, 29, 4, dtype=f64, requires_grad=True)
    for t in (0, 3, 4, 8, 17, 28):
        (grad,) = torch.autograd.grad(model(x)[0, t].sum(), [x], retain_graph=True)
        assert (grad[0, t + 1 :].abs() <= 1e-14 * grad.abs().max()).all()
        assert (grad[0, : t + 1].abs().amax(-1) > 0).all()


def test_lengths():
    model = make((3, 2))
    x = torch.randn(5, 31, 4, dtype=f64)
    lengths = [25, 1, 0, 12, 8]
    state = check_lengths(model, x[:, :25], lengths)
    check_gradients(model, model(x[:, :25], lengths=lengths))
    # from there, all at other positions of their frames: steps, and prefill with lengths again
    more, stepped = [6, 0, 5, 3, 1], state
    y, after = model.prefill(x[:, 25:], state, lengths=more)
    for t in range(6):
        out, stepped = model.step(x[:, 25 + t], stepped)
        for b in range(5):
            if t < more[b]:
                assert peak_error(y[b, t], out[b]) <= 1e-10
    for b, length in enumerate(lengths):
        whole = torch.cat([x[b : b + 1, :length], x[b : b + 1, 25:]], 1)
        assert peak_error(out[b], model(whole)[0, -1]) <= 1e-10
        ended = torch.cat([x[b : b + 1, :length], x[b : b + 1, 25 : 25 + more[b]], x[b : b + 1, :1]], 1)
        last, _ = model.step(x[b : b + 1, 0], row(after, b))
        assert peak_error(last, model(ended)[:, -1]) <= 1e-10


def test_inner_levels_run_once_a_frame():
    model = make((4,), expand=1)
    calls = []
    model.level.inner.down.register_forward_hook(lambda *_: calls.append(1))
    state, step = model.initial_state(2), model.stepper()
    for _ in range(11):
        _, state = step(torch.randn(2, 4, dtype=f64), state)
    assert len(calls) == 2


def test_compiles_in_one_graph():
    torch._dynamo.reset()
    model, x = make((3,)), torch.randn(2, 22, 4, dtype=f64)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert peak_error(compiled(x), model(x)) <= 1e-10


def test_mistakes():
    with pytest.raises(ValueError, match="factor"):
        make((0,))
    with pytest.raises(ValueError, match="expand"):
        make((2,), expand=0)
