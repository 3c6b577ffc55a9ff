"""Executor: what the engine's loop sees of execution."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import torch

from octavo.config import EngineConfig
from octavo.core.step import StepPlan, StepResult
from octavo.errors import ConfigError
from octavo.execution.batch import PersistentBatch
from octavo.execution.memory import KVSize, MiB, available_memory, cpu_budget, gpu_budget, size_kv_cache
from octavo.execution.runner import Runner
from octavo.execution.threads import default_num_threads
from octavo.model.loading import load_decoder, load_spec, resolve_dtype, resolve_model
from octavo.model.spec import DecoderSpec
from octavo.sampling.sampler import Sampler
from octavo_kernels import allocate_kv_cache, kv_bytes_per_block, missing_cpu_kernels

logger = logging.getLogger("octavo.execution")


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What was loaded, and how large the cache became."""

    architecture: str
    dtype: str
    device: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    weight_bytes: int
    num_blocks: int
    block_size: int
    kv_cache_bytes: int


class Executor(Protocol):
    """Executes plans, in the order they were made."""

    @property
    def info(self) -> ExecutorInfo: ...

    def execute(self, plan: StepPlan) -> StepResult: ...

    def shutdown(self) -> None:
        """Frees everything; the executor is of no use after it."""


class LocalExecutor:
    """One runner, in this process."""

    def __init__(self, runner: Runner, info: ExecutorInfo) -> None:
        self._runner: Runner | None = runner
        self.info = info

    def execute(self, plan: StepPlan) -> StepResult:
        if self._runner is None:
            raise RuntimeError("the executor has been shut down")
        return self._runner.execute(plan)

    def shutdown(self) -> None:
        self._runner = None


def build_executor(config: EngineConfig) -> Executor:
    """Loads the model, sizes and allocates the cache.

    Raises:
        ConfigError: the model, the device or the memory does not fit the options.
    """
    source = resolve_model(config.model, config.revision)
    if config.trust_remote_code:
        logger.warning("trust_remote_code is on: code that comes with the checkpoint may run")
    spec = load_spec(source, trust_remote_code=config.trust_remote_code)
    device = _device(config.device)
    if device.type == "cpu":
        torch.set_num_threads(config.num_threads or default_num_threads())
        missing = missing_cpu_kernels()
        if missing is not None:
            logger.warning("running the slow reference kernels, as the native ones are not there: %s", missing)
    dtype = resolve_dtype(config.dtype, spec, device)
    max_model_len = _max_model_len(config, spec)
    decoder = load_decoder(
        source, spec, dtype=dtype, device=device, quantization=config.quantization, num_positions=max_model_len
    )
    size = _kv_size(config, spec, dtype, device, max_model_len)
    caches = [
        allocate_kv_cache(size.num_blocks, size.block_size, spec.num_kv_heads, spec.head_dim, dtype, device)
        for _ in range(spec.num_layers)
    ]
    batch = PersistentBatch(
        max_num_seqs=config.max_num_seqs,
        max_num_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=size.block_size,
        device=device,
    )
    sampler = Sampler(spec.vocab_size, spec.eos_token_ids, batch.token_ids, device)
    info = ExecutorInfo(
        architecture=spec.architecture,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        vocab_size=spec.vocab_size,
        eos_token_ids=spec.eos_token_ids,
        max_model_len=max_model_len,
        weight_bytes=decoder.weight_bytes,
        num_blocks=size.num_blocks,
        block_size=size.block_size,
        kv_cache_bytes=size.num_bytes,
    )
    _log(info, size)
    return LocalExecutor(Runner(decoder, caches, batch, sampler), info)


def _device(wanted: str) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda was asked for, but PyTorch sees no CUDA device; use --device cpu", "device")
    if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _max_model_len(config: EngineConfig, spec: DecoderSpec) -> int:
    if config.max_model_len is None:
        return spec.context_length
    if config.max_model_len > spec.context_length:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}, but the model's context is {spec.context_length} tokens: "
            "lower it",
            "max_model_len",
        )
    if config.max_model_len < 2:
        raise ConfigError("max_model_len must be at least 2: one token of prompt, one of output", "max_model_len")
    return config.max_model_len


def _kv_size(
    config: EngineConfig, spec: DecoderSpec, dtype: torch.dtype, device: torch.device, max_model_len: int
) -> KVSize:
    per_layer = kv_bytes_per_block(config.block_size, spec.num_kv_heads, spec.head_dim, dtype, device)
    if config.kv_cache_memory_bytes is not None:
        budget, knob = config.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    elif device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        # The largest step's hidden states, gate and up, and its logits in float32.
        per_token = (4 * spec.hidden_size + 3 * spec.intermediate_size) * dtype.itemsize
        activations = config.max_num_batched_tokens * per_token + config.max_num_seqs * spec.vocab_size * 8
        budget, knob = gpu_budget(total, free, config.gpu_memory_utilization, activations), "gpu_memory_utilization"
    else:
        budget, knob = cpu_budget(available_memory(), config.cpu_memory_utilization), "cpu_memory_utilization"
    return size_kv_cache(
        budget,
        bytes_per_block=per_layer * spec.num_layers,
        block_size=config.block_size,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        knob=knob,
    )


def _log(info: ExecutorInfo, size: KVSize) -> None:
    logger.info(
        "%s in %s on %s: weights %.0f MiB; KV cache %d blocks of %d = %d tokens (%.0f MiB), %.1f requests of %d tokens",
        info.architecture,
        info.dtype,
        info.device,
        info.weight_bytes / MiB,
        size.num_blocks,
        size.block_size,
        size.num_tokens,
        size.num_bytes / MiB,
        size.num_tokens / info.max_model_len,
        info.max_model_len,
    )
