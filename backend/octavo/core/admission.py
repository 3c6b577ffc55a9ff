"""Whether a sequence can ever run; one that cannot is refused with the numbers."""

from __future__ import annotations

from octavo.core.request import Sequence
from octavo.core.scheduler_config import SchedulerConfig
from octavo.errors import RequestError

_TOO_LONG = "context_length_exceeded"


def resolve_max_tokens(sequence: Sequence, config: SchedulerConfig) -> int:
    """Output tokens the sequence may have: what it asks for, bounded by the context and by the KV cache.

    The last token's KV is never needed, so alone a sequence can always reach kv_capacity + 1 tokens. Being bounded by
    that from the start, it ends there with `length`, whatever else runs; no sequence can wait for blocks that cannot
    exist.

    Raises:
        RequestError: the sequence can never run.
    """
    prompt, capacity = sequence.num_prompt_tokens, config.kv_capacity
    if prompt < 1:
        raise RequestError("the prompt is empty; give at least one token", "prompt")
    if prompt >= config.max_model_len:
        raise RequestError(
            f"the prompt has {prompt} tokens, which leaves no room for output in the context of "
            f"{config.max_model_len} tokens (max_model_len); shorten the prompt",
            "prompt",
            _TOO_LONG,
        )
    if prompt > capacity:
        raise RequestError(
            f"the prompt has {prompt} tokens, but the KV cache holds only {capacity}; shorten the prompt or give the "
            "engine a larger cache (kv_cache_memory_bytes)",
            "prompt",
            _TOO_LONG,
        )
    max_tokens = min(config.max_model_len, capacity + 1) - prompt
    if sequence.params.max_tokens is not None:
        max_tokens = min(max_tokens, sequence.params.max_tokens)
    _check_forks(sequence, max_tokens, config)
    if sequence.num_output_tokens >= max_tokens:
        raise RequestError(
            f"the sequence resumes with {sequence.num_output_tokens} output tokens, but may have only {max_tokens} "
            "(max_tokens, max_model_len or the KV cache); there is nothing left to generate",
            "max_tokens",
        )
    return max_tokens


def _check_forks(sequence: Sequence, max_tokens: int, config: SchedulerConfig) -> None:
    count = sequence.num_sequences
    if count > config.max_num_seqs:
        raise RequestError(
            f"n is {count}, but at most {config.max_num_seqs} sequences run at once (max_num_seqs); ask for fewer",
            "n",
        )
    if count > 1 and sequence.num_output_tokens:
        raise RequestError("sequences that resume are added one by one; num_sequences must be 1", "n")
    # Forks share the prompt's full blocks; each needs a block of its own to write its first token's KV.
    blocks = sequence.num_prompt_tokens // config.block_size + count
    if count > 1 and max_tokens > 1 and blocks > config.num_blocks:
        raise RequestError(
            f"n is {count}: that many sequences of a prompt of {sequence.num_prompt_tokens} tokens need room for at "
            f"least {blocks * config.block_size} tokens in the KV cache, which holds {config.kv_capacity}; ask for "
            "fewer or give the engine a larger cache (kv_cache_memory_bytes)",
            "n",
        )
