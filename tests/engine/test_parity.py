"""Greedy output of the default model against transformers, token for token, in float32.

The oracle is transformers' own model over the finished text in one forward: by induction, greedy decoding gives
exactly these tokens if the largest logit at every position is the next token. Its log-softmax there is the oracle of
the logprobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from octavo import LLM, SamplingParams
from tests.engine.prompts import PROMPTS

pytestmark = pytest.mark.slow

NUM_TOKENS = 64
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
COMMON: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "max_model_len": 1024, "log_level": "warning"}
POOL_BYTES = 256 << 20


def make(path: Path, **knobs: Any) -> LLM:
    return LLM(str(path), **{**COMMON, "kv_cache_memory_bytes": POOL_BYTES, **knobs})


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with make(smollm2_path) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[list[int]]:
    """Output tokens of every prompt, run all in one batch on a cold cache."""
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert llm.stats.preemptions == 0
    return [output.outputs[0].token_ids for output in outputs]


def tokens(llm: LLM, prompts: list[str]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY, use_tqdm=False)]


def test_batch_equals_transformers_in_tokens_and_logprobs(llm: LLM, smollm2_path: Path) -> None:
    oracle = AutoModelForCausalLM.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32
    ).eval()
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert len(outputs) >= 24
    for output in outputs:
        completion = output.outputs[0]
        assert len(completion.token_ids) == NUM_TOKENS
        with torch.inference_mode():
            ids = torch.tensor([output.prompt_token_ids + completion.token_ids])
            logits = oracle(ids).logits[0, len(output.prompt_token_ids) - 1 : -1].float()
        assert logits.argmax(-1).tolist() == completion.token_ids, output.prompt
        want = torch.log_softmax(logits, -1)
        assert completion.logprobs is not None
        for position, given in enumerate(completion.logprobs):
            for token_id, one in given.items():
                assert one.logprob == pytest.approx(float(want[position, token_id]), abs=1e-4)


def test_alone_with_a_cold_and_a_warm_cache(llm: LLM, smollm2_path: Path, expected: list[list[int]]) -> None:
    with make(smollm2_path, enable_prefix_caching=False) as cold:
        for prompt, want in zip(PROMPTS[::6], expected[::6], strict=True):
            assert tokens(cold, [prompt]) == [want], prompt
    cached = 0
    for prompt, want in zip(PROMPTS[::3], expected[::3], strict=True):
        output = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
        assert output.outputs[0].token_ids == want, prompt
        cached += output.num_cached_tokens
    assert cached > 0


def test_batch_with_a_warm_cache(llm: LLM, expected: list[list[int]]) -> None:
    assert tokens(llm, PROMPTS) == expected


@pytest.mark.parametrize("chunk", [7, 64])
def test_chunk_sizes(smollm2_path: Path, expected: list[list[int]], chunk: int) -> None:
    with make(smollm2_path, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 32)) as engine:
        some = slice(None, None, 4) if chunk == 7 else slice(None)
        assert tokens(engine, PROMPTS[some]) == expected[some]


def test_chunks_of_one_token(smollm2_path: Path, expected: list[list[int]]) -> None:
    with make(smollm2_path, max_num_batched_tokens=1, max_num_seqs=1) as engine:
        some = [1, 10, 15]
        assert tokens(engine, [PROMPTS[i] for i in some]) == [expected[i] for i in some]


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_pool_so_small_that_requests_are_preempted(
    smollm2_path: Path, expected: list[list[int]], prefix_caching: bool
) -> None:
    # 30 layers, keys and values, 3 heads of 64, float32: 46,080 bytes a token. 40 blocks of 16 tokens hold the
    # longest request (about 290 tokens) and four or five of the others, out of 25.
    pool = 40 * 16 * 30 * 2 * 3 * 64 * 4
    with make(smollm2_path, kv_cache_memory_bytes=pool, enable_prefix_caching=prefix_caching) as engine:
        assert engine.info.num_blocks == 40
        some = slice(None) if prefix_caching else slice(None, None, 2)
        assert tokens(engine, PROMPTS[some]) == expected[some]
        assert engine.stats.preemptions > 0


def test_seeded_sampling_is_the_same_alone_batched_and_preempted(smollm2_path: Path, llm: LLM) -> None:
    prompts = PROMPTS[:12]
    params = [
        SamplingParams(
            temperature=0.9, top_p=0.95, top_k=40 * (i % 2), seed=i, n=1 + i % 3, max_tokens=40, ignore_eos=True
        )
        for i in range(len(prompts))
    ]

    def run(engine: LLM, which: list[int]) -> list[list[list[int]]]:
        results = engine.generate([prompts[i] for i in which], [params[i] for i in which], use_tqdm=False)
        return [[one.token_ids for one in result.outputs] for result in results]

    batched = run(llm, list(range(len(prompts))))
    assert [run(llm, [i])[0] for i in (0, 2, 5, 11)] == [batched[i] for i in (0, 2, 5, 11)]
    pool = 24 * 16 * 30 * 2 * 3 * 64 * 4
    with make(smollm2_path, kv_cache_memory_bytes=pool) as small:
        assert run(small, list(range(len(prompts)))) == batched
        assert small.stats.preemptions > 0
    first, second, third = batched[2]
    assert len({tuple(first), tuple(second), tuple(third)}) == 3
