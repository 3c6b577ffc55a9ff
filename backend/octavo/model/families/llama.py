"""Llama 2, 3 and 3.x, SmolLM2, and others of the same architecture."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from octavo.model.families.family import Family
from octavo.model.families.rope import rope_spec
from octavo.model.spec import DecoderSpec

NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "layers.{i}.attention_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.mlp_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.q.weight": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.k.weight": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.v.weight": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.o.weight": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.q.bias": "model.layers.{i}.self_attn.q_proj.bias",
    "layers.{i}.k.bias": "model.layers.{i}.self_attn.k_proj.bias",
    "layers.{i}.v.bias": "model.layers.{i}.self_attn.v_proj.bias",
    "layers.{i}.o.bias": "model.layers.{i}.self_attn.o_proj.bias",
    "layers.{i}.gate.weight": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.up.weight": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.down.weight": "model.layers.{i}.mlp.down_proj.weight",
    "layers.{i}.gate.bias": "model.layers.{i}.mlp.gate_proj.bias",
    "layers.{i}.up.bias": "model.layers.{i}.mlp.up_proj.bias",
    "layers.{i}.down.bias": "model.layers.{i}.mlp.down_proj.bias",
}

GGUF_NAMES = {
    "embedding.weight": "token_embd.weight",
    "final_norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
    "layers.{i}.attention_norm.weight": "blk.{i}.attn_norm.weight",
    "layers.{i}.mlp_norm.weight": "blk.{i}.ffn_norm.weight",
    "layers.{i}.q.weight": "blk.{i}.attn_q.weight",
    "layers.{i}.k.weight": "blk.{i}.attn_k.weight",
    "layers.{i}.v.weight": "blk.{i}.attn_v.weight",
    "layers.{i}.o.weight": "blk.{i}.attn_output.weight",
    "layers.{i}.q.bias": "blk.{i}.attn_q.bias",
    "layers.{i}.k.bias": "blk.{i}.attn_k.bias",
    "layers.{i}.v.bias": "blk.{i}.attn_v.bias",
    "layers.{i}.o.bias": "blk.{i}.attn_output.bias",
    "layers.{i}.gate.weight": "blk.{i}.ffn_gate.weight",
    "layers.{i}.up.weight": "blk.{i}.ffn_up.weight",
    "layers.{i}.down.weight": "blk.{i}.ffn_down.weight",
    "layers.{i}.gate.bias": "blk.{i}.ffn_gate.bias",
    "layers.{i}.up.bias": "blk.{i}.ffn_up.bias",
    "layers.{i}.down.bias": "blk.{i}.ffn_down.bias",
}

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def llama_spec(config: Any, **changes: Any) -> DecoderSpec:
    """The spec of a Llama-shaped config; `changes` override what a relative does otherwise."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    bias = getattr(config, "attention_bias", False)
    fields: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads or config.num_attention_heads,
        "head_dim": head_dim,
        "intermediate_size": config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "norm_eps": config.rms_norm_eps,
        "rope": rope_spec(config, head_dim=head_dim),
        "sliding_windows": (None,) * config.num_hidden_layers,
        "activation": _ACTIVATIONS[config.hidden_act],
        "qkv_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": getattr(config, "mlp_bias", False),
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    return DecoderSpec(**{**fields, **changes})


def llama_gguf_config(metadata: Mapping[str, Any]) -> Any:
    """The Hugging Face config that a GGUF file's `llama.*` metadata stands for, or what of it a spec needs."""

    def get(name: str, default: Any = None) -> Any:
        return metadata.get(f"llama.{name}", default)

    theta = get("rope.freq_base", 10000.0)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    scaling = get("rope.scaling.type", "none")
    if scaling in ("linear", "yarn"):
        rope |= {"rope_type": scaling, "factor": get("rope.scaling.factor", 1.0)}
        original = get("rope.scaling.original_context_length")
        if scaling == "yarn" and original is not None:
            rope["original_max_position_embeddings"] = original
    heads = get("attention.head_count")
    config = SimpleNamespace(
        vocab_size=get("vocab_size") or len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=get("embedding_length"),
        intermediate_size=get("feed_forward_length"),
        num_hidden_layers=get("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=get("attention.head_count_kv", heads),
        head_dim=get("attention.key_length") or get("embedding_length") // heads,
        max_position_embeddings=get("context_length"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon", 1e-6),
        hidden_act="silu",
        tie_word_embeddings=False,
        rope_parameters=rope,
    )
    if rope["rope_type"] == "default":
        return config
    # Only for what transformers computes: its import takes as long as all the rest of loading.
    from transformers import LlamaConfig

    return LlamaConfig(**vars(config))


LLAMA = Family(
    architectures=("LlamaForCausalLM",),
    spec=llama_spec,
    names=NAMES,
    gguf_architecture="llama",
    gguf_config=llama_gguf_config,
    gguf_names=GGUF_NAMES,
    gguf_permuted=True,
)
