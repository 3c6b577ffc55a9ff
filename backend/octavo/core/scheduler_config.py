"""SchedulerConfig: the knobs planning reads, resolved to numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from octavo.config import EngineConfig
from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """
    Attributes:
        max_num_seqs: slots.
        max_num_batched_tokens: token budget of a step; at least max_num_seqs, so that no running sequence stalls.
        max_num_partial_prefills: sequences that may be in the middle of their prefill after a step.
        long_prefill_token_threshold: tokens of a step that prefills under way may take, together, before the
            sequences that wait have had their share.
        policy: `priority` serves the lowest value first, then by arrival; `fcfs` by arrival alone. Priority is strict:
            while better values keep the engine full, worse ones wait.
        num_blocks, block_size: the KV cache.
        max_model_len: most tokens of prompt and output.
        eos_token_ids: end a sequence unless its params ignore them.

    Raises:
        ConfigError: a number below 1, or a budget below max_num_seqs.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_partial_prefills: int
    long_prefill_token_threshold: int
    policy: Literal["fcfs", "priority"]
    block_size: int
    num_blocks: int
    max_model_len: int
    enable_prefix_caching: bool = True
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_num_partial_prefills",
            "long_prefill_token_threshold",
            "block_size",
            "num_blocks",
            "max_model_len",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}", name)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs ({self.max_num_seqs}); "
                "raise the one or lower the other",
                "max_num_batched_tokens",
            )

    @property
    def kv_capacity(self) -> int:
        """Tokens the whole KV cache holds."""
        return self.num_blocks * self.block_size

    @classmethod
    def from_engine(
        cls, config: EngineConfig, *, num_blocks: int, max_model_len: int, eos_token_ids: frozenset[int]
    ) -> Self:
        """The engine's options, with what only the loaded model and the free memory can tell."""
        threshold = config.long_prefill_token_threshold
        return cls(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_partial_prefills=config.max_num_partial_prefills,
            long_prefill_token_threshold=max(1, config.max_num_batched_tokens // 2) if threshold is None else threshold,
            policy=config.scheduling_policy,
            block_size=config.block_size,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            enable_prefix_caching=config.enable_prefix_caching,
            eos_token_ids=eos_token_ids,
        )
