"""DecoderSpec: all that distinguishes one decoder from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding: position p turns pair i of the first `rotary_dim` dimensions by p * inverse_frequencies[i].

    Attributes:
        inverse_frequencies: rotary_dim / 2 of them, scaling already applied.
        attention_scaling: multiplies cosines and sines (YaRN).
        interleaved: pairs are neighbours instead of the two halves.
    """

    inverse_frequencies: tuple[float, ...]
    attention_scaling: float = 1.0
    interleaved: bool = False

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inverse_frequencies)


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """
    Attributes:
        architecture: the Hugging Face class name the checkpoint gives itself.
        context_length: positions the model was made for.
        sliding_windows: one a layer; None where a layer sees everything.
        checkpoint_dtype: of the weights as stored: `bfloat16`, `float16`, `float32`.
        eos_token_ids: every token that ends a text.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    context_length: int
    norm_eps: float
    rope: RopeSpec
    sliding_windows: tuple[int | None, ...]
    activation: Activation = "silu"
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    checkpoint_dtype: str = "bfloat16"
