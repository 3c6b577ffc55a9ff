"""octavo as a Python-based backend of NVIDIA Triton Inference Server."""

from __future__ import annotations

from typing import Any

__all__ = ["TritonPythonModel"]


def __getattr__(name: str) -> Any:
    """`TritonPythonModel` is importable inside Triton's stub process alone."""
    if name == "TritonPythonModel":
        from octavo_adapters.triton.model import TritonPythonModel

        return TritonPythonModel
    raise AttributeError(f"module 'octavo_adapters.triton' has no attribute '{name}'")
