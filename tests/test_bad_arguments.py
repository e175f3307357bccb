"""Every mistake gets one typed error that names the argument, what came and what is allowed."""

import pytest
import torch

import statespan
from statespan import DSS, LRU, LSSL, S4, S4D, S5, ops
from statespan.nn import TiedDropout
from statespan.ssm import DPLR, Dense, Diagonal, bilinear, hippo, inits, zoh
from tests.mistakes import assert_one_clear_line

c = torch.complex128
A, B, C, dt = torch.ones(3, 4, dtype=c), torch.ones(3, 4, dtype=c), torch.ones(2, 3, 4, dtype=c), torch.ones(3)
P = torch.ones(1, 3, 4, dtype=c)
R, V, W = torch.ones(3, 8, 8), torch.ones(3, 8), torch.ones(2, 3, 8)
layer, x, state = S4D(4, 8), torch.randn(2, 10, 4), torch.zeros(2, 4, 8)
two_way = S4(4, 8, bidirectional=True)
ssm = Diagonal(A, B, C, dt)


def in_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x)


# (call, error, what the message must contain)
CASES = {
    # sizes
    "odd d_state": (lambda: S4D(4, 7), ValueError, ["d_state", "7", "even"]),
    "odd d_state S4": (lambda: S4(4, 63), ValueError, ["d_state", "63", "even"]),
    "odd d_state LSSL": (lambda: LSSL(4, 1), ValueError, ["d_state", "1", "even"]),
    "d_state 0": (lambda: DSS(4, 0), ValueError, ["d_state", "0", ">= 2"]),
    "d_state float": (lambda: S4D(4, 64.0), TypeError, ["d_state", "float", "64.0"]),
    "d_model 0": (lambda: S4D(0), ValueError, ["d_model", "0", ">= 1"]),
    "d_model negative": (lambda: S4(-4), ValueError, ["d_model", "-4", ">= 1"]),
    "d_model text": (lambda: S4D("4"), TypeError, ["d_model", "'4'", "integer"]),
    "d_state tensor": (lambda: S4D(4, torch.tensor(8)), TypeError, ["d_state", "Tensor"]),
    "d_model bool": (lambda: S4D(True), TypeError, ["d_model", "bool"]),
    "n_ssm not a divisor": (lambda: S4D(4, 8, n_ssm=3), ValueError, ["n_ssm", "3", "d_model=4"]),
    "n_ssm 0": (lambda: S4D(4, 8, n_ssm=0), ValueError, ["n_ssm", "0", ">= 1"]),
    "channels 0": (lambda: S4D(4, 8, channels=0), ValueError, ["channels", "0", ">= 1"]),
    "channels float": (lambda: S4D(4, 8, channels=1.5), TypeError, ["channels", "1.5"]),
    "odd d_state S5": (lambda: S5(4, 7), ValueError, ["d_state", "7", "even"]),
    "blocks of odd size": (lambda: S5(4, 12, blocks=4), ValueError, ["blocks", "4", "d_state=12", "even"]),
    "blocks 0": (lambda: S5(4, 8, blocks=0), ValueError, ["blocks", "0", ">= 1"]),
    "an empty ring": (lambda: LRU(4, 8, r_min=0.9, r_max=0.9), ValueError, ["r_max", "0.9", "r_min=0.9"]),
    "a ring outside": (lambda: LRU(4, 8, r_max=1.1), ValueError, ["r_max", "1.1", "at most 1"]),
    "a ring below 0": (lambda: LRU(4, 8, r_min=-0.1), ValueError, ["r_min", "-0.1", ">= 0"]),
    "more than a turn": (lambda: LRU(4, 8, max_phase=7.0), ValueError, ["max_phase", "7.0", "2π"]),
    # names
    "unknown init S4D": (lambda: S4D(4, 8, init="fout"), ValueError, ["init", "'fout'", "'legs'", "'random'"]),
    "unknown init S4": (lambda: S4(4, 8, init="lin"), ValueError, ["init", "'lin'", "'legs'", "'fout'"]),
    "unknown init LSSL": (lambda: LSSL(4, 8, init="hippo"), ValueError, ["init", "'hippo'", "'legt'"]),
    "init not a text": (lambda: S4D(4, 8, init=None), TypeError, ["init", "None", "'legs'"]),
    "mixture too large": (lambda: S4(4, 8, init="legs/fout", n_ssm=1), ValueError, ["init", "n_ssm >= 2", "1"]),
    "half a mixture": (lambda: S4(4, 8, init="legs/"), ValueError, ["init", "'legs/'"]),
    "init option": (lambda: S4D(4, 8, init_options={"scale": 2}), ValueError, ["init_options", "scale", "imag_scale"]),
    "init option value": (lambda: S4D(4, 8, init_options={"imag_scale": -1}), ValueError, ["imag_scale", "-1", ">= 0"]),
    "discretization": (lambda: S4D(4, 8, discretization="euler"), ValueError, ["discretization", "'euler'", "'zoh'"]),
    "discretization S5": (lambda: S5(4, 8, discretization="foh"), ValueError, ["discretization", "'foh'", "'zoh'"]),
    "unknown init S5": (lambda: S5(4, 8, init="hippo"), ValueError, ["init", "'hippo'", "'legs'"]),
    "real_part": (lambda: S4D(4, 8, real_part="tanh"), ValueError, ["real_part", "'tanh'", "'softplus'"]),
    "real_part S4": (lambda: S4(4, 8, real_part="id"), ValueError, ["real_part", "'id'", "'none'"]),
    "kernel S4D": (lambda: S4D(4, 8, kernel="cauchy"), ValueError, ["kernel", "'cauchy'", "'softmax'"]),
    "kernel S4": (lambda: S4(4, 8, kernel="cuda"), ValueError, ["kernel", "'cuda'", "'cauchy'"]),
    "softmax needs zoh": (lambda: S4D(4, 8, kernel="softmax"), ValueError, ["softmax", "'zoh'", "'bilinear'"]),
    "cauchy needs bilinear": (
        lambda: S4(4, 8, kernel="cauchy", discretization="zoh"),
        ValueError,
        ["cauchy", "'bilinear'", "'zoh'"],
    ),
    "algorithm": (lambda: DPLR(A, P, B, C, dt=dt, algorithm="fft"), ValueError, ["algorithm", "'fft'", "'krylov'"]),
    "algorithm of zoh": (
        lambda: DPLR(A, P, B, C, dt=dt, discretization="zoh", algorithm="cauchy"),
        ValueError,
        ["cauchy", "'bilinear'", "'zoh'"],
    ),
    "softmax_length without softmax": (
        lambda: S4D(4, 8, softmax_length=7),
        ValueError,
        ["softmax_length", "7", "'softmax'"],
    ),
    "softmax_length": (lambda: DSS(4, 8, softmax_length=0), ValueError, ["softmax_length", "0", ">= 1"]),
    "mix": (lambda: S4D(4, 8, mix="mlp"), ValueError, ["mix", "'mlp'", "'glu'"]),
    "activation": (lambda: S4D(4, 8, activation="relu"), ValueError, ["activation", "'relu'", "'gelu'"]),
    "unknown option": (lambda: S4D(4, 8, l_max=1024), TypeError, ["l_max"]),
    "unknown option DSS": (lambda: DSS(4, 8, l_max=1024), TypeError, ["l_max"]),
    "init_options list": (lambda: S4D(4, 8, init_options=[1]), TypeError, ["init_options", "[1]", "dict"]),
    "init_options keys": (lambda: S4D(4, 8, init_options={1: 2}), TypeError, ["init_options", "{1: 2}", "dict"]),
    "dtype integer": (lambda: S4D(4, 8, dtype=torch.int32), ValueError, ["dtype", "torch.int32", "torch.bfloat16"]),
    "dtype complex": (lambda: S4(4, 8, dtype=torch.complex64), ValueError, ["dtype", "torch.complex64"]),
    "dtype text": (lambda: LSSL(4, 8, dtype="float32"), TypeError, ["dtype", "'float32'", "torch.float32"]),
    # numbers
    "dt_min 0": (lambda: S4D(4, 8, dt_min=0.0), ValueError, ["dt_min", "0.0", "> 0"]),
    "dt_min above dt_max": (lambda: S4D(4, 8, dt_min=1.0), ValueError, ["dt_min", "1.0", "dt_max=0.1"]),
    "dt_max nan": (lambda: S4D(4, 8, dt_max=float("nan")), ValueError, ["dt_max", "nan"]),
    "dropout 1": (lambda: S4D(4, 8, dropout=1.0), ValueError, ["dropout", "1.0", "< 1"]),
    "dropout negative": (lambda: S4D(4, 8, dropout=-0.1), ValueError, ["dropout", "-0.1", ">= 0"]),
    "dropout text": (lambda: S4D(4, 8, dropout="0.1"), TypeError, ["dropout", "'0.1'"]),
    "bidirectional": (lambda: S4D(4, 8, bidirectional="yes"), TypeError, ["bidirectional", "'yes'", "True or False"]),
    "train_B": (lambda: S4D(4, 8, train_B=1), TypeError, ["train_B", "1", "True or False"]),
    "tie_dropout": (lambda: S4D(4, 8, tie_dropout=None), TypeError, ["tie_dropout", "None"]),
    # calls of a layer
    "x two-dimensional": (lambda: layer(x[0]), ValueError, ["x", "(batch, length, 4)", "(10, 4)"]),
    "x wrong features": (lambda: layer(x[..., :3]), ValueError, ["x", "(batch, length, 4)", "(2, 10, 3)"]),
    "x transposed": (lambda: layer(x.mT), ValueError, ["x", "(batch, length, 4)", "(2, 4, 10)"]),
    "x integers": (lambda: layer(x.long()), TypeError, ["x", "torch.int64", "torch.float32"]),
    "x complex": (lambda: layer(x + 0j), TypeError, ["x", "torch.complex64"]),
    "x double under autocast": (lambda: in_autocast(x.double()), TypeError, ["x", "torch.float64", "torch.float32"]),
    "x numpy": (lambda: layer(x.numpy()), TypeError, ["x", "torch.Tensor", "ndarray"]),
    "x double": (lambda: layer(x.double()), TypeError, ["x", "torch.float64", "torch.float32"]),
    "x bfloat16": (lambda: layer(x.bfloat16()), TypeError, ["x", "torch.bfloat16", "autocast"]),
    "dt_scale 0": (lambda: layer(x, dt_scale=0.0), ValueError, ["dt_scale", "0.0", "> 0"]),
    "dt_scale negative": (lambda: layer.prefill(x, dt_scale=-1), ValueError, ["dt_scale", "-1", "> 0"]),
    "dt_scale infinite": (lambda: layer.step(x[:, 0], state, dt_scale=float("inf")), ValueError, ["dt_scale", "inf"]),
    "dt_scale of two": (lambda: layer(x, dt_scale=torch.ones(2)), TypeError, ["dt_scale", "Tensor"]),
    "dt_scale trained": (
        lambda: layer(x, dt_scale=torch.ones(1, requires_grad=True)),
        TypeError,
        ["dt_scale", "Tensor"],
    ),
    "dt_scale text": (lambda: layer(x, dt_scale="2"), TypeError, ["dt_scale", "'2'"]),
    "lengths too long": (lambda: layer(x, lengths=[3, 11]), ValueError, ["lengths", "[3, 11]", "10"]),
    "lengths negative": (lambda: layer(x, lengths=[-1, 4]), ValueError, ["lengths", "[-1, 4]", "0"]),
    "lengths too few": (lambda: layer(x, lengths=[3]), ValueError, ["lengths", "(2,)", "(1,)"]),
    "lengths fractions": (lambda: layer(x, lengths=[3.0, 4.0]), TypeError, ["lengths", "[3.0, 4.0]", "whole"]),
    "lengths tensor of fractions": (lambda: layer(x, lengths=torch.ones(2)), TypeError, ["lengths", "torch.float32"]),
    "lengths one number": (lambda: layer(x, lengths=5), ValueError, ["lengths", "(2,)", "(1,)"]),
    "lengths text": (lambda: layer(x, lengths="ab"), TypeError, ["lengths", "'ab'"]),
    "lengths None inside": (lambda: layer(x, lengths=[None, 1]), TypeError, ["lengths", "[None, 1]"]),
    "lengths with a free softmax": (
        lambda: DSS(4, 8, softmax_length=None)(x, lengths=[3, 4]),
        ValueError,
        ["lengths", "softmax_length=None"],
    ),
    "state shape": (lambda: layer.prefill(x, state[:1]), ValueError, ["state", "(2, 4, 8)", "(1, 4, 8)"]),
    "state complex": (lambda: layer.prefill(x, state + 0j), TypeError, ["state", "torch.complex64"]),
    "state missing": (lambda: layer.step(x[:, 0], None), TypeError, ["state", "NoneType"]),
    "step with a sequence": (lambda: layer.step(x, state), ValueError, ["x", "(batch, 4)", "(2, 10, 4)"]),
    "prefill two-way": (lambda: two_way.prefill(x), ValueError, ["prefill", "bidirectional=True"]),
    "step two-way": (lambda: two_way.step(x[:, 0], state), ValueError, ["step", "bidirectional=True"]),
    "state two-way": (lambda: two_way.initial_state(1), ValueError, ["initial_state", "bidirectional=True"]),
    "state integers": (lambda: layer.initial_state(1, dtype=torch.int32), ValueError, ["dtype", "torch.int32"]),
    "state half": (lambda: layer.step(x[:, 0], state.half()), TypeError, ["state", "torch.float16", "torch.float32"]),
    "batch negative": (lambda: layer.initial_state(-1), ValueError, ["batch", "-1", ">= 0"]),
    # structures
    "A real": (lambda: Diagonal(A.real, B, C, dt), TypeError, ["A", "torch.float64", "torch.complex64"]),
    "A one-dimensional": (lambda: Diagonal(A[0], B, C, dt), ValueError, ["A", "(H, N/2)", "(4,)"]),
    "B shape": (lambda: Diagonal(A, B[:2], C, dt), ValueError, ["B", "(3, 4)", "(2, 4)"]),
    "C shape": (lambda: Diagonal(A, B, C[0], dt), ValueError, ["C", "(channels, 3, 4)", "(3, 4)"]),
    "dt shape": (lambda: Diagonal(A, B, C, dt[:2]), ValueError, ["dt", "(3,)", "(2,)"]),
    "dt complex": (lambda: Diagonal(A, B, C, dt + 0j), TypeError, ["dt", "torch.complex64"]),
    "dt a number": (lambda: Diagonal(A, B, C, 0.1), TypeError, ["dt", "float"]),
    "rule": (
        lambda: Diagonal(A, B, C, dt, discretization="tustin"),
        ValueError,
        ["discretization", "'tustin'", "'bilinear'"],
    ),
    "softmax bilinear": (
        lambda: Diagonal(A, B, C, dt, softmax_length=5),
        ValueError,
        ["softmax_length", "'zoh'", "'bilinear'"],
    ),
    "rank 0": (lambda: DPLR(A, P[:0], B, C, dt=dt), ValueError, ["P", "rank", "0", "1 or 2"]),
    "rank 3": (lambda: DPLR(A, P.repeat(3, 1, 1), B, C, dt=dt), ValueError, ["P", "rank", "3", "1 or 2"]),
    "P shape": (lambda: DPLR(A, P[0], B, C, dt=dt), ValueError, ["P", "(rank, 3, 4)", "(3, 4)"]),
    "dense complex": (lambda: Dense(R + 0j, V, W, dt), TypeError, ["A", "torch.complex64"]),
    "dense not square": (lambda: Dense(R[..., :7], V, W, dt), ValueError, ["A", "(3, 8, 7)"]),
    "dense B": (lambda: Dense(R, V[:, :7], W, dt), ValueError, ["B", "(3, 8)", "(3, 7)"]),
    "kernel length 0": (lambda: ssm.kernel(0), ValueError, ["length", "0", ">= 1"]),
    "kernel length negative": (lambda: DPLR(A, P, B, C, dt=dt).kernel(-5), ValueError, ["length", "-5", ">= 1"]),
    "kernel length float": (lambda: Dense(R, V, W, dt).kernel(10.0), TypeError, ["length", "10.0"]),
    "chunk 0": (lambda: ssm.operators(0), ValueError, ["chunk", "0", ">= 1"]),
    "structure dt_scale": (lambda: ssm.with_dt_scale(0), ValueError, ["dt_scale", "0", "> 0"]),
    "scan input": (lambda: ssm.scan(torch.randn(2, 5, 4)), ValueError, ["u", "(batch, length, 3)", "(2, 5, 4)"]),
    "scan state": (lambda: ssm.scan(torch.randn(2, 5, 3), V), ValueError, ["state", "(2, 3, 8)", "(3, 8)"]),
    "step input": (lambda: ssm.step(torch.randn(2, 4), W), ValueError, ["u", "(batch, 3)", "(2, 4)"]),
    "step count negative": (lambda: ssm.advance(W, torch.tensor([1, -3])), ValueError, ["steps", "[1, -3]", ">= 0"]),
    "step count shape": (lambda: ssm.advance(W, torch.tensor([1])), ValueError, ["steps", "(2,)", "(1,)"]),
    "step count float": (lambda: ssm.advance(W, torch.ones(2)), TypeError, ["steps", "torch.float32"]),
    "chunked input": (lambda: ops.chunked(ssm, torch.randn(2, 5, 1)), ValueError, ["u", "(batch, length, 3)"]),
    "chunked state": (lambda: ops.chunked(ssm, torch.randn(2, 5, 3), W[:1]), ValueError, ["state", "(2, 3, 8)"]),
    "chunked state integers": (lambda: ops.chunked(ssm, torch.randn(2, 5, 3), W.int()), TypeError, ["state", "int32"]),
    "chunked chunk": (lambda: ops.chunked(ssm, torch.randn(2, 5, 3), chunk=0), ValueError, ["chunk", "0", ">= 1"]),
    "state_after lengths": (
        lambda: ops.state_after(ssm, torch.randn(2, 5, 3), [3, 6]),
        ValueError,
        ["lengths", "[3, 6]", "5"],
    ),
    "conv kernel too long": (lambda: ops.fftconv(W, torch.ones(1, 8, 9)), ValueError, ["kernel", "(1, 8, 3)", "9"]),
    "conv heads": (lambda: ops.fftconv(W, torch.ones(1, 7, 3)), ValueError, ["kernel", "(1, 8, 3)", "7"]),
    "conv input": (lambda: ops.fftconv(V, torch.ones(1, 8, 3)), ValueError, ["u", "(batch, length, H)", "(3, 8)"]),
    "conv dtype": (lambda: ops.fftconv(W, torch.ones(1, 8, 3).double()), TypeError, ["kernel", "torch.float64"]),
    "conv backward": (lambda: ops.fftconv(W, torch.ones(1, 8, 3), V), ValueError, ["backward", "(1, 8, 3)", "(3, 8)"]),
    "conv empty": (lambda: ops.fftconv(W[:, :0], torch.ones(1, 8, 1)), ValueError, ["length of u", "0", ">= 1"]),
    "zoh dt number": (lambda: zoh(A, B, 0.1), TypeError, ["dt", "float"]),
    "zoh dt shape": (lambda: zoh(A, B, torch.ones(2)), ValueError, ["dt", "(3,)", "(2,)"]),
    "zoh one system": (lambda: zoh(A[0], B[0], dt), ValueError, ["A", "(H, N/2)", "(4,)"]),
    "bilinear not square": (lambda: bilinear(R[..., :7], V, dt), ValueError, ["A", "(3, 8, 8)", "(3, 8, 7)"]),
    "bilinear B": (lambda: bilinear(R, V[:2], dt), ValueError, ["B", "(3, 8)", "(2, 8)"]),
    "zoh dt_scale": (lambda: zoh(A, B, dt, dt_scale=-2.0), ValueError, ["dt_scale", "-2.0", "> 0"]),
    # initializations
    "hippo odd": (lambda: hippo.legs(5), ValueError, ["N", "5", "even"]),
    "hippo zero": (lambda: hippo.fout(0), ValueError, ["N", "0", ">= 2"]),
    "hippo float": (lambda: hippo.legt(4.0), TypeError, ["N", "4.0"]),
    "measure": (lambda: hippo.dplr("lagt", 4), ValueError, ["measure", "'lagt'", "'legs'"]),
    "low rank measure": (lambda: hippo.low_rank("lmu", 4), ValueError, ["measure", "'lmu'", "'fout'"]),
    "diagonal name": (lambda: inits.diagonal("fout", 4), ValueError, ["name", "'fout'", "'inv2'"]),
    "random legs": (
        lambda: inits.diagonal("legs", 4, random_imag=True),
        ValueError,
        ["random_imag", "'legs'", "'lin'"],
    ),
    "random real real": (lambda: inits.diagonal("real", 4, random_real=True), ValueError, ["random_real", "'real'"]),
    "random flag": (lambda: inits.diagonal("lin", 4, random_imag="no"), TypeError, ["random_imag", "'no'"]),
    # other modules
    "tied dropout": (lambda: TiedDropout(2.0), ValueError, ["p", "2.0", "< 1"]),
    # optimizer groups
    "lr 0": (lambda: statespan.param_groups(layer, lr=0.0), ValueError, ["lr", "0.0", "> 0"]),
    "weight decay": (lambda: statespan.param_groups(layer, 0.1, -1.0), ValueError, ["weight_decay", "-1.0", ">= 0"]),
    "ssm_lr": (lambda: statespan.param_groups(layer, 0.1, ssm_lr="slow"), TypeError, ["ssm_lr", "'slow'"]),
    "model": (lambda: statespan.param_groups([layer], 0.1), TypeError, ["model", "Module", "list"]),
}


@pytest.mark.parametrize("case", CASES, ids=[name.replace(" ", "-") for name in CASES])
def test_mistake(case):
    assert_one_clear_line(*CASES[case])


def test_a_mistake_leaves_the_layer_as_it_was():
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    for call, error, _ in CASES.values():
        with pytest.raises(error):
            call()
    assert all((before[name] == value).all() for name, value in layer.state_dict().items())
