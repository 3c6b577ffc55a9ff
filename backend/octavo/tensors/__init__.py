"""Generation as named tensors: what Triton's and KServe's inference protocols carry, in the names vLLM's Triton backend
uses. Plain Python values in, plain values out; each adapter turns its framework's tensors into them and back."""

from octavo.tensors.answer import TensorAnswer
from octavo.tensors.request import TensorRequest
from octavo.tensors.specs import INPUTS, OUTPUTS, TensorSpec
from octavo.tensors.stream import generate

__all__ = ["INPUTS", "OUTPUTS", "TensorAnswer", "TensorRequest", "TensorSpec", "generate"]
