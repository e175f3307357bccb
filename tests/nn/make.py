"""Layers to test with: every combination of kind, discretization, constraint and initialization."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import torch

from statespan import DSS, LRU, LSSL, S4, S4D, S5
from statespan.nn.real_part import REAL_PARTS
from statespan.ssm import hippo, inits

RULES = ("zoh", "bilinear")


def combinations():
    """(class, options) for every layer × discretization × real_part × init, and both kernels where there are two."""
    for rule in RULES:
        for real_part in REAL_PARTS:
            for init in (*hippo.MEASURES, "legs/fout"):
                yield S4, {"discretization": rule, "real_part": real_part, "init": init}
            for init in (*inits.DIAGONAL, "inv/lin"):
                yield S4D, {"discretization": rule, "real_part": real_part, "init": init}
        for init in (*hippo.MEASURES, "legs/fout"):
            n_ssm = 2 if "/" in init else 1
            yield LSSL, {"discretization": rule, "init": init, "n_ssm": n_ssm}
    for init in ("lin", "dfout", "inv/real"):
        yield S4D, {"discretization": "foh", "init": init}
    yield S4, {"discretization": "foh", "init": "legs/fout"}
    for rule in ("bilinear", "zoh", "foh"):
        for init in ("legs", "legt"):
            yield S4, {"discretization": rule, "init": init, "separate_Q": True}
    yield S4, {"kernel": "cauchy", "separate_Q": True}
    yield LSSL, {"discretization": "foh"}
    for real_part in REAL_PARTS:
        yield S5, {"real_part": real_part, "discretization": "bilinear" if real_part == "relu" else "zoh"}
    for init in ("inv", "dfout"):
        yield S5, {"init": init}
    yield LRU, {}
    yield LRU, {"r_min": 0.9, "r_max": 0.99, "max_phase": 0.3}
    for real_part in REAL_PARTS:
        yield S4, {"real_part": real_part, "kernel": "cauchy"}
        for init in inits.DIAGONAL:
            yield DSS, {"real_part": real_part, "init": init}


COMBINATIONS = list(combinations())
IDS = [f"{cls.__name__}-{'-'.join(map(str, options.values()))}" for cls, options in COMBINATIONS]
LAYERS = [
    (S4, {}),
    (S4, {"kernel": "cauchy"}),
    (S4, {"init": "legt"}),
    (S4, {"separate_Q": True}),
    (S4D, {}),
    (S4D, {"init": "lin", "discretization": "zoh"}),
    (S4D, {"init": "inv", "discretization": "foh"}),
    (DSS, {}),
    (LSSL, {}),
    (S5, {"blocks": 2}),
    (LRU, {}),
]
LAYER_IDS = [f"{cls.__name__}-{'-'.join(map(str, options.values()))}" for cls, options in LAYERS]


def takes(cls, name):
    """Whether layers of this class have such an option."""
    return name in inspect.signature(cls).parameters


def random_state(layer, batch):
    """A state of a layer that is not its first one, float64."""
    return torch.randn_like(layer.initial_state(batch))


def perturb(layer, amount):
    """Move every parameter and buffer a little, as training would; a dense A as a whole, which keeps it stable."""
    with torch.no_grad():
        for name, value in [*layer.named_parameters(), *layer.named_buffers()]:
            if not value.is_floating_point():
                continue
            noise = torch.randn_like(value[:, :1, :1]).clamp(-3, 3) if name == "ssm.A" else torch.randn_like(value)
            value.mul_(1 + amount * noise)
    return layer


def peak_error(got, wanted):
    """Largest difference relative to the peak of what is wanted."""
    return ((got.double() - wanted.double()).abs().max() / wanted.double().abs().max()).item()


def assert_round_trip(first, second, x):
    """Two modules of the same kind are different, and equal once one has the other's state, by a file and by a copy."""
    assert (first(x) != second(x)).any()
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second.load_state_dict(torch.load(buffer, weights_only=True))
    for other in (second, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert (first(x) == other(x)).all()
    assert all(x.shape[1] not in value.shape for value in first.state_dict().values())  # nothing depends on a length


def run_steps(layer, x, state=None, dt_scale=1.0):
    """The outputs and last state of stepping through x."""
    state = layer.initial_state(x.shape[0]) if state is None else state
    step, outputs = layer.stepper(dt_scale), []
    for x_t in x.unbind(1):
        y, state = step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state
