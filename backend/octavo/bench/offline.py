"""What the offline benchmarks share: the corpus as tokens, greedy requests of a set length, where the model runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo.bench.machine import Machine, describe
from octavo.bench.workload import TokenRequest, corpus
from octavo.engine.intake import Prompt
from octavo.engine.llm import LLM
from octavo.errors import ConfigError
from octavo.outputs import RequestOutput
from octavo.sampling_params import SamplingParams


def corpus_tokens(llm: LLM) -> list[int]:
    """The benchmark's text in the model's tokens, without special ones."""
    tokens: list[int] = llm.get_tokenizer().encode(corpus(), add_special_tokens=False)
    return tokens


def generate(llm: LLM, requests: Sequence[TokenRequest], *, use_tqdm: bool = False) -> list[RequestOutput]:
    """Runs every request to its length, greedily, whatever the model would rather do."""
    prompts: list[Prompt] = [{"prompt_token_ids": request.prompt_token_ids} for request in requests]
    params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=request.output_len) for request in requests]
    return llm.generate(prompts, params, use_tqdm)


def check_fit(llm: LLM, longest: int, options: str) -> None:
    """Raises ConfigError if prompt and output together are longer than the model's context."""
    if longest > llm.info.max_model_len:
        raise ConfigError(
            f"{options} is {longest}, but the model's context is {llm.info.max_model_len} tokens: "
            "lower the one or the other"
        )


def uses_cuda(llm: LLM) -> bool:
    return llm.config.device != "cpu" and torch.cuda.is_available()


def machine_of(llm: LLM) -> Machine:
    return describe(threads=torch.get_num_threads(), gpu=torch.cuda.get_device_name() if uses_cuda(llm) else None)
