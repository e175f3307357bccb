"""Every mistake with an attention layer gets one error that names the argument, what came and what is allowed."""

import pytest
import torch

from statespan.papers.baselines.attention import Attention, KVCache, StaticKVCache
from statespan.papers.baselines.linear_attention import LinearAttention, Performer
from tests.mistakes import assert_one_clear_line

x = torch.randn(2, 10, 8)
softmax, sums, favor = Attention(8, 2), LinearAttention(8, 2), Performer(8, 2)
cache, summed = softmax.initial_state(2), sums.initial_state(2)
two_way = {cls: cls(8, 2, bidirectional=True) for cls in (Attention, LinearAttention, Performer)}


def in_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return softmax(x)


# (call, error, what the message must contain)
CASES = {
    "flash": (lambda: Attention(8, 2, flash="yes"), TypeError, ["flash", "'yes'", "True or False"]),
    "n_features 0": (lambda: Performer(8, 2, n_features=0), ValueError, ["n_features", "0", ">= 1"]),
    "n_features float": (lambda: Performer(8, 2, n_features=8.0), TypeError, ["n_features", "8.0"]),
    "x double under autocast": (lambda: in_autocast(x.double()), TypeError, ["x", "torch.float64", "torch.float32"]),
    "max_length 0": (lambda: softmax.initial_state(2, max_length=0), ValueError, ["max_length", "0", ">= 1"]),
    "max_length float": (lambda: softmax.initial_state(2, max_length=9.0), TypeError, ["max_length", "9.0"]),
    "cache of integers": (lambda: softmax.initial_state(2, dtype=torch.int8), ValueError, ["dtype", "torch.int8"]),
    "sums in half": (lambda: sums.initial_state(2, dtype=torch.half), ValueError, ["dtype", "torch.float16", "64"]),
    "sums as cache": (lambda: softmax.prefill(x, summed), TypeError, ["state", "KVCache", "LinearState"]),
    "cache as sums": (lambda: sums.prefill(x, cache), TypeError, ["state", "LinearState", "KVCache"]),
    "cache of another batch": (
        lambda: softmax.prefill(x[:1], cache),
        ValueError,
        ["state.keys", "(1, 2, slots, 4)", "(2, 2, 0, 4)"],
    ),
    "values unlike keys": (
        lambda: softmax.prefill(x, cache._replace(values=torch.zeros(2, 2, 1, 4))),
        ValueError,
        ["state.values", "(2, 2, 0, 4)", "(2, 2, 1, 4)"],
    ),
    "keys of integers": (
        lambda: softmax.prefill(x, cache._replace(keys=cache.keys.int())),
        TypeError,
        ["state.keys", "torch.int32"],
    ),
    "position float": (
        lambda: softmax.prefill(x, cache._replace(position=torch.zeros(2))),
        TypeError,
        ["state.position", "torch.int64", "torch.float32"],
    ),
    "position a number": (
        lambda: softmax.prefill(x, cache._replace(position=0)),
        TypeError,
        ["state.position", "torch.int64", "int"],
    ),
    "position of another batch": (
        lambda: softmax.prefill(x, cache._replace(position=torch.zeros(3, dtype=torch.int64))),
        ValueError,
        ["state.position", "(2,)", "(3,)"],
    ),
    "sums of another batch": (
        lambda: sums.step(x[:1, 0], summed),
        ValueError,
        ["state.sums", "(1, 2, 4, 5)", "(2, 2, 4, 5)"],
    ),
    "sums of another kernel": (
        lambda: favor.step(x[:, 0], summed),
        ValueError,
        ["state.sums", "(2, 2, 6, 5)", "(2, 2, 4, 5)"],
    ),
    "sums of halves": (
        lambda: sums.step(x[:, 0], summed._replace(sums=summed.sums.half())),
        TypeError,
        ["state.sums", "torch.float16", "torch.float32"],
    ),
    "scale of another batch": (
        lambda: sums.step(x[:, 0], summed._replace(log_scale=torch.zeros(2))),
        ValueError,
        ["state.log_scale", "(2, 2)", "(2,)"],
    ),
}
for cls, layer in ((Attention, softmax), (LinearAttention, sums), (Performer, favor)):
    # arguments bind what the loop moves on
    def shared(cls=cls, layer=layer, other=two_way[cls]):
        state = layer.initial_state(2)
        return {
            "d_model 0": (lambda: cls(0, 1), ValueError, ["d_model", "0", ">= 1"]),
            "d_model float": (lambda: cls(8.0, 2), TypeError, ["d_model", "8.0", "integer"]),
            "n_heads 0": (lambda: cls(8, 0), ValueError, ["n_heads", "0", ">= 1"]),
            "n_heads text": (lambda: cls(8, "2"), TypeError, ["n_heads", "'2'", "integer"]),
            "n_heads not a divisor": (lambda: cls(8, 3), ValueError, ["n_heads", "3", "d_model=8"]),
            "d_head 0": (lambda: cls(8, 2, d_head=0), ValueError, ["d_head", "0", ">= 1"]),
            "d_head bool": (lambda: cls(8, 2, d_head=True), TypeError, ["d_head", "bool"]),
            "bidirectional": (lambda: cls(8, 2, bidirectional=1), TypeError, ["bidirectional", "1", "True or False"]),
            "dropout 1": (lambda: cls(8, 2, dropout=1.0), ValueError, ["dropout", "1.0", "< 1"]),
            "dropout text": (lambda: cls(8, 2, dropout="0"), TypeError, ["dropout", "'0'"]),
            "dtype integer": (lambda: cls(8, 2, dtype=torch.int32), ValueError, ["dtype", "torch.int32"]),
            "dtype text": (lambda: cls(8, 2, dtype="float32"), TypeError, ["dtype", "'float32'", "torch.float32"]),
            "unknown option": (lambda: cls(8, 2, l_max=9), TypeError, ["l_max"]),
            "x two-dimensional": (lambda: layer(x[0]), ValueError, ["x", "(batch, length, 8)", "(10, 8)"]),
            "x wrong features": (lambda: layer.prefill(x[..., :3]), ValueError, ["x", "(batch, length, 8)"]),
            "x integers": (lambda: layer(x.long()), TypeError, ["x", "torch.int64"]),
            "x double": (lambda: layer(x.double()), TypeError, ["x", "torch.float64", "torch.float32"]),
            "x numpy": (lambda: layer(x.numpy()), TypeError, ["x", "torch.Tensor", "ndarray"]),
            "step with a sequence": (lambda: layer.step(x, state), ValueError, ["x", "(batch, 8)", "(2, 10, 8)"]),
            "step in double": (lambda: layer.step(x[:, 0].double(), state), TypeError, ["x", "torch.float64"]),
            "step without a state": (lambda: layer.step(x[:, 0], None), TypeError, ["state", "NoneType"]),
            "state a tuple": (lambda: layer.prefill(x, tuple(state)), TypeError, ["state", "tuple"]),
            "lengths too long": (lambda: layer(x, lengths=[3, 11]), ValueError, ["lengths", "[3, 11]", "10"]),
            "lengths too few": (lambda: layer.prefill(x, lengths=[3]), ValueError, ["lengths", "(2,)", "(1,)"]),
            "lengths fractions": (lambda: layer(x, lengths=[3.0, 4.0]), TypeError, ["lengths", "whole"]),
            "batch negative": (lambda: layer.initial_state(-1), ValueError, ["batch", "-1", ">= 0"]),
            "prefill two-way": (lambda: other.prefill(x), ValueError, ["prefill", "bidirectional=True"]),
            "step two-way": (lambda: other.step(x[:, 0], state), ValueError, ["step", "bidirectional=True"]),
            "stepper two-way": (lambda: other.stepper(), ValueError, ["step", "bidirectional=True"]),
            "state two-way": (lambda: other.initial_state(1), ValueError, ["initial_state", "bidirectional=True"]),
        }

    CASES.update({f"{cls.__name__}: {name}": case for name, case in shared().items()})


@pytest.mark.parametrize("case", CASES, ids=[name.replace(" ", "-") for name in CASES])
def test_mistake(case):
    assert_one_clear_line(*CASES[case])


def test_the_kind_of_cache_is_the_one_asked_for():
    assert type(cache) is KVCache
    assert type(softmax.initial_state(1, max_length=3)) is StaticKVCache
