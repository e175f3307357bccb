"""The convolutional baselines: shapes, gradients, sizes, other lengths, batches, what they reject, and training."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from statespan import models
from statespan.papers.baselines.convnet import ConvNet, ConvNetConfig
from statespan.papers.baselines.resnet2d import ResNet2d, ResNet2dConfig
from statespan.papers.baselines.wavegan import WaveGan, WaveGanConfig
from statespan.train import evaluate, fit, read_recipe

f64 = torch.float64
# options, and a length that the model reads
CASES = {
    "convnet": ({"d_model": 4, "n_blocks": 2, "d_input": 2}, 70),
    "inception": ({"d_model": 3, "d_input": 2}, 21),
    "resnet1d": ({"d_model": 6, "d_input": 2}, 65),
    "xresnet1d": ({"d_model": 6, "d_input": 2}, 67),
    "wavegan": ({"d_model": 4, "length": 1500, "d_input": 2}, 1500),
    "resnet2d": ({"d_model": 4, "d_input": 2}, 144),
    "resnet2d layer": ({"d_model": 4, "d_input": 2, "norm": "layer", "stem": 7, "stem_stride": 2}, 144),
}
ANY_LENGTH = [name for name in CASES if name != "wavegan"]
cases = pytest.mark.parametrize("case", CASES)


def make(case, dtype=f64, **options):
    torch.manual_seed(1)
    own, length = CASES[case]
    return models.build(case.split()[0], None, {"d_output": 5, **own, **options}, dtype=dtype), length


def settled(case):
    """A model in evaluation mode whose norms and zero-initialised gains are those of a trained one."""
    model, length = make(case)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name or value.ndim == 1:
                value.add_(0.3 * torch.randn_like(value))
    model.train()
    for _ in range(3):
        model(torch.randn(8, length, 2, dtype=f64))
    return model.eval(), length


def test_all_are_registered():
    assert {case.split()[0] for case in CASES} <= set(models.names())
    assert all(type(make(case)[0]).name == case.split()[0] for case in CASES)


@pytest.mark.parametrize(
    ("name", "options", "printed"),
    [
        ("wavegan", {"d_input": 1, "d_output": 10}, 26.3e6),
        ("convnet", {"d_input": 1, "d_output": 35}, 26.2e6),
        ("inception", {"d_input": 1, "d_output": 35}, 481e3),
        ("resnet1d", {"d_input": 1, "d_output": 35}, 216e3),
        ("xresnet1d", {"d_input": 1, "d_output": 35}, 904e3),
        ("resnet2d", {"d_input": 3, "d_output": 10}, 11.0e6),
        ("resnet2d", {"d_input": 3, "d_output": 10, "norm": "layer"}, 11.0e6),
    ],
)
def test_as_large_as_the_paper_says(name, options, printed):
    model = models.build(name, None, options, device="meta")
    assert abs(sum(p.numel() for p in model.parameters()) / printed - 1) < 0.02


@cases
def test_shapes_and_gradients(case):
    model, length = make(case)
    x = torch.randn(6, length, 2, dtype=f64, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):  # XResNet's blocks begin as the identity
        optimizer.zero_grad()
        y = model(x)
        functional.cross_entropy(y, torch.arange(6) % 5).backward()
        optimizer.step()
    assert (y.shape, y.dtype) == ((6, 5), f64)
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum((1, 2)).min() > 0
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@cases
def test_a_sequence_has_the_same_scores_in_any_batch(case):
    model, length = settled(case)
    x = torch.randn(5, length, 2, dtype=f64)
    with torch.no_grad():
        together, alone = model(x), torch.cat([model(one[None]) for one in x])
    assert (together - alone).abs().max() <= 1e-12 * together.abs().max()
    assert (together[0] - together[1]).abs().max() > 1e-6


@pytest.mark.parametrize("case", ANY_LENGTH)
def test_another_sampling_rate_needs_no_training_and_has_no_step_size(case):
    model, length = settled(case)
    x = torch.randn(2, length, 2, dtype=f64)
    half = x[:, :: 2 if case[:8] != "resnet2d" else 4]
    with torch.no_grad():
        assert model(half).shape == (2, 5)
        assert torch.equal(model(half), model(half, dt_scale=2.0))
        assert (model(half) - model(x)).abs().max() > 1e-6


def test_one_length_only():
    model, length = make("wavegan")
    with pytest.raises(ValueError, match=r"x must have 1500 positions, those of training.*got 750"):
        model(torch.randn(2, length // 2, 2, dtype=f64))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lengths": [144, 7]}, ValueError, "lengths must be None, as the model 'resnet2d' cannot ignore padding"),
        ({"dt_scale": 0.0}, ValueError, "dt_scale must be a number > 0"),
        ({"x": torch.zeros(2, 144, 3, dtype=f64)}, ValueError, r"x must have shape \(batch, length, 2\)"),
        ({"x": torch.zeros(2, 143, 2, dtype=f64)}, ValueError, "as many positions as a square image.*got 143"),
        ({"x": torch.zeros(2, 0, 2, dtype=f64)}, ValueError, "x must have at least one position"),
        ({"x": torch.zeros(2, 144, 2)}, TypeError, "x must have the dtype of the model"),
        ({"x": torch.zeros(2, 144, dtype=torch.int64)}, TypeError, "x must have one of the dtypes"),
    ],
)
def test_what_forward_rejects(arguments, error, message):
    model, length = make("resnet2d")
    with pytest.raises(error, match=message):
        model(**{"x": torch.zeros(2, length, 2, dtype=f64), **arguments})


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("resnet1d", {"layer": "s4"}, ValueError, "options has no 'layer'"),
        ("resnet1d", {"d_state": 4}, ValueError, "options has no 'd_state'"),
        ("resnet1d", {"d_model": 0}, ValueError, "d_model must be an integer >= 1, got 0"),
        ("resnet1d", {"dropout": 1.0}, ValueError, "dropout must be a number >= 0 and < 1"),
        ("convnet", {"n_blocks": True}, TypeError, "n_blocks must be an integer >= 1"),
        ("wavegan", {"length": 0}, ValueError, "length must be an integer >= 1"),
        ("resnet2d", {"norm": "none"}, ValueError, "norm must be one of"),
        ("resnet2d", {"stem": 4}, ValueError, "stem must be odd, got 4"),
    ],
)
def test_options_that_are_rejected_without_data(name, options, error, message):
    with pytest.raises(error, match=message):
        models.check(name, options, values=True)
    with pytest.raises(error, match=message):
        models.build(name, None, {"d_input": 1, "d_output": 2, **options})


@cases
def test_there_is_no_recurrence(case):
    model, length = make(case)
    for use in (
        lambda: model.initial_state(2),
        lambda: model.prefill(torch.zeros(2, length, 2, dtype=f64)),
        lambda: model.step(torch.zeros(2, 2, dtype=f64), None),
    ):
        with pytest.raises(TypeError, match="needs a module with a recurrence"):
            use()


@cases
def test_saved_and_loaded(case, tmp_path):
    model, length = settled(case)
    model.save_pretrained(tmp_path / case)
    loaded = models.from_pretrained(tmp_path / case)
    x = torch.randn(3, length, 2, dtype=f64)
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


@cases
def test_reset_draws_what_the_constructor_draws(case):
    model, _ = make(case)
    other, _ = make(case)
    with torch.no_grad():
        for value in other.parameters():
            value.normal_()
    torch.manual_seed(1)
    other.reset_parameters()
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values()))


def convolve(x, weight, bias, stride=1):
    """A padded convolution (B, C, L), one output at a time."""
    wide, _, kernel = weight.shape
    x = functional.pad(x, (kernel // 2, kernel // 2))
    outs = [(x[:, None, :, t : t + kernel] * weight).sum((2, 3)) for t in range(0, x.shape[-1] - kernel + 1, stride)]
    return torch.stack(outs, -1) + bias.reshape(1, wide, 1)


def normalize(x, norm):
    mean, var = (value[:, None] for value in (norm.running_mean, norm.running_var))
    return (x - mean) / (var + norm.eps).sqrt() * norm.weight[:, None] + norm.bias[:, None]


def test_convnet_is_what_the_appendix_says():
    """Four stages of residual blocks; a linear map and a mean of four positions between them."""
    model = ConvNet(ConvNetConfig(d_input=1, d_output=3, d_model=2, n_blocks=1), dtype=f64)
    for _ in range(2):
        model(torch.randn(4, 300, 1, dtype=f64))
    model.eval()
    x = torch.randn(2, 300, 1, dtype=f64)
    y = torch.cat([x.mT, torch.zeros(2, 1, 512 - 300, dtype=f64)], -1)
    y = convolve(y, model.encoder.weight, model.encoder.bias)
    widths, lengths = [], []
    for module in model.stages:
        if isinstance(module, nn.AvgPool1d):
            y = y.unflatten(-1, (-1, 4)).mean(-1)
        elif isinstance(module, nn.Conv1d):
            y = (y.mT @ module.weight[..., 0].mT + module.bias).mT
        else:
            part = convolve(normalize(y, module.norm), module.convolution.weight, module.convolution.bias)
            y = y + part * 0.5 * (1 + torch.erf(part / math.sqrt(2)))
            widths.append(y.shape[1])
            lengths.append(y.shape[2])
    y = normalize(y, model.norm).mean(-1) @ model.head.weight.mT + model.head.bias
    assert (widths, lengths) == ([2, 4, 8, 16], [512, 128, 32, 8])
    assert (model(x) - y).abs().max() <= 1e-12


def test_wavegan_is_what_the_appendix_says():
    """Strides of four, and an output map that reads every remaining position."""
    model = WaveGan(WaveGanConfig(d_input=1, d_output=3, d_model=2, length=1100), dtype=f64)
    for _ in range(2):
        model(torch.randn(4, 1100, 1, dtype=f64))
    model.eval()
    x = torch.randn(2, 1100, 1, dtype=f64)
    y = torch.cat([x.mT, torch.zeros(2, 1, 2048 - 1100, dtype=f64)], -1)
    lengths = []
    for stage in range(5):
        block, down, norm = model.stages[5 * stage : 5 * stage + 3]
        part = convolve(y, block.convolution.weight, block.convolution.bias)
        y = normalize(y + torch.where(part > 0, part, 0.2 * part), block.norm)
        y = normalize(convolve(y, down.weight, down.bias, stride=4), norm)
        y = torch.where(y > 0, y, 0.2 * y)
        lengths.append(y.shape[-1])
    assert lengths == [512, 128, 32, 8, 2]
    assert (model(x) - (y.reshape(2, -1) @ model.head.weight.mT + model.head.bias)).abs().max() <= 1e-10


def test_pixels_are_folded_in_rows():
    model = ResNet2d(ResNet2dConfig(d_input=2, d_output=3, d_model=2), dtype=f64).eval()
    image = torch.zeros(1, 2, 6, 6, dtype=f64)
    image[0, 1, 2, 4] = 1.0
    x = torch.zeros(1, 36, 2, dtype=f64)
    x[0, 2 * 6 + 4, 1] = 1.0
    wanted = model.head(model.blocks(model.stem(image)).mean((2, 3)))
    assert torch.equal(model(x), wanted)


def test_layer_norm_is_over_channels_and_positions():
    model, length = make("resnet2d layer")
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 1 + 8 * 2 + 3
    assert all(norm.num_groups == 1 for norm in norms)
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    x = torch.randn(2, length, 2, dtype=f64)
    assert torch.equal(model.train()(x), model.eval()(x))  # no statistics of the batch


@cases
def test_learning(case):
    """Two kinds of signal or image, told apart on data that was not seen."""
    model, length = make(case, torch.float32, d_output=2, dropout=0.0)
    generator = torch.Generator().manual_seed(2)

    def batch(size):
        y = torch.randint(2, (size,), generator=generator)
        phase = torch.rand(size, 1, 1, generator=generator) * 6.28
        t = torch.arange(length)[None, :, None]
        noise = torch.randn(size, length, 2, generator=generator)
        return torch.sin(t * (0.3 + 0.6 * y[:, None, None]) + phase) + 0.2 * noise, y

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(25):
        x, y = batch(24)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, y = batch(100)
    with torch.no_grad():
        assert (model.eval()(x).argmax(-1) == y).float().mean() >= 0.9


def test_trained_by_recipe_and_evaluated_at_another_rate(tmp_path):
    """The same loop, data and evaluation as S4, down to the folder of the run."""
    recipe = read_recipe(
        "{name: cnn, data: {name: digits}, model: {name: resnet1d, d_model: 8, dropout: 0.0}, "
        "train: {epochs: 2, batch: 50, lr: 0.01, weight_decay: 0.0}}"
    )
    result = fit(recipe, tmp_path / "run", progress=False, device="cpu")
    assert result.test["accuracy"] > 0.3
    assert evaluate(tmp_path / "run", device="cpu") == pytest.approx(result.test)
    half = evaluate(tmp_path / "run", dt_scale=2.0, overrides=["data.subsample=2"], device="cpu")
    assert 0.0 <= half["accuracy"] < result.test["accuracy"]
    assert models.from_pretrained(tmp_path / "run" / "model").config.d_output == 10
