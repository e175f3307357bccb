"""One training step of a small residual model: forward, loss, backward, AdamW.

Shapes: B batch, L length, D features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

import statespan
from statespan._quiet import quiet
from statespan.ops import use_path
from statespan.papers.bench.case import BenchOptions, Tensors, Work, count_parameters
from statespan.papers.bench.measure import capture, measure_memory
from statespan.train import param_groups

EAGER, COMPILED, GRAPHED, BOTH = "eager", "torch.compile", "CUDA graph", "torch.compile, CUDA graph"
CAPTURED = "capture"
"""``statespan.capture``, which replaces forward and backward by CUDA graphs, and leaves the loop as it is."""


class ResidualClassifier(nn.Module):
    """An encoder, residual blocks, a mean over the sequence and class scores.

    Example:
        >>> model = ResidualClassifier(nn.Linear(1, 8), [nn.Identity()], nn.Linear(8, 10))
        >>> model(torch.zeros(2, 50, 1)).shape
        torch.Size([2, 10])
    """

    def __init__(self, encoder: nn.Linear | nn.Embedding, blocks: Sequence[nn.Module], head: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.blocks, self.head = encoder, nn.Sequential(*blocks), head

    def forward(self, x: Tensor) -> Tensor:
        """Scores (B, classes)."""
        return self.head(self.blocks(self.encoder(x)).mean(1))


@dataclass
class TrainingStep:
    """A training step on one batch, with the SSMs on ``path``.

    Example:
        >>> options = BenchOptions(torch.device("cpu"), torch.float32, seed=0, quick=True, sizes={})
        >>> model = ResidualClassifier(nn.Linear(1, 8), [nn.Identity()], nn.Linear(8, 10))
        >>> step = TrainingStep(model, torch.zeros(2, 50, 1), torch.tensor([0, 1]), options, "auto")
        >>> sorted(step())
        ['input gradient', 'output']
    """

    model: nn.Module  # its first parameter is where the backward pass ends
    inputs: Tensor  # tokens (B, L) or numbers (B, L, features)
    labels: Tensor  # (B,)
    options: BenchOptions
    path: str
    forward: Callable[[Tensor], Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.forward = self.model
        groups = param_groups(self.model, lr=1e-3, weight_decay=0.05)
        on_cuda = self.options.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(groups, fused=on_cuda, capturable=on_cuda)

    def gradients(self, count: int | None = None) -> Tensors:
        """Forward and backward; returns the scores and the gradient of the encoder, where the backward pass ends.

        ``count`` limits it to the first sequences of the batch.
        """
        x, labels = (t if count is None else t[:count] for t in (self.inputs, self.labels))
        self.optimizer.zero_grad()
        with use_path(self.path), self.options.autocast():
            scores = self.forward(x)
        nn.functional.cross_entropy(scores.to(self.options.parameter_dtype), labels).backward()
        gradient = next(self.model.parameters()).grad
        assert gradient is not None
        return {"output": scores.detach(), "input gradient": gradient}

    def __call__(self) -> Tensors:
        """Run the whole step."""
        results = self.gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()  # so that the next step's peak memory counts its gradients
        return results


def step_work(
    model: nn.Module,
    inputs: Tensor,
    options: BenchOptions,
    *,
    path: str = "auto",
    variant: str = EAGER,
    sample: int | None = None,
    reference: nn.Module | None = None,
    graph: bool = False,
    classes: int | None = None,
) -> Work:
    """A model's training step on tokens (B, L) or numbers (B, L, features), with SSMs applied by a ``path``.

    The reference is the same on the path "fft" in wide precision, of the model itself or of one with the same
    parameters. ``sample`` limits the comparison to the first sequences, for models whose reference would not fit.
    ``classes`` are those of the head if not given.
    """
    device = options.device
    model = model.to(device, options.parameter_dtype)
    if classes is None:
        assert isinstance(model, ResidualClassifier)
        classes = model.head.out_features
    labels = torch.randint(classes, (inputs.shape[0],)).to(device)
    inputs = inputs.to(device)
    if inputs.is_floating_point():
        inputs = inputs.to(options.dtype)
    wide = copy.deepcopy(reference or model).to(device, options.wide)
    start = copy.deepcopy(model.state_dict())
    wide.load_state_dict(start)
    step = TrainingStep(model, inputs, labels, options, path)

    def compared() -> Tensors:
        x = inputs.to(options.wide) if inputs.is_floating_point() else inputs
        return TrainingStep(wide, x, labels, replace(options, dtype=options.wide), "fft").gradients(sample)

    run: Callable[[], Tensors] = step
    peak = None
    if variant in (COMPILED, BOTH):
        step.forward = _compiled(model)
    if variant == CAPTURED:
        step.forward = statespan.capture(model)
    if variant in (GRAPHED, BOTH):
        run, peak = _captured(step, start)
    sampled = None if sample is None else lambda: step.gradients(sample)
    return Work(run, compared, count_parameters(model, trained=True), peak, sampled, graph=graph)


def _compiled(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model compiled, without the compiler's warnings about complex numbers."""
    torch._dynamo.reset()
    compiled = torch.compile(model)

    def forward(x: Tensor) -> Tensor:
        with quiet():
            return compiled(x)

    return forward


def _captured(step: TrainingStep, start: dict[str, Tensor]) -> tuple[Callable[[], Tensors], float]:
    """The step as a CUDA graph, with its model reset to ``start``, and the peak memory of a step."""
    peak = 0.0

    def warm_up() -> None:
        nonlocal peak
        for _ in range(3):
            step()
        peak = measure_memory(step, step.options.device)

    graph, results = capture(step, step.options.device, warm_up)
    with torch.no_grad():
        for name, value in step.model.state_dict().items():
            value.copy_(start[name])

    def replay() -> Tensors:
        graph.replay()
        return results

    return replay, peak
