"""What the page asks for: each address of the API and its answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from statespan._version import __version__
from statespan.data.inputs import WHOLE, answer_names
from statespan.models import Classifier
from statespan.plot.source import Part, parts_of, step_sizes
from statespan.view import layers, limits, signals
from statespan.view.fields import Fields, RefusedError, finite, parse_json
from statespan.view.streams import ClientStreams, obstacle

JSON = "application/json"


class Api:
    """Answers the page's requests: curves of layers, signals, and streams through a model.

    Args:
        model: A model with SSM layers, in evaluation mode; None for untrained layers only.
        name: Its name on the page.

    Example:
        >>> api = Api()
        >>> drawn = api.answer("/api/curves", "application/json", b'{"layer": "s4", "d_state": 4, "length": 8}')
        >>> len(drawn["heads"]), len(drawn["kernels"][0])
        (4, 8)
    """

    def __init__(self, model: nn.Module | None = None, name: str = "") -> None:
        self.name, self.model = name, model
        self.parts: list[Part] = [] if model is None else parts_of(model)
        self.reason = "" if model is None else obstacle(model)
        self.streams = None if model is None or self.reason else ClientStreams(model)
        self.lock = threading.Lock()  # torch's random numbers and threads belong to the process
        self.posts: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "/api/setup": self.setup,
            "/api/curves": self.curves,
            "/api/signal": self.signal,
            "/api/streams/open": self.open,
            "/api/streams/push": self.push,
            "/api/streams/close": self.close,
        }
        self.addresses = (*self.posts, "/api/file")

    def largest(self, address: str) -> int:
        """Bytes that the body of a request to an address may have."""
        return limits.LARGEST_FILE if address == "/api/file" else limits.LARGEST_JSON

    def answer(self, address: str, kind: str, body: bytes) -> dict[str, Any]:
        """The answer to a request with a body of a media type; a RefusedError says what is wrong with it."""
        allowed = tuple(signals.FILES) if address == "/api/file" else (JSON,)
        if kind not in allowed:
            raise RefusedError(f"Content-Type must be {' or '.join(allowed)}", 415)
        if address == "/api/file":
            samples, rate = signals.uploaded(kind, body, self._features())
            return {"samples": samples.tolist(), "rate": rate}
        content = parse_json(body)
        with self.lock:
            try:
                return self.posts[address](content)
            except (TypeError, ValueError) as error:  # the library names the argument and what is allowed
                raise RefusedError(str(error)) from None

    def setup(self, content: dict[str, Any]) -> dict[str, Any]:
        """The choices and ranges of the page's knobs, and what is known of the model."""
        Fields(content)
        return {
            "version": __version__,
            "choices": layers.CHOICES,
            "scaled": layers.SCALED,
            "ranges": layers.RANGES,
            "states": layers.STATES,
            "signals": signals.KINDS,
            "longest": {"kernel": limits.LONGEST_KERNEL, "block": limits.LONGEST_BLOCK, "outputs": limits.MOST_OUTPUTS},
            "model": None if self.model is None else self._about(self.model),
        }

    def curves(self, content: dict[str, Any]) -> dict[str, Any]:
        """The curves of an untrained layer, or of layer number ``part`` of the model."""
        if "part" not in content:
            return layers.fresh_curves(content)
        if not self.parts:
            raise RefusedError("part is a layer of a model, but there is no model: name one as statespan view MODEL")
        return layers.trained_curves(self.parts, content)

    def signal(self, content: dict[str, Any]) -> dict[str, Any]:
        """A generated signal."""
        return {"samples": signals.generated(content, self._features()).tolist()}

    def open(self, content: dict[str, Any]) -> dict[str, Any]:
        """Start a stream."""
        least, most = layers.RANGES["dt_scale"]
        dt_scale = Fields(content, "dt_scale").number("dt_scale", 1.0, least=least, most=most)
        return {"stream": self._streams().open(dt_scale)}

    def push(self, content: dict[str, Any]) -> dict[str, Any]:
        """Push samples through a stream: outputs, an answer after each ``every`` samples."""
        fields = Fields(content, "stream", "samples", "every")
        streams = self._streams()
        samples = fields.rows("samples", self._features(), limits.LONGEST_BLOCK)
        every = fields.integer("every", 1, least=1, most=limits.LONGEST_BLOCK)
        if len(samples) > every * limits.MOST_OUTPUTS:
            raise RefusedError(
                f"samples must be at most {limits.MOST_OUTPUTS} times every={every}, got {len(samples)} samples"
            )
        count, outputs = streams.push(fields.text("stream"), samples, every)
        return {"samples": count, "outputs": finite(outputs)}

    def close(self, content: dict[str, Any]) -> dict[str, Any]:
        """End a stream."""
        self._streams().close(Fields(content, "stream").text("stream"))
        return {}

    def _streams(self) -> ClientStreams:
        if self.streams is None:
            raise RefusedError(self.reason or "there is no model: name one as statespan view MODEL", 409)
        return self.streams

    def _features(self) -> int:
        return (getattr(getattr(self.model, "config", None), "d_input", None) or 1) if self.model is not None else 1

    def _about(self, model: Any) -> dict[str, Any]:
        """What the page shows of the model, and the range of signals that its training data suggest."""
        inputs, is_classifier = model.inputs, isinstance(model, Classifier)
        count = getattr(model.config, "d_output", None) or 1
        names = [] if inputs is None else answer_names(inputs.info)
        if len(names) != count:
            names = [str(n) if is_classifier else f"value {n}" for n in range(count)]
        amplitude, offset = 1.0, 0.0
        if inputs is not None and inputs.scaled is not None:
            scale, shift = inputs.scaled.scale[0], inputs.scaled.shift[0]
            whole = WHOLE if inputs.whole else 1.0
            amplitude, offset = 1 / (abs(scale) * whole), -shift / (scale * whole)
        return {
            "name": self.name,
            "kind": model.name,
            "parts": [{"name": part.name, "heads": len(step_sizes(part))} for part in self.parts],
            "reason": self.reason,
            "features": self._features(),
            "classes": is_classifier,
            "names": names,
            "unit": "" if inputs is None else getattr(inputs.info, "unit", ""),
            "rate": model.config.sampling_rate,
            "scaled": inputs is not None and inputs.scaled is not None,
            "amplitude": finite(amplitude),
            "offset": finite(offset),
        }
