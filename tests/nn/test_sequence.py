"""The interface of layers, and what users see of it: signatures, defaults and documentation."""

import inspect
from typing import get_args, get_type_hints

import pytest
import torch

from statespan import DSS, LRU, LSSL, S4, S4D, S5, SSMLayer
from statespan.models import BackboneConfig
from statespan.nn import Backbone, DiagonalParameters, FeedForward, ResidualBlock, SequenceLayer, SSMOptions, UNet
from statespan.nn.irregular import with_gaps
from statespan.papers.baselines.attention import Attention
from statespan.papers.baselines.linear_attention import LinearAttention, Performer
from tests.nn.make_stack import LENGTHS, check_lengths, check_streaming

f64 = torch.float64
LAYERS = (S4, S4D, DSS, LSSL, S5, LRU)
ATTENTION = {"attention": Attention, "linear": LinearAttention, "performer": Performer}


@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_runs_in_a_backbone(kind):
    layers = [ATTENTION[kind](4, 2, dtype=f64), S4D(4, 8, dtype=f64), FeedForward(4, dtype=f64)]
    model, x = Backbone(layers, dtype=f64), torch.randn(4, 23, 4, dtype=f64)
    check_streaming(model, x, dt_scale=1.5)
    check_lengths(model, x, LENGTHS, streaming=kind != "attention")  # a cache is as large as for the longest


@pytest.mark.parametrize("layer", [S4D(4, 8), FeedForward(4), Attention(4, 2), ResidualBlock(S4D(4, 8))])
def test_every_layer_has_the_interface(layer):
    assert isinstance(layer, SequenceLayer)
    assert layer.d_output == layer.d_model == 4
    assert layer.is_position_wise == isinstance(layer, FeedForward)
    assert layer.step(torch.randn(2, 4), layer.initial_state(2, dtype=None))[0].shape == (2, 4)


def test_a_layer_with_forward_alone_refuses_to_stream():
    class Mean(SequenceLayer):
        def __init__(self):
            super().__init__()
            self.d_model = self.d_output = 4

        def forward(self, x, *, lengths=None, dt_scale=1.0):
            return x.mean(1, keepdim=True).expand_as(x)

    block, x = ResidualBlock(Mean()), torch.randn(2, 5, 4)
    assert block(x).shape == x.shape
    for use, call in {"prefill": block.prefill, "step": lambda x: block.stepper()}.items():
        with pytest.raises(TypeError, match=f"{use} needs a module with a recurrence, got Mean"):
            call(x)
    with pytest.raises(TypeError, match="initial_state needs a module with a recurrence, got Mean"):
        block.initial_state(2)


def test_only_position_wise_layers_ignore_irregular_times():
    x, gaps = torch.randn(2, 5, 4), torch.ones(2, 5)
    assert with_gaps(FeedForward(4), x, gaps).shape == x.shape
    for layer in (Attention(4, 2), UNet(4, lambda d_model: [S4D(d_model, 8)], pools=(2,))):
        with pytest.raises(TypeError, match="module must be made of S4D layers"):
            with_gaps(layer, x, gaps)
    for layer in (S5(4, 8), LRU(4, 8)):
        with pytest.raises(TypeError, match=r"module must be made of S4D layers.*got one of (S5|LRU)"):
            with_gaps(layer, x, gaps)


@pytest.mark.parametrize("cls", [*LAYERS, SSMLayer])
def test_every_argument_is_named_and_documented(cls):
    parameters = inspect.signature(cls).parameters.values()
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters)
    assert all(f"\n        {parameter.name}: " in cls.__doc__ for parameter in parameters)
    assert "{" not in cls.__doc__.replace('{"imag_scale": 0.01}', "")


@pytest.mark.parametrize("cls", LAYERS)
def test_options_in_words_list_what_is_allowed(cls):
    hints = get_type_hints(cls.__init__)
    rules = {} if cls is LRU else {"discretization": 2 if cls is S5 else 3}
    for name, allowed in {**rules, "mix": 2, "activation": 1}.items():
        options = [text for hint in (hints[name], *get_args(hints[name])) for text in get_args(hint)]
        assert len([text for text in options if isinstance(text, str)]) == allowed


def test_the_same_mixing_by_default_everywhere():
    defaults = {inspect.signature(cls).parameters["mix"].default for cls in (*LAYERS, SSMLayer)}
    assert defaults == {BackboneConfig().mix} == {"glu"}


def test_channels_are_the_kernels_that_look_back():
    options = SSMOptions(4, 8, kernels=6)
    assert SSMLayer(DiagonalParameters(options), bidirectional=True).channels == 3
    assert SSMLayer(DiagonalParameters(options)).channels == 6
    with pytest.raises(ValueError, match="bidirectional=True needs an even number of kernels, got 3"):
        SSMLayer(DiagonalParameters(SSMOptions(4, 8, kernels=3)), bidirectional=True)
