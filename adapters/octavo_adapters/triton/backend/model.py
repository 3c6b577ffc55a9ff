"""The backend `octavo`: copy this directory to `<backend directory>/octavo`."""

from octavo_adapters.triton import TritonPythonModel

__all__ = ["TritonPythonModel"]
