"""Generation rules, one for each kind of model: how to read a prompt, choose a value and feed it back.

Shapes: B batch, P length of a prompt, K outputs at a position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan._check import check_tensor
from statespan.generation.adaptive import choose
from statespan.generation.sampling import Sampling
from statespan.models import LanguageModel, PixelModel, Regressor
from statespan.models.encoder import check_tokens


class NextValue(NamedTuple):
    """The value chosen for each row at one position.

    Example:
        >>> chosen = NextValue(value=torch.tensor([7]), score=torch.tensor([-0.5]), read=torch.tensor([7]))
        >>> chosen._replace(read=chosen.value + 1).read
        tensor([8])
    """

    value: Tensor
    """The generated tokens (B,) int64, or values (B, K)."""
    score: Tensor
    """The model's log-probability of the value (B,), float32; 0 if it has none."""
    read: Tensor
    """The next input of the model: tokens (B,), or samples (B, K)."""


class Rule(ABC):
    """The generation rule of one kind of model.

    Example:
        >>> class Likeliest(Rule):
        ...     def prompt(self, given, batch):
        ...         return given
        ...     def choose(self, outputs, position, uniform):
        ...         token = outputs.argmax(-1)
        ...         return NextValue(token, outputs.amax(-1), token)
        >>> Likeliest().choose(torch.tensor([[-2.0, -0.1]]), torch.tensor([0]), torch.tensor([0.5])).value
        tensor([1])
    """

    @abstractmethod
    def prompt(self, given: Any, batch: int | None) -> Tensor:
        """The first input of the model, (B, ≥ 1, …)."""

    @abstractmethod
    def choose(self, outputs: Tensor, position: Tensor, uniform: Tensor) -> NextValue:
        """The next value of each row, from outputs (B, K), its position (B,) and its random number (B,)."""

    start: int = 0
    """Positions that the model reads before the first one of a sequence."""
    decode: bool = True
    """Whether it chooses from the model's outputs; False for the features before them."""


class TokenRule(Rule):
    """Text: tokens that the model reads and predicts.

    Example:
        >>> from statespan.models import LanguageConfig
        >>> model = LanguageModel(LanguageConfig(vocabulary=3, d_model=8, d_state=4, n_layers=1))
        >>> rule = TokenRule(model, Sampling(temperature=0))
        >>> rule.choose(torch.tensor([[-2.0, -0.1, -4.0]]), torch.tensor([0]), torch.tensor([0.5])).value
        tensor([1])
    """

    def __init__(self, model: Any, sampling: Sampling) -> None:
        self.vocabulary, self.sampling = int(model.config.vocabulary), sampling
        self.normal = isinstance(model, LanguageModel)  # its outputs are log-probabilities already

    def prompt(self, given: Any, batch: int | None) -> Tensor:
        """Tokens (B, P), at least one each."""
        if given is None:
            raise ValueError(
                "prompt must be tokens (batch, length), at least one each, for a model of tokens, got None"
            )
        x = check_tokens("prompt", given, ("batch", "length"), self.vocabulary)
        if x.shape[1] == 0:
            raise ValueError("prompt must have at least one token for each sequence, got none")
        return x.long()

    def choose(self, outputs: Tensor, position: Tensor, uniform: Tensor) -> NextValue:
        """Draw a token from the model's probabilities."""
        token = self.sampling(outputs, uniform)
        score = outputs.gather(-1, token[:, None])[:, 0].float()
        return NextValue(token, score if self.normal else score - outputs.float().logsumexp(-1), token)


class AdaptiveRule(TokenRule):
    """Text by an adaptive softmax from features, for sampling without cut-offs.

    Example:
        >>> from statespan.models import LanguageConfig
        >>> model = LanguageModel(LanguageConfig(vocabulary=100, cutoffs=(20,), d_model=8, d_state=4, n_layers=1))
        >>> rule = rule_of(model, Sampling())
        >>> type(rule).__name__, rule.choose(torch.zeros(2, 8), torch.zeros(2), torch.tensor([0.1, 0.9])).value.shape
        ('AdaptiveRule', torch.Size([2]))
    """

    decode = False

    def __init__(self, model: LanguageModel, sampling: Sampling) -> None:
        super().__init__(model, sampling)
        self.tokens: Any = model.tokens

    def choose(self, outputs: Tensor, position: Tensor, uniform: Tensor) -> NextValue:
        """Draw a token from features (B, D)."""
        token, score = choose(self.tokens, outputs, uniform, self.sampling.temperature)
        return NextValue(token, score, token)


class PixelRule(TokenRule):
    """Images: values of one or more channels, each with its own tokens, after a start token.

    Example:
        >>> from statespan.models import PixelsConfig
        >>> model = PixelModel(PixelsConfig(vocabulary=257, d_output=256, d_model=8, d_state=4, n_layers=1, pools=()))
        >>> PixelRule(model, Sampling()).prompt(torch.tensor([[0, 255]]), None)  # 0 starts an image
        tensor([[  0,   1, 256]])
    """

    start = 1

    def __init__(self, model: PixelModel, sampling: Sampling) -> None:
        super().__init__(model, sampling)
        self.values = int(model.config.d_output)
        self.channels, rest = divmod(self.vocabulary - 1, self.values)
        if rest:
            raise ValueError(
                f"model must read a start and {self.values} tokens for each channel, or the tokens it predicts, got "
                f"vocabulary={self.vocabulary}"
            )

    def prompt(self, given: Any, batch: int | None) -> Tensor:
        """Values (B, P), P ≥ 0, after the start."""
        if given is None:
            given = torch.zeros(1 if batch is None else batch, 0, dtype=torch.int64)
        x = check_tokens("prompt", given, ("batch", "length"), self.values).long()
        tokens = 1 + x + self.values * (torch.arange(x.shape[1], device=x.device) % self.channels)
        return torch.nn.functional.pad(tokens, (1, 0))

    def choose(self, outputs: Tensor, position: Tensor, uniform: Tensor) -> NextValue:
        """Choose a value; the model reads it as the token of its channel."""
        chosen = super().choose(outputs, position, uniform)
        return chosen._replace(read=1 + chosen.value + self.values * (position % self.channels))


class SeriesRule(Rule):
    """Series: the model's output is the next sample. Nothing is random.

    Example:
        >>> from statespan.models import ClassifierConfig
        >>> model = Regressor(ClassifierConfig(d_input=2, d_output=2, d_model=8, d_state=4, n_layers=1))
        >>> rule = SeriesRule(model)
        >>> rule.choose(torch.tensor([[0.5, 1.5]]), torch.tensor([0]), torch.tensor([0.1])).read
        tensor([[0.5000, 1.5000]])
    """

    def __init__(self, model: Regressor) -> None:
        config = model.config
        if config.d_input != config.d_output:
            raise ValueError(
                f"model must predict samples like those it reads, got d_input={config.d_input} and "
                f"d_output={config.d_output}"
            )
        self.width, self.dtype = int(config.d_input), next(model.parameters()).dtype

    def prompt(self, given: Any, batch: int | None) -> Tensor:
        """Samples (B, P, K)."""
        x = check_tensor("prompt", given, ("batch", "length", self.width), kind="float")
        if x.shape[1] == 0:
            raise ValueError("prompt must have at least one sample for each sequence, got none")
        return x.to(self.dtype)

    def choose(self, outputs: Tensor, position: Tensor, uniform: Tensor) -> NextValue:
        """Return the output itself."""
        return NextValue(outputs, outputs.new_zeros(len(outputs), dtype=torch.float32), outputs)


def rule_of(model: Any, sampling: Sampling) -> Rule:
    """The rule of a model."""
    if isinstance(model, PixelModel) and model.config.vocabulary != model.config.d_output:
        return PixelRule(model, sampling)
    if isinstance(model, LanguageModel) and model.config.cutoffs and sampling.plain and sampling.temperature > 0:
        return AdaptiveRule(model, sampling)
    if isinstance(model, (LanguageModel, PixelModel)):
        return TokenRule(model, sampling)
    if isinstance(model, Regressor):
        return SeriesRule(model)
    raise TypeError(
        f"model must be a LanguageModel, a PixelModel, a Regressor that predicts its next input or a Forecaster, got "
        f"{type(model).__name__}"
    )
