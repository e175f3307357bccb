"""What every stack of sequence modules has to do, causal ones at least."""

import torch

from tests.nn.make import peak_error

LENGTHS = [23, 1, 0, 12]


def check_streaming(module, x, dt_scale=1.0, tolerance=1e-10):
    """Forward, prefill, step, and prefill from any point to any other give the same numbers."""
    wanted, length = module(x, dt_scale=dt_scale), x.shape[1]
    y, whole = module.prefill(x, dt_scale=dt_scale)
    assert peak_error(y, wanted) <= tolerance
    step, state, outputs = module.stepper(dt_scale), module.initial_state(x.shape[0]), []
    for t in range(length):
        y, state = step(x[:, t], state)
        outputs.append(y)
    assert peak_error(torch.stack(outputs, 1), wanted) <= tolerance
    same_states(state, whole)
    cuts = sorted(torch.randint(0, length + 1, (3,)).tolist())
    outputs, state = [], None
    for start, stop in zip([0, *cuts], [*cuts, length]):
        before = clone(state)
        y, after = module.prefill(x[:, start:stop], state, dt_scale=dt_scale)
        same_states(state, before, exact=True)
        outputs.append(y)
        state = after
    assert peak_error(torch.cat(outputs, 1), wanted) <= tolerance
    same_states(state, whole)


def check_lengths(module, x, lengths, streaming=True, tolerance=1e-10):
    """Each sequence comes out as if it were alone, whatever stands in the padding, which comes out as 0."""
    x = x.clone()
    for b, length in enumerate(lengths):
        x[b, length:] = torch.nan
    y = module(x, lengths=lengths)
    got, state = module.prefill(x, lengths=lengths) if streaming else (y, None)
    for b, length in enumerate(lengths):
        assert (y[b, length:] == 0).all()
        assert (got[b, length:] == 0).all()
        if length:
            alone = module(x[b : b + 1, :length])[0]
            assert peak_error(y[b, :length], alone) <= tolerance
            assert peak_error(got[b, :length], alone) <= tolerance
        if streaming:
            same_states(row(state, b), module.prefill(x[b : b + 1, :length])[1])
    return state


def check_gradients(module, y):
    """Every parameter gets a finite gradient that is not 0."""
    (y * torch.randn_like(y)).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def leaves(state):
    if isinstance(state, torch.Tensor):
        return [state]
    return [] if state is None else [leaf for part in state for leaf in leaves(part)]


def clone(state):
    if isinstance(state, torch.Tensor):
        return state.clone()
    return None if state is None else tuple(clone(part) for part in state)


def row(state, b):
    return state[b : b + 1] if isinstance(state, torch.Tensor) else tuple(row(part, b) for part in state)


def same_states(got, wanted, exact=False):
    got, wanted = leaves(got), leaves(wanted)
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        assert not one.is_complex()
        if exact or not one.is_floating_point():
            assert (one == other).all()
        else:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
