"""Models for other programs: ONNX and exported programs of torch."""

from statespan.export.write import ExportError, export

__all__ = ["ExportError", "export"]
