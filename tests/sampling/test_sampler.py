from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from octavo.core.step import RowResult
from octavo.sampling.random import seed_bits, uniforms
from octavo.sampling.sampler import NOT_FINITE, NOTHING_LEFT, Sampler, prompt_logprobs
from octavo.sampling_params import SamplingParams
from tests.sampling.oracle import processed, sample

V = 64
EOS = [2, 7]
SLOTS = 16
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    params: SamplingParams
    prompt: tuple[int, ...] = (1,)
    output: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    index: int = 0
    count: int = 1


@dataclass
class Bench:
    """A sampler and the token array it reads, as the runner has them."""

    vocab_size: int = V
    history: np.ndarray = field(default_factory=lambda: np.zeros((SLOTS, 128), np.int32))  # type: ignore[type-arg]

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.vocab_size, EOS, self.history, CPU)

    def enter(self, slot: int, row: Row) -> None:
        tokens = row.prompt + row.output
        self.history[slot] = 0
        self.history[slot, : len(tokens)] = tokens
        self.sampler.enter(
            slot,
            row.params,
            seed=row.seed,
            index=row.index,
            num_tokens=len(tokens),
            num_prompt_tokens=len(row.prompt),
            bad_word_ids=row.bad_words,
        )

    def sample(self, logits: torch.Tensor, rows: list[Row], slots: list[int]) -> list[RowResult]:
        for slot, row in zip(slots, rows, strict=True):
            self.enter(slot, row)
        lengths = np.array([len(row.prompt) + len(row.output) for row in rows])
        return self.sampler.sample(logits.clone(), np.array(slots), lengths, np.array([row.count for row in rows]))


def sample_rows(logits: torch.Tensor, rows: list[Row]) -> list[RowResult]:
    return Bench(logits.shape[1]).sample(logits, rows, list(range(len(rows))))


def random_logits(count: int, seed: int = 0, vocab_size: int = V) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (count, vocab_size)).astype(np.float32))


tokens = st.integers(0, V - 1)
all_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 5, 40]),
    top_p=st.sampled_from([1.0, 0.3, 0.9]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, -1.5, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.7, 2.0]),
    logit_bias=st.none() | st.dictionaries(tokens, st.sampled_from([-100.0, -2.0, 3.0, 100.0]), max_size=4),
    stop_token_ids=st.lists(tokens, max_size=3),
    min_tokens=st.sampled_from([0, 2, 5]),
    logprobs=st.none() | st.integers(0, 5),
)
all_rows = st.builds(
    Row,
    params=all_params,
    prompt=st.lists(tokens, min_size=1, max_size=9).map(tuple),
    output=st.lists(st.integers(0, 9), max_size=9).map(tuple),
    bad_words=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    seed=st.integers(-(2**63), 2**63 - 1),
    index=st.integers(0, 127),
    count=st.sampled_from([1, 1, 1, 3]),
)


def expected(logits: list[float], row: Row) -> list[tuple[int, float]]:
    """(token, margin) of each of the row's draws, by the plain rules."""
    x = processed(logits, row.params, row.prompt, row.output, EOS, row.bad_words)
    outcomes = []
    for offset in range(row.count):
        draw = uniforms(
            np.array([seed_bits(row.seed)], np.uint64),
            np.array([row.index + offset]),
            np.array([len(row.prompt) + len(row.output)]),
        )
        outcome = sample(x, row.params, float(draw[0]))
        outcomes.append((outcome.token, outcome.margin))
    return outcomes


@given(st.lists(all_rows, min_size=1, max_size=6), st.integers(0, 2**32 - 1), st.data())
def test_equals_the_plain_rules_alone_and_batched(rows: list[Row], seed: int, data: st.DataObject) -> None:
    logits = random_logits(len(rows), seed)
    slots = data.draw(st.permutations(range(SLOTS)))[: len(rows)]
    results = Bench().sample(logits, rows, slots)
    for place, (row, result) in enumerate(zip(rows, results, strict=True)):
        wanted = expected(logits[place].tolist(), row)
        assert result.error is None
        assert len(result.token_ids) == row.count
        for token, (oracle, margin) in zip(result.token_ids, wanted, strict=True):
            assert token == oracle or margin < 1e-5
        assert (result.logprobs is None) == (row.params.logprobs is None)
        alone = sample_rows(logits[place : place + 1], [row])[0]
        assert alone == result


@given(all_rows, st.integers(0, 2**32 - 1))
def test_state_kept_over_steps_equals_state_rebuilt(row: Row, seed: int) -> None:
    """Penalty counts grow step by step; after a preemption they are rebuilt from the tokens: both must agree."""
    row = replace(row, count=1)
    kept = Bench()
    kept.enter(3, row)
    for step in range(6):
        logits = random_logits(1, seed + step)
        length = len(row.prompt) + len(row.output)
        result = kept.sampler.sample(logits.clone(), np.array([3]), np.array([length]), np.array([1]))[0]
        assert result == sample_rows(logits, [row])[0]
        if result.error is not None:
            return
        kept.history[3, length] = result.token_ids[0]
        row = replace(row, output=(*row.output, result.token_ids[0]))


def test_samples_of_one_row_differ_by_index_and_equal_forks_drawing_alone() -> None:
    logits = torch.zeros((1, V))
    many = sample_rows(logits, [Row(SamplingParams(), seed=11, count=8)])[0].token_ids
    alone = [sample_rows(logits, [Row(SamplingParams(), seed=11, index=i)])[0].token_ids[0] for i in range(8)]
    assert many == alone
    assert len(set(many)) > 3


def test_draws_follow_the_distribution_over_seeds() -> None:
    """Chi-square of the first tokens of 4,000 seeds."""
    logits = random_logits(1, 3, 8)
    params = SamplingParams(temperature=2.0)
    counts = np.zeros(8)
    for start in range(0, 4000, SLOTS):
        rows = [Row(params, seed=start + offset) for offset in range(SLOTS)]
        for result in sample_rows(logits.expand(SLOTS, -1), rows):
            counts[result.token_ids[0]] += 1
    share = torch.softmax(logits[0] / 2, -1).numpy()
    chi_square = ((counts - 4000 * share) ** 2 / (4000 * share)).sum()
    assert chi_square < 29.9  # 7 degrees of freedom: above with probability 1e-4


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = torch.zeros((2, V))
    logits[:, [9, 40]] = 5.0
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=0, logprobs=1), SamplingParams(top_k=1)):
        results = sample_rows(logits, [Row(params), Row(SamplingParams(seed=1))])
        assert results[0].token_ids == [9]


def test_repetition_penalty_is_that_of_transformers() -> None:
    logits = random_logits(1, 8)
    prompt, output = (3, 4, 5, 5), (9, 9, 20)
    theirs = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([prompt + output]), logits.clone())
    bench = Bench()
    row = Row(SamplingParams(temperature=0, repetition_penalty=1.7), prompt, output)
    bench.enter(0, row)
    ours = logits.clone()
    bench.sampler.sample(ours, np.array([0]), np.array([7]), np.array([1]))
    assert torch.allclose(ours, theirs)
    assert not torch.equal(ours, logits)


def test_min_tokens_forbids_ends_until_enough_are_generated() -> None:
    logits = torch.zeros((1, V))
    logits[0, [2, 7, 30]] = torch.tensor([9.0, 8.0, 7.0])
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[30])
    picked = [sample_rows(logits, [Row(params, output=(0,) * count)])[0].token_ids[0] for count in range(3)]
    assert picked == [0, 0, 2]


def test_bad_words_of_several_tokens_look_at_the_output_alone() -> None:
    logits = torch.zeros((1, V))
    logits[0, 6] = 9.0
    word = ((4, 5, 6),)
    params = SamplingParams(temperature=0)

    def pick(prompt: tuple[int, ...], output: tuple[int, ...]) -> int:
        return sample_rows(logits, [Row(params, prompt, output, word)])[0].token_ids[0]

    assert pick((1,), (4, 5)) == 0
    assert pick((1,), (4, 4)) == 6
    assert pick((4, 5), ()) == 6
    assert pick((4,), (5,)) == 6


def test_bias_of_100_decides() -> None:
    logits = random_logits(1, 2)
    best = int(logits.argmax())
    forced = sample_rows(logits, [Row(SamplingParams(logit_bias={17: 100}), seed=s) for s in range(1)])
    banned = sample_rows(logits, [Row(SamplingParams(temperature=0, logit_bias={best: -100}))])
    assert forced[0].token_ids == [17]
    assert banned[0].token_ids != [best]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_broken_row_fails_alone(temperature: float, bad: float, logprobs: int | None) -> None:
    params = SamplingParams(temperature=temperature, logprobs=logprobs)
    logits = random_logits(3, 4)
    rows = [Row(params, seed=s, count=2) for s in range(3)]
    clean = sample_rows(logits, rows)
    logits[1, 5] = bad
    results = sample_rows(logits, rows)
    assert results[1] == RowResult([], error=NOT_FINITE)
    assert [results[0], results[2]] == [clean[0], clean[2]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_every_token_forbidden_fails_alone(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    rows = [Row(params), Row(params, bad_words=tuple((t,) for t in range(V)))]
    results = sample_rows(random_logits(2), rows)
    assert results[1].error == NOTHING_LEFT
    assert results[0].error is None


def test_ids_outside_the_vocabulary_fail_alone_and_are_named() -> None:
    rows = [
        Row(SamplingParams(logit_bias={V: 1.0})),
        Row(SamplingParams()),
        Row(SamplingParams(), bad_words=((3, 99),)),
    ]
    results = sample_rows(random_logits(3), rows)
    assert results[0].error == f"logit_bias: token id {V} is out of range; the model has {V} tokens"
    assert results[1].error is None
    assert results[2].error is not None
    assert "bad_words: token id 99" in results[2].error
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[10**6])
    assert sample_rows(random_logits(1), [Row(params)])[0].error is None


def test_a_slot_forgets_its_last_sequence() -> None:
    bench = Bench()
    logits = torch.zeros((1, V))
    logits[0, 5] = 9
    heavy = Row(SamplingParams(temperature=0, logit_bias={5: -100}, logprobs=3), bad_words=((5,),))
    assert bench.sample(logits, [heavy], [0])[0].token_ids == [0]
    assert bench.sample(logits, [Row(SamplingParams(temperature=0))], [0])[0] == RowResult([5])


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = random_logits(3, 6)
    reference = torch.log_softmax(logits.double(), -1)
    params = SamplingParams(temperature=0.2, logit_bias={50: 100}, repetition_penalty=2.0, logprobs=4)
    rows = [Row(SamplingParams(temperature=0)), Row(params, count=2), Row(SamplingParams(logprobs=0), seed=9)]
    plain, biased, bare = sample_rows(logits, rows)
    assert plain.logprobs is None
    assert biased.token_ids == [50, 50]
    assert biased.logprobs is not None
    for entry in biased.logprobs:
        order = reference[1].argsort(descending=True)
        assert entry.token_ids == [50, *order[:4].tolist()]
        assert entry.logprobs == pytest.approx(reference[1][entry.token_ids].tolist(), abs=1e-5)
        assert entry.rank == order.tolist().index(50) + 1
    assert bare.logprobs is not None
    assert [len(entry.token_ids) for entry in bare.logprobs] == [1]


def test_top_logprobs_of_equal_tokens_go_by_id() -> None:
    """topk alone picks any of several equal tokens, so the greedy choice could be missing from its own top list."""
    logits = torch.zeros((2, 3000))
    logits[1, [7, 2000, 2999]] = 4.0
    first = prompt_logprobs(logits, np.array([1, 2999]), 2)
    assert first is not None
    assert first[0].token_ids == [1, 0, 1]
    assert first[1].token_ids == [2999, 7, 2000]
    assert [entry.rank for entry in first] == [1, 1]


@pytest.mark.parametrize("count", [1, 7, 40, 500])
def test_top_logprobs_among_many_equal_ones(count: int) -> None:
    """Logits from bfloat16 hold many equal values, at the end of the list and inside it."""
    logits = torch.round(random_logits(4, 13, 2000))
    found = prompt_logprobs(logits, np.array([0, 1, 2, 3]), count)
    assert found is not None
    for row, entry in zip(logits.tolist(), found, strict=True):
        assert entry.token_ids[1:] == sorted(range(2000), key=lambda token: (-row[token], token))[:count]


def test_prompt_logprobs_of_broken_logits_are_refused() -> None:
    logits = random_logits(2)
    logits[1, 3] = torch.nan
    assert prompt_logprobs(logits, np.array([1, 2]), 1) is None
    assert prompt_logprobs(logits[:1], np.array([1]), 1) is not None


def test_more_logprobs_than_the_vocabulary_has() -> None:
    result = sample_rows(random_logits(1, 1, 10), [Row(SamplingParams(logprobs=100))])[0]
    assert result.logprobs is not None
    assert sorted(result.logprobs[0].token_ids[1:]) == list(range(10))
