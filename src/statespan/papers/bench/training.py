"""One training step of a small residual model: forward, loss, backward, AdamW.

Shapes: B batch, L length, D features.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from statespan.ops import use_path
from statespan.papers.bench.case import Settings, Tensors, Work
from statespan.papers.bench.measure import measure_memory
from statespan.train import param_groups

EAGER, COMPILED, GRAPHED, BOTH = "eager", "torch.compile", "CUDA graph", "torch.compile, CUDA graph"


class Residual(nn.Module):
    """An encoder, residual blocks, a mean over the sequence, one score a class.

    Args:
        encoder: From the input to (B, L, D).
        blocks: From (B, L, D) to the same.
        d_model: D.
        classes: Scores.
    """

    def __init__(
        self, encoder: nn.Linear | nn.Embedding, blocks: Sequence[nn.Module], d_model: int, classes: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(d_model, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (B, classes)."""
        return self.head(self.blocks(self.encoder(x)).mean(1))


class Step:
    """A training step on one batch.

    Args:
        model: The gradient of its encoder's weight stands for that of the input.
        inputs: The batch.
        labels: (B,).
        settings: The user's choices; half precision runs under autocast.
        path: How SSMs are applied.
    """

    def __init__(self, model: Residual, inputs: Tensor, labels: Tensor, settings: Settings, path: str) -> None:
        self.model, self.inputs, self.labels, self.settings, self.path = model, inputs, labels, settings, path
        self.forward: Callable[[Tensor], Tensor] = model
        groups = param_groups(model, lr=1e-3, weight_decay=0.05)
        on_cuda = settings.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(groups, fused=on_cuda, capturable=on_cuda)

    def gradients(self, inputs: Tensor, labels: Tensor) -> Tensors:
        """Forward and backward; the scores and the gradient of the encoder, where the whole backward pass ends."""
        self.optimizer.zero_grad()
        with use_path(self.path), self.settings.autocast():
            scores = self.forward(inputs)
        nn.functional.cross_entropy(scores.to(self.settings.parameter_dtype), labels).backward()
        gradient = self.model.encoder.weight.grad
        assert gradient is not None
        return {"output": scores.detach(), "input gradient": gradient}

    def __call__(self) -> Tensors:
        """The whole step."""
        results = self.gradients(self.inputs, self.labels)
        self.optimizer.step()
        self.optimizer.zero_grad()  # so that the next step's peak memory counts its gradients
        return results


def step_work(
    model: Residual,
    inputs: Tensor,
    settings: Settings,
    *,
    classes: int,
    path: str = "auto",
    variant: str = EAGER,
    sample: int | None = None,
    reference: Residual | None = None,
    graph: bool = False,
) -> Work:
    """A model's training step.

    Args:
        model: The model.
        inputs: Tokens (B, L) or numbers (B, L, features), on any device.
        settings: The user's choices.
        classes: Number of classes the labels are drawn from.
        path: How SSMs are applied.
        variant: "eager", "torch.compile", "CUDA graph", or both.
        sample: Compare this many sequences only, for models whose reference would not fit otherwise.
        reference: A model with the same parameters to compare with; None for the model itself.
        graph: Whether to time it as a CUDA graph too.

    Returns:
        The work: scores and the gradient of the encoder's weight, compared with the path "fft" in wide precision.
    """
    device = settings.device
    model = model.to(device, settings.parameter_dtype)
    labels = torch.randint(classes, (inputs.shape[0],)).to(device)
    inputs = inputs.to(device)
    if inputs.is_floating_point():
        inputs = inputs.to(settings.dtype)
    wide = copy.deepcopy(reference or model).to(device, settings.wide)
    start = copy.deepcopy(model.state_dict())
    wide.load_state_dict(start)
    step = Step(model, inputs, labels, settings, path)
    some = slice(sample)

    def wanted() -> Tensors:
        full = Settings(device, settings.wide, settings.seed, settings.quick, settings.sizes)
        x = inputs.to(settings.wide) if inputs.is_floating_point() else inputs
        return Step(wide, x, labels, full, "fft").gradients(x[some], labels[some])

    run: Callable[[], Tensors] = step
    peak = None
    if variant in (COMPILED, BOTH):
        step.forward = _compiled(model)
    if variant in (GRAPHED, BOTH):
        run, peak = _captured(step, start)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    compared = None if sample is None else lambda: step.gradients(inputs[some], labels[some])
    return Work(run, wanted, parameters, peak, compared, graph=graph)


def _compiled(model: Residual) -> Callable[[Tensor], Tensor]:
    """The model compiled, without the compiler's warnings about complex numbers."""
    torch._dynamo.reset()
    compiled = torch.compile(model)

    def forward(x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compiled(x)

    return forward


def _captured(step: Step, start: dict[str, Tensor]) -> tuple[Callable[[], Tensors], float]:
    """The step as a CUDA graph, its model at ``start`` again, and the peak memory of a step."""
    device = step.settings.device
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
        peak = measure_memory(step, device)
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = step()
    with torch.no_grad():
        for name, value in step.model.state_dict().items():
            value.copy_(start[name])

    def replay() -> Tensors:
        graph.replay()
        return results

    return replay, peak
