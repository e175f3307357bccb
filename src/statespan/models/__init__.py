"""Whole models, built by name from a config, saved as safetensors and JSON."""

from statespan.models.base import Model
from statespan.models.classifier import Classifier, ClassifierConfig, Regressor, Retrieval
from statespan.models.config import BackboneConfig, ModelConfig, register_layer
from statespan.models.forecaster import Forecaster, ForecasterConfig
from statespan.models.language import LanguageConfig, LanguageModel, MaskedConfig, MaskedModel
from statespan.models.pixels import PixelModel, PixelsConfig
from statespan.models.pretrained import LoadError
from statespan.models.registry import build, check, from_pretrained, names, register_model
from statespan.models.transducer import Transducer, TransducerConfig

__all__ = [
    "BackboneConfig",
    "Classifier",
    "ClassifierConfig",
    "Forecaster",
    "ForecasterConfig",
    "LanguageConfig",
    "LanguageModel",
    "LoadError",
    "MaskedConfig",
    "MaskedModel",
    "Model",
    "ModelConfig",
    "PixelModel",
    "PixelsConfig",
    "Regressor",
    "Retrieval",
    "Transducer",
    "TransducerConfig",
    "build",
    "check",
    "from_pretrained",
    "names",
    "register_layer",
    "register_model",
]
