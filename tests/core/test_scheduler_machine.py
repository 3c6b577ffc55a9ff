"""Random life of a scheduler: whatever comes in whatever order, the invariants hold and everything ends as it would
alone."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from octavo.core.request import Sequence
from octavo.core.step import StepPlan
from octavo.errors import RequestError
from tests.core.fake_runner import EOS, Harness, draw, make_config, make_sequence

CONFIGS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 24),
        "max_num_partial_prefills": st.integers(1, 3),
        "long_prefill_token_threshold": st.integers(1, 12),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "block_size": st.integers(1, 5),
        "num_blocks": st.integers(1, 16),
        "max_model_len": st.integers(2, 60),
        "enable_prefix_caching": st.booleans(),
    }
)
# Few distinct tokens, and prompts cut from one text, so that prefixes are often shared.
TEXT = [1 + i % 7 for i in range(64)]


def sample(seed: int, index: int, position: int) -> int:
    """Ends now and then."""
    return EOS if hash((seed, index, position, 99)) % 12 == 0 else draw(seed, index, position)


class Life(RuleBasedStateMachine):
    harness: Harness
    pending: StepPlan | None
    originals: dict[str, Sequence]

    @initialize(config=CONFIGS)
    def begin(self, config: dict[str, Any]) -> None:
        self.harness = Harness(make_config(**config), sample)
        self.pending = None
        self.originals = {}
        self.num_added = 0

    @rule(
        length=st.integers(0, 40),
        changed=st.none() | st.integers(0, 39),
        n=st.sampled_from([1, 1, 1, 2, 3, 6]),
        max_tokens=st.none() | st.integers(1, 20),
        min_tokens=st.integers(0, 3),
        ignore_eos=st.booleans(),
        prompt_logprobs=st.sampled_from([None, None, 0, 2]),
        logprobs=st.sampled_from([None, 1]),
        priority=st.integers(-1, 1),
        cache_salt=st.sampled_from([None, None, "", "x"]),
        seed=st.integers(0, 3),
        num_resumed=st.integers(0, 3),
    )
    def add(self, length: int, changed: int | None, num_resumed: int, **fields: Any) -> None:
        prompt = TEXT[:length]
        if changed is not None and changed < length:
            prompt[changed] = 9
        if fields["max_tokens"] is not None:
            fields["min_tokens"] = min(fields["min_tokens"], fields["max_tokens"])
        output = []
        if num_resumed and fields["n"] == 1:
            output = [draw(fields["seed"], 0, length + i) for i in range(num_resumed)]
        self.num_added += 1
        sequence = make_sequence(f"r{self.num_added}", prompt, arrival_time=self.harness.now, output=output, **fields)
        try:
            self.harness.add(sequence)
        except RequestError:
            assert self.must_refuse(sequence)
        else:
            self.originals[sequence.request_id] = make_sequence(f"r{self.num_added}", prompt, output=output, **fields)

    def must_refuse(self, sequence: Sequence) -> bool:
        """Alone it would not fit, or would have nothing to do."""
        config, prompt, n = self.harness.config, sequence.num_prompt_tokens, sequence.num_sequences
        room = min(config.max_model_len, config.kv_capacity + 1) - prompt
        most = room if sequence.params.max_tokens is None else min(room, sequence.params.max_tokens)
        return (
            prompt == 0
            or room < 1
            or sequence.num_output_tokens >= most
            or n > config.max_num_seqs
            or (n > 1 and prompt // config.block_size + n > config.num_blocks)
        )

    @rule()
    def plan(self) -> None:
        if self.pending is None:
            self.pending = self.harness.plan()

    @rule(failing=st.none() | st.integers(0, 4))
    def update(self, failing: int | None) -> None:
        if self.pending is not None:
            errors = {failing: "broken"} if failing is not None and failing < len(self.pending.rows) else None
            self.harness.finish(self.pending, errors)
            self.pending = None

    @rule()
    def starve(self) -> None:
        """The device has not the memory for the step that is planned."""
        if self.pending is not None and self.pending.rows:
            taken_back = self.harness.starve(self.pending)
            assert taken_back == (self.pending.num_tokens > 1)
            self.pending = None

    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        self.update(None)
        for _ in range(count):
            self.harness.step()

    @rule(which=st.integers(0, 5), index=st.none() | st.integers(0, 3))
    def abort(self, which: int, index: int | None) -> None:
        unfinished = sorted({name for (name, _), seen in self.harness.seen.items() if seen.finish_reason is None})
        if which < len(unfinished):
            name = unfinished[which]
            outputs = self.harness.abort(name, index)
            assert all(output.finish_reason == "abort" for output in outputs)
            if index is None:
                assert outputs

    @invariant()
    def stats_are_shares(self) -> None:
        stats = self.harness.scheduler.stats()
        assert 0 <= stats.kv_usage <= 1
        assert 0 <= stats.kv_waste <= 1
        assert stats.prefix_cache_hits <= stats.prefix_cache_queries

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.update(None)
        self.harness.run()
        self.harness.expect_idle()
        assert not self.harness.step()
        assert not self.harness.runner.rows, "the runner never heard of a freed slot"
        for (name, index), seen in self.harness.seen.items():
            self.check_output(self.originals[name], index, seen)

    def check_output(self, original: Sequence, index: int, seen: Any) -> None:
        """The tokens are those of a run alone, to the end or to the abort."""
        config, params, prompt = self.harness.config, original.params, original.num_prompt_tokens
        most = min(config.max_model_len, config.kv_capacity + 1) - prompt
        most = most if params.max_tokens is None else min(most, params.max_tokens)
        expected: list[int] = original.token_ids[prompt:]
        reason = "length"
        while len(expected) < most:
            token = sample(original.seed, index, prompt + len(expected))
            expected.append(token)
            if token == EOS and not params.ignore_eos and len(expected) >= params.min_tokens:
                reason = "stop"
                break
        expected = expected[original.num_output_tokens :]
        if seen.finish_reason == "abort":
            assert seen.token_ids == expected[: len(seen.token_ids)]
            return
        assert (seen.finish_reason, seen.token_ids) == (reason, expected)
        if params.logprobs is not None:
            assert [entry.token_ids[0] for entry in seen.logprobs] == expected
        if params.prompt_logprobs is not None and index == 0:
            resumed = original.num_output_tokens > 0
            reported = [entry.token_ids[0] for entry in seen.prompt_logprobs]
            assert reported == ([] if resumed else original.token_ids[1:prompt])


Life.TestCase.settings = settings(
    max_examples=400, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLife = Life.TestCase
