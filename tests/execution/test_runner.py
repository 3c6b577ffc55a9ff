"""Plans written by hand, run on a tiny random Llama, against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from octavo.config import EngineConfig
from octavo.core.step import NewSequence, StepPlan, StepResult, StepRow
from octavo.errors import ConfigError
from octavo.execution.executor import Executor, build_executor
from octavo.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
SIZE = 4


@pytest.fixture(scope="module")
def oracle(tiny_model_path: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(tiny_model_path).eval()


@pytest.fixture
def executor(tiny_model_path: Path) -> Executor:
    return build(tiny_model_path)


def build(path: Path, **knobs: object) -> Executor:
    options = {
        "dtype": "float32",
        "num_threads": 1,
        "block_size": SIZE,
        "kv_cache_memory_bytes": 1 << 20,
        "device": "cpu",
    }
    return build_executor(EngineConfig(model=str(path), max_num_seqs=4, **{**options, **knobs}))


def logits(oracle: LlamaForCausalLM, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return oracle(torch.tensor([tokens])).logits[0]


def greedy(oracle: LlamaForCausalLM, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits(oracle, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(3, 290, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def new(
    slot: int, tokens: list[int], blocks: list[int], params: SamplingParams = GREEDY, index: int = 0
) -> NewSequence:
    return NewSequence(slot, f"r{slot}", index, tokens, len(tokens), params, 7, blocks)


def sampled(result: StepResult) -> list[list[int]]:
    return [row.token_ids for row in result.rows]


def test_prefill_and_decode_in_one_batch(executor: Executor, oracle: LlamaForCausalLM) -> None:
    one, two = prompt(6, 1), prompt(9, 2)
    want_one, want_two = greedy(oracle, one, 3), greedy(oracle, two, 2)
    first = executor.execute(StepPlan(1, [StepRow(0, 0, 6, 1)], [new(0, one, [3, 8])]))
    # The second prompt enters in two chunks while the first decodes.
    second = executor.execute(
        StepPlan(2, [StepRow(0, 6, 1, 1), StepRow(2, 0, 5, 0)], [new(2, two, [1, 6])], new_blocks=[])
    )
    third = executor.execute(StepPlan(3, [StepRow(0, 7, 1, 1), StepRow(2, 5, 4, 1)], new_blocks=[(0, [9]), (2, [0])]))
    fourth = executor.execute(StepPlan(4, [StepRow(2, 9, 1, 1)], freed_slots=[0]))
    assert sampled(first) == [[want_one[0]]]
    assert sampled(second) == [[want_one[1]], []]
    assert sampled(third) == [[want_one[2]], [want_two[0]]]
    assert sampled(fourth) == [[want_two[1]]]
    assert first.forward_seconds > 0


def test_a_slot_is_reused(executor: Executor, oracle: LlamaForCausalLM) -> None:
    executor.execute(StepPlan(1, [StepRow(1, 0, 12, 1)], [new(1, prompt(12, 3), [0, 1, 2])]))
    other = prompt(5, 4)
    result = executor.execute(StepPlan(2, [StepRow(1, 0, 5, 1)], [new(1, other, [4, 5])], freed_slots=[1]))
    assert sampled(result) == [greedy(oracle, other, 1)]


def test_copy_on_write(executor: Executor, oracle: LlamaForCausalLM) -> None:
    """Two sequences share a partial block; the second gets a copy before it writes, and neither disturbs the other."""
    shared = prompt(6, 5)
    params = SamplingParams(temperature=3.0, ignore_eos=True)
    first = executor.execute(StepPlan(1, [StepRow(0, 0, 6, 2)], [new(0, shared, [3, 7], params)]))
    a, b = first.rows[0].token_ids
    assert a != b
    plan = StepPlan(
        2,
        [StepRow(0, 6, 1, 1), StepRow(1, 6, 1, 1)],
        [NewSequence(1, "r0", 1, [*shared, b], 6, GREEDY, 7, [3, 7])],
        replaced_blocks=[(1, 1, 11)],
        block_copies=[(7, 11)],
    )
    executor.execute(plan)
    forked = executor.execute(StepPlan(3, [StepRow(1, 7, 1, 1)]))
    continued = greedy(oracle, [*shared, b], 2)
    assert sampled(forked) == [[continued[1]]]


@pytest.mark.parametrize("chunk", [3, 20])
def test_prompt_logprobs_over_chunks(executor: Executor, oracle: LlamaForCausalLM, chunk: int) -> None:
    tokens = prompt(20, 6)
    params = SamplingParams(temperature=0, prompt_logprobs=2, logprobs=1)
    found, logprobs = [], None
    for start in range(0, 20, chunk):
        count = min(chunk, 20 - start)
        plan = StepPlan(
            start,
            [StepRow(0, start, count, int(start + count == 20), num_prompt_logprobs=2)],
            [new(0, tokens, [0, 1, 2, 3, 4], params)] if start == 0 else [],
        )
        row = executor.execute(plan).rows[0]
        found += row.prompt_logprobs or []
        logprobs = row.logprobs
    want = torch.log_softmax(logits(oracle, tokens), -1)
    assert len(found) == 19
    for position, entry in enumerate(found):
        assert entry.token_ids[0] == tokens[position + 1]
        assert entry.token_ids[1:] == want[position].topk(2).indices.tolist()
        assert entry.logprobs == pytest.approx([float(want[position, token]) for token in entry.token_ids], abs=1e-4)
        assert entry.rank == 1 + int((want[position] > want[position, tokens[position + 1]]).sum())
    assert logprobs is not None
    assert logprobs[0].logprobs[0] == pytest.approx(float(want[-1].max()), abs=1e-4)


def test_logits_in_small_parts_change_nothing(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows times a large vocabulary are computed and sampled in parts, to bound the memory."""
    params = [
        SamplingParams(temperature=1.5, prompt_logprobs=1, logprobs=2),
        GREEDY,
        SamplingParams(top_p=0.9, repetition_penalty=1.2),
    ]
    results = []
    for parts in (False, True):
        if parts:
            monkeypatch.setattr("octavo.execution.runner._LOGITS_BYTES", 1)
        plan = StepPlan(
            1,
            [StepRow(0, 0, 5, 3, num_prompt_logprobs=1), StepRow(1, 0, 4, 0), StepRow(2, 0, 6, 1), StepRow(3, 0, 7, 1)],
            [new(0, prompt(5, 0), [0, 1], params[0]), new(1, prompt(9, 1), [2])]
            + [new(slot, prompt(4 + slot, slot), [2 * slot, 2 * slot + 1], params[slot - 1]) for slot in (2, 3)],
        )
        results.append(build(tiny_model_path).execute(plan))
    whole, parted = results
    assert sampled(whole) == sampled(parted)
    assert [len(tokens) for tokens in sampled(whole)] == [3, 0, 1, 1]
    for row, other in zip(whole.rows, parted.rows, strict=True):
        for entries, others in ((row.logprobs, other.logprobs), (row.prompt_logprobs, other.prompt_logprobs)):
            assert (entries is None) == (others is None)
            for entry, its in zip(entries or [], others or [], strict=True):
                assert entry.token_ids == its.token_ids
                assert entry.logprobs == pytest.approx(its.logprobs, abs=1e-5)


def test_draws_and_penalties_go_on_after_a_preemption(executor: Executor) -> None:
    """A preempted sequence comes back in another slot, its tokens computed again: it goes on as if never stopped."""
    tokens = prompt(6, 11)
    params = SamplingParams(temperature=1.2, top_p=0.95, repetition_penalty=1.3, frequency_penalty=0.5, ignore_eos=True)

    def decode(slot: int, known: list[int], steps: int) -> list[int]:
        drawn: list[int] = []
        for _ in range(steps):
            row = StepRow(slot, len(known) + len(drawn) - 1, 1, 1)
            drawn += executor.execute(StepPlan(2, [row])).rows[0].token_ids
        return drawn

    executor.execute(StepPlan(1, [StepRow(0, 0, 5, 0)], [new(0, tokens, [0, 1, 2, 3], params)]))
    straight = decode(0, tokens, 8)
    back = NewSequence(2, "r0", 0, [*tokens, *straight[:3]], 6, params, 7, [9, 5, 7, 6])
    resumed = executor.execute(StepPlan(3, [StepRow(2, 0, 9, 1)], [back], freed_slots=[0])).rows[0].token_ids
    assert straight[:3] + resumed + decode(2, [*tokens, *straight[:3], *resumed], 4) == straight
    assert len(set(straight)) > 2


def test_prompt_logprobs_that_were_reported_before(executor: Executor, oracle: LlamaForCausalLM) -> None:
    tokens = prompt(10, 8)
    row = StepRow(0, 0, 10, 1, num_prompt_logprobs=0, prompt_logprobs_start=6)
    result = executor.execute(StepPlan(1, [row], [new(0, tokens, [0, 1, 2])]))
    found = result.rows[0].prompt_logprobs
    assert found is not None
    assert [entry.token_ids[0] for entry in found] == tokens[7:]


def test_a_row_without_a_token_fails_alone(executor: Executor, oracle: LlamaForCausalLM) -> None:
    """One request forbids itself every token: its row fails, and the other has its token."""
    good, bad = prompt(5, 9), prompt(5, 10)
    nothing_allowed = SamplingParams(temperature=0, bad_words=["x"], ignore_eos=True)
    sequence = new(1, bad, [5, 6], nothing_allowed)
    sequence.bad_word_ids = [[i] for i in range(297)]
    result = executor.execute(StepPlan(1, [StepRow(0, 0, 5, 1), StepRow(1, 0, 5, 1)], [new(0, good, [0, 1]), sequence]))
    assert result.rows[0].token_ids == greedy(oracle, good, 1)
    assert result.rows[1].token_ids == []
    assert "no token is left" in str(result.rows[1].error)


def test_logits_that_are_not_finite_fail_their_own_request(executor: Executor, oracle: LlamaForCausalLM) -> None:
    """One request's cache holds NaN: its row fails, and the other has its token."""
    good, bad = prompt(5, 9), prompt(9, 10)
    caches = executor._runner._kv_caches  # type: ignore[attr-defined]
    for cache in caches:
        cache.keys[5].fill_(float("nan"))
    plan = StepPlan(1, [StepRow(0, 0, 5, 1), StepRow(1, 4, 5, 1)], [new(0, good, [0, 1]), new(1, bad, [5, 6, 7])])
    result = executor.execute(plan)
    assert result.rows[0].token_ids == greedy(oracle, good, 1)
    assert result.rows[1].token_ids == []
    assert "not finite" in str(result.rows[1].error)


def test_an_empty_plan_changes_state_alone(executor: Executor) -> None:
    result = executor.execute(StepPlan(1, freed_slots=[]))
    assert (result.step_id, result.rows, result.forward_seconds) == (1, [], 0.0)


def test_info(executor: Executor) -> None:
    info = executor.info
    # 2 layers, keys and values, 2 heads of 16, float32: 512 bytes a token, 2 KiB a block of 4.
    assert (info.num_blocks, info.kv_cache_bytes) == (512, 1 << 20)
    assert (info.architecture, info.dtype, info.max_model_len) == ("LlamaForCausalLM", "float32", 512)
    assert info.eos_token_ids == (2,)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        executor.execute(StepPlan(1))


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"max_model_len": 513}, r"max_model_len is 513.*context is 512"),
        ({"max_model_len": 1}, "at least 2"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"dtype": "float16"}, "float16 needs a CUDA device"),
        ({"kv_cache_memory_bytes": 100}, "kv_cache_memory_bytes"),
    ],
)
def test_options_that_do_not_fit(tiny_model_path: Path, knobs: dict[str, object], words: str) -> None:
    if torch.cuda.is_available() and "device" in knobs:
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ConfigError, match=words):
        build(tiny_model_path, **knobs)
