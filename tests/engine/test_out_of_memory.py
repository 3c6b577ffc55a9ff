"""A forward pass that finds too little memory: smaller steps, the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM, RequestError, SamplingParams
from tests.engine.test_llm import KNOBS

PROMPTS = [[5 + i] * (10 + 37 * i) for i in range(6)]
PARAMS = [
    SamplingParams(
        temperature=(0, 0.9)[i % 2], seed=i, n=1 + i % 3, max_tokens=30, ignore_eos=True, logprobs=1, prompt_logprobs=0
    )
    for i in range(6)
]


def starve(monkeypatch: pytest.MonkeyPatch, llm: LLM, most: int, error: Exception) -> list[int]:
    """The forward pass fails above `most` tokens; returns where the sizes tried are noted."""
    runner: Any = llm._loop._executor
    decoder = runner._runner._decoder
    forward = decoder.forward
    tried: list[int] = []

    def limited(token_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        tried.append(len(token_ids))
        if len(token_ids) > most:
            raise error
        result: torch.Tensor = forward(token_ids, *rest)
        return result

    monkeypatch.setattr(decoder, "forward", limited)
    return tried


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        MemoryError(),
    ],
    ids=["cuda", "cpu", "python"],
)
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_the_tokens_are_those_of_a_run_with_enough(
    tiny_model_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    prefix_caching: bool,
) -> None:
    knobs = {**KNOBS, "enable_prefix_caching": prefix_caching, "max_num_batched_tokens": 256}
    with LLM(str(tiny_model_path), **knobs) as llm:
        want = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    with LLM(str(tiny_model_path), **knobs) as llm:
        tried = starve(monkeypatch, llm, 9, error)
        got = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert llm._loop.scheduler_stats().kv_usage == 0
    assert max(tried) == 256
    # Halved until it fits, and only tried again with more after many good steps.
    assert sum(size > 9 for size in tried) < len(tried) / 10
    assert "out of memory in a step of 256 tokens" in capfd.readouterr().err
    for one, other in zip(got, want, strict=True):
        assert [seq.token_ids for seq in one.outputs] == [seq.token_ids for seq in other.outputs]
        assert [seq.finish_reason for seq in one.outputs] == ["length"] * len(one.outputs)
        assert [seq.cumulative_logprob for seq in one.outputs] == pytest.approx(
            [seq.cumulative_logprob for seq in other.outputs], abs=1e-3
        )
        assert one.prompt_logprobs is not None
        assert other.prompt_logprobs is not None
        assert len(one.prompt_logprobs) == len(other.prompt_logprobs)


def test_a_request_that_not_even_one_token_is_possible_for_fails_alone(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(str(tiny_model_path), **KNOBS) as llm:
        starve(monkeypatch, llm, 0, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"))
        with pytest.raises(RequestError, match="out of memory in a step of 1 tokens: CUDA out of memory"):
            llm.generate([5, 6], SamplingParams(max_tokens=2), use_tqdm=False)
        monkeypatch.undo()
        assert not llm._loop.has_work()
        assert llm.generate([5, 6], SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)[0].finished


def test_another_error_is_no_lack_of_memory(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(str(tiny_model_path), **KNOBS) as llm:
        tried = starve(monkeypatch, llm, 0, RuntimeError("a shape is wrong"))
        with pytest.raises(RuntimeError, match="a shape is wrong"):
            llm.generate([5, 6], SamplingParams(max_tokens=2), use_tqdm=False)
        assert tried == [2]
