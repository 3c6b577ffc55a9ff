from octavo_adapters.triton import TritonPythonModel

__all__ = ["TritonPythonModel"]
