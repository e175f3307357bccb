"""The base of all models: a config that rebuilds them, a backbone, and saving to a folder.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from statespan.data.inputs import Preparation, from_json
from statespan.models import hub
from statespan.models.config import BackboneConfig, ModelConfig, parse
from statespan.models.pretrained import INPUTS, LoadError, StoredModel, build_module, check_tensors, read, write
from statespan.nn.backbone import Composite
from statespan.nn.sequence import SequenceModule

if TYPE_CHECKING:
    from typing_extensions import Self


class Model(SequenceModule):
    """A model built from a config. Its state consists of real tensors; it is returned and never modified.

    Args:
        config: An instance of ``config_class``.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> from statespan.models import Classifier, ClassifierConfig
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=10, d_model=8, d_state=4, n_layers=1))
        >>> isinstance(model, Model), model.name, model.config.d_output
        (True, 'classifier', 10)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     Classifier.from_pretrained(folder)(torch.zeros(2, 50, 1)).shape
        torch.Size([2, 10])
    """

    name: ClassVar[str]
    """The name in the registry and in files."""
    tasks: ClassVar[tuple[str, ...]]
    """The kinds of data that the model is for."""
    config_class: ClassVar[type[Any]]
    config: Any
    backbone: Composite
    inputs: Preparation | None = None
    """What a trained model reads and answers, from its training data: ``model(model.inputs(series))`` scales recorded
    series, and ``model.inputs.answers`` names the classes. None if unknown: a new model."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if type(config) is not self.config_class:
            raise TypeError(f"config must be a {self.config_class.__name__}, got {type(config).__name__}")
        self.config = config
        self._build(config, {"device": device, "dtype": dtype})

    @abstractmethod
    def _build(self, config: Any, where: dict[str, Any]) -> None:
        """Build the modules in the order in which they draw random numbers; ``where`` holds device and dtype."""

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> Any:
        """The state before the first sample or token; see :class:`SequenceModule`."""
        return self.backbone.initial_state(batch, dtype=dtype)

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the config, the weights and the description of the inputs in a folder, as JSON and safetensors.

        At any moment, also if the process dies, the folder holds the old model or the new one.

        Args:
            folder: Created if it does not exist.
        """
        dtype = next(p.dtype for name, p in self.named_parameters() if ".ssm." not in name)
        inputs = None if self.inputs is None else self.inputs.to_json()
        write(folder, StoredModel(self.name, self.config.to_dict(), dtype, dict(self.state_dict()), inputs))

    def push_to_hub(
        self,
        repository: str,
        *,
        private: bool = False,
        revision: str | None = None,
        message: str = "Upload a statespan model",
        token: str | None = None,
    ) -> str:
        """Upload the model to the Hugging Face Hub in one commit, which replaces the weights there.

        Needs huggingface_hub (``pip install "statespan[hub]"``) and a login or a token.

        Args:
            repository: ``user/name``; created if it does not exist, with a model card.
            private: Create it as a private repository.
            revision: Branch to commit to; created if it does not exist. None for the main branch.
            message: The commit's message.
            token: A token with the right to write; None for that of the login.

        Returns:
            The name of this version, ``hf://user/name@commit``, for ``from_pretrained`` and ``statespan.load``.
        """
        return hub.push(self, repository, private=private, revision=revision, message=message, token=token)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: torch.device | str | None = None) -> Self:
        """Load a model saved by :meth:`save_pretrained` or :meth:`push_to_hub`, in evaluation mode.

        Args:
            folder: Where it was saved; or ``hf://user/name`` for a model on the Hub, with ``@revision`` if wanted.
            Without ``hf://``, a folder of this name comes first.
            device: Where to load it.

        Raises:
            LoadError: If anything is missing, damaged or of another kind.
        """
        return cls._from_stored(read(hub.locate(folder)), folder, device)

    @classmethod
    def _from_stored(cls, stored: StoredModel, folder: str | Path, device: torch.device | str | None) -> Self:
        if stored.name != cls.name:
            raise LoadError(f"{folder} holds the model {stored.name!r}, not {cls.name!r}")
        try:
            config = parse(cls.config_class, stored.config)
            weights = sum(tensor.numel() for tensor in stored.tensors.values())
            if config.least_weights() > weights:  # rejected before time is spent on building it
                raise ValueError(f"it has more than the {weights} weights that are there")

            n_layers = config.n_layers if isinstance(config, BackboneConfig) else 1

            def make(n: int) -> Model:
                return cls(config if n == n_layers else replace(config, n_layers=n), dtype=stored.dtype)

            model = build_module(make, n_layers, len(stored.tensors))
        except LoadError:
            raise
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise LoadError(f"{folder} has a config that cannot be built: {error}") from error
        check_tensors(stored.tensors, model.state_dict())
        model.load_state_dict(stored.tensors, assign=True)
        try:
            model.inputs = None if stored.inputs is None else from_json(stored.inputs)
        except ValueError as error:
            raise LoadError(f"{Path(folder) / INPUTS} is damaged: {error}") from error
        return (model if device is None else model.to(device)).eval()
