"""Models for other programs: ONNX and exported programs of torch."""

from statespan.export.write import ExportError, describe_inputs, export

__all__ = ["ExportError", "describe_inputs", "export"]
