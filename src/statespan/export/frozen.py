"""SSM layers with constants in place of parameters: real numbers only, any length.

Shapes: B batch, L length, H heads, N state size, K channels, c chunk length, n chunks, F = H·K.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from statespan.nn.layer import SSMLayer
from statespan.nn.mimo import MIMOParameters
from statespan.nn.padding import Lengths
from statespan.nn.sequence import SequenceLayer
from statespan.ssm.structure import toeplitz

CHUNK = 64


class FrozenSSM(SequenceLayer):
    """A layer's ``forward`` by chunks, with its matrices as constants.

    The recurrence from chunk to chunk is in float64: a rounding of its matrix is repeated in every chunk.

    Args:
        layer: The layer.
        dt_scale: Step of the data relative to that of training.

    Example:
        >>> from statespan.nn import S4D
        >>> layer, x = S4D(4), torch.randn(2, 100, 4)
        >>> torch.allclose(FrozenSSM(layer, dt_scale=1.0)(x), layer(x), atol=1e-5)
        True
    """

    T: Tensor
    E: Tensor
    G: Tensor
    O: Tensor  # noqa: E741

    def __init__(self, layer: SSMLayer, dt_scale: float) -> None:
        super().__init__()
        self.d_model, self.d_output = layer.d_model, layer.d_output
        self.gelu, self.both, self.mix = layer.activation is not None, layer.bidirectional, layer.mix
        mixing = isinstance(layer.ssm, MIMOParameters)  # whose modes neither look ahead nor skip
        ahead = layer.channels if layer.bidirectional and not mixing else 0
        K, E, G, O = layer.structure(dt_scale).operators(CHUNK, ahead=ahead, dtype=torch.float64)  # noqa: E741
        if ahead:  # from right to left they read the state before the sample itself
            K = torch.cat([K[:ahead], pad(K[ahead:, :, :-1], (1, 0))])
            O = torch.cat([O[:ahead], O[ahead:].flip(2)])  # noqa: E741
        if not mixing:
            K = K + pad(layer.D.double()[..., None], (0, CHUNK - 1, 0, 0, 0, ahead))
        dtype = layer.D.dtype
        self.register_buffer("T", toeplitz(K).mT.to(dtype).contiguous())  # (K, H, c, c), from inputs to outputs
        self.register_buffer("E", E.mT.to(dtype).contiguous())  # (H, c, N)
        self.register_buffer("G", G.contiguous())
        self.register_buffer("O", O.mT.to(dtype).contiguous())  # (K, H, N, c)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply to x (B, L, H)."""
        if not self.both:
            y = self._causal(x, self.T, self.O)
        else:
            (T, T_ahead), (O, O_ahead) = self.T.chunk(2), self.O.chunk(2)  # noqa: E741
            y = self._causal(x, T, O) + self._causal(x.flip(1), T_ahead, O_ahead).flip(1)
        return self.mix(gelu(y) if self.gelu else y)

    def _causal(self, x: Tensor, T: Tensor, O: Tensor) -> Tensor:  # noqa: E741
        batch, length, H = x.shape
        chunks = length // CHUNK + 2  # one more than needed, as tracers specialize on a size of 1
        u = pad(x, (0, 0, 0, chunks * CHUNK - length)).reshape(batch, chunks, CHUNK, H)
        u = u.permute(3, 1, 0, 2).reshape(H, chunks * batch, CHUNK)  # (H, n·B, c)
        drive = (u @ self.E).double().reshape(H, chunks, batch, self.E.shape[-1]).transpose(0, 1)  # (n, H, B, N)
        states = _scan(self.G, drive).transpose(0, 1).reshape(H, chunks * batch, self.E.shape[-1])
        y = u @ T + states.to(x.dtype) @ O  # (K, H, n·B, c)
        y = y.reshape(O.shape[0] * H, chunks, batch, CHUNK).permute(2, 1, 3, 0)
        return y.reshape(batch, chunks * CHUNK, O.shape[0] * H)[:, :length]


class FrozenMIMO(FrozenSSM):
    """The same of a layer with one SSM of all features, whose modes are heads.

    Example:
        >>> from statespan.nn import S5
        >>> layer, x = S5(4), torch.randn(2, 100, 4)
        >>> torch.allclose(FrozenMIMO(layer, dt_scale=1.0)(x), layer(x), atol=1e-5)
        True
    """

    def __init__(self, layer: SSMLayer, dt_scale: float) -> None:
        super().__init__(layer, dt_scale)
        assert isinstance(layer.ssm, MIMOParameters)
        self.ssm, self.D = layer.ssm, layer.D

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply to x (B, L, D)."""
        y = self._causal(self.ssm.drive(x, bidirectional=self.both), self.T, self.O)
        y = y.unflatten(-1, (2, -1))  # the real and the imaginary part of each mode
        out = self.ssm.read(y, x, self.D, bidirectional=self.both, activation="gelu" if self.gelu else None)
        return self.mix(out.to(x.dtype).flatten(-2))


def _scan(G: Tensor, drive: Tensor) -> Tensor:
    """The states before each chunk (n, H, B, N) of ``s' = G s + drive``."""

    def combine(state: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        if G.ndim == 3:
            new = state @ G.mT
        else:
            (re, im), (gr, gi) = state.chunk(2, -1), G[:, None].chunk(2, -1)
            new = torch.cat([gr * re - gi * im, gi * re + gr * im], -1)
        return new + drive, state.clone()

    state = torch.zeros_like(drive[0])
    if not torch.compiler.is_compiling():
        states = []
        for chunk_drive in drive.unbind():
            state, before = combine(state, chunk_drive)
            states.append(before)
        return torch.stack(states)
    from torch._higher_order_ops.scan import scan  # a loop that a tracer does not unroll

    return scan(combine, state, drive)[1]


class FrozenRate(SequenceLayer):
    """Any other layer at a sampling rate.

    Example:
        >>> from statespan.nn import S4D
        >>> layer, x = S4D(4), torch.randn(2, 100, 4)
        >>> torch.equal(FrozenRate(layer, dt_scale=2.0)(x), layer(x, dt_scale=2.0))
        True
    """

    def __init__(self, layer: Any, dt_scale: float) -> None:
        super().__init__()
        self.d_model, self.d_output, self.needs_lengths = layer.d_model, layer.d_output, layer.needs_lengths
        self.layer, self.dt_scale = layer, dt_scale

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply the layer at its own rate, whatever ``dt_scale`` is."""
        return self.layer(x, lengths=lengths, dt_scale=self.dt_scale)


def _knows_time(module: nn.Module) -> bool:
    """Whether a module is a layer of its own, rather than one made of layers, and not position-wise."""
    if not isinstance(module, SequenceLayer) or module.is_position_wise:
        return False
    return not any(isinstance(part, SequenceLayer) for part in list(module.modules())[1:])


def freeze(model: nn.Module, dt_scale: float) -> Any:
    """A copy of a model whose SSM layers are frozen at a sampling rate."""
    with torch.no_grad():
        twin = copy.deepcopy(model).eval()
        for module in list(twin.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, SSMLayer):
                    frozen = FrozenMIMO if isinstance(child.ssm, MIMOParameters) else FrozenSSM
                    setattr(module, name, frozen(child, dt_scale))
                elif dt_scale != 1.0 and _knows_time(child):
                    setattr(module, name, FrozenRate(child, dt_scale))
    return twin.requires_grad_(False)
