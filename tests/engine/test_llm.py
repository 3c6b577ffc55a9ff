"""LLM: the calls of vLLM's offline API, on a tiny random model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, ConfigError, RequestError, SamplingParams
from octavo.core.step import StepPlan, StepResult
from tests.tiny import EOS

KNOBS: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "kv_cache_memory_bytes": 1 << 20, "log_level": "warning"}
SHORT = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_model_path: Path) -> Iterator[LLM]:
    with LLM(model=str(tiny_model_path), trust_remote_code=True, **KNOBS) as engine:
        yield engine


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["the quick brown fox " * 8, "世界 🎉", "a", "the dog"]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 9, 3, 12)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 9, 3, 12]
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in outputs)
    assert all(output.prompt_token_ids == llm.get_tokenizer().encode(output.prompt or "") for output in outputs)
    assert len({output.request_id for output in outputs}) == 4


def test_the_forms_a_prompt_may_have(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("the dog")
    forms: list[Any] = ["the dog", {"prompt": "the dog"}, {"prompt_token_ids": ids}, ids]
    texts = [llm.generate(form, SHORT, use_tqdm=False)[0].outputs[0].text for form in forms]
    assert len(set(texts)) == 1
    together = llm.generate(forms, SHORT, use_tqdm=False)
    assert [output.outputs[0].text for output in together] == texts
    assert [output.prompt for output in together] == ["the dog", "the dog", None, None]


def test_default_params_use_the_room_there_is(llm: LLM) -> None:
    output = llm.generate([[5] * 500], SamplingParams(ignore_eos=True), use_tqdm=False)[0]
    assert len(output.outputs[0].token_ids) == 512 - 500


def test_chat(llm: LLM) -> None:
    one = [{"role": "user", "content": "the dog"}]
    two = [
        {"role": "user", "content": "the fox"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "?"},
    ]
    single = llm.chat(one, SHORT, use_tqdm=False)
    both = llm.chat([one, two], SHORT, use_tqdm=False)
    assert single[0].prompt == "<|im_start|>user\nthe dog<|im_end|>\n<|im_start|>assistant\n"
    assert single[0].prompt_token_ids[0] == 1
    assert [output.outputs[0].text for output in both[:1]] == [single[0].outputs[0].text]
    assert "the fox" in str(both[1].prompt)


def test_n_sequences_are_sorted_and_share_the_prompt(llm: LLM) -> None:
    params = SamplingParams(n=4, temperature=1.5, seed=3, max_tokens=8, ignore_eos=True, logprobs=0)
    output = llm.generate("the quick brown", params, use_tqdm=False)[0]
    assert [one.index for one in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(one.token_ids) for one in output.outputs}) == 4
    for one in output.outputs:
        assert one.logprobs is not None
        given = [entry[token].logprob for entry, token in zip(one.logprobs, one.token_ids, strict=True)]
        assert one.cumulative_logprob == pytest.approx(sum(given))
    assert output.num_output_tokens == 32


def test_seeds(llm: LLM, tiny_model_path: Path) -> None:
    def texts(engine: LLM, **params: Any) -> list[str]:
        wanted = SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True, **params)
        return [output.outputs[0].text for output in engine.generate(["a", "a"], wanted, use_tqdm=False)]

    same = texts(llm, seed=1)
    assert same[0] == same[1] == texts(llm, seed=1)[0]
    unseeded = texts(llm)
    assert unseeded[0] != unseeded[1]
    runs = []
    for _ in range(2):
        with LLM(str(tiny_model_path), seed=9, **KNOBS) as engine:
            runs.append(texts(engine))
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        (["fine", ""], SHORT, "prompt 1: the prompt is empty"),
        ([[1], [10**6]], SHORT, "prompt 1: token id 1000000"),
        ([1] * 512, SHORT, r"512 tokens.*context is 512"),
        (["a", "b"], [SHORT], "2 prompts but 1 sampling params"),
        ("a", SamplingParams(n=65), r"n \(65\) is above max_num_seqs \(64\)"),
        (7, SHORT, "not int"),
        (["a", None], SHORT, "prompt 1: .*NoneType"),
    ],
)
def test_a_bad_prompt_is_named_and_nothing_runs(llm: LLM, prompts: Any, params: Any, words: str) -> None:
    llm.reset_stats()
    with pytest.raises(RequestError, match=words) as caught:
        llm.generate(prompts, params, use_tqdm=False)
    assert isinstance(caught.value, ValueError)
    assert llm.stats.steps == 0
    assert llm.generate("a", SHORT, use_tqdm=False)[0].finished


def test_a_prompt_that_can_never_fit_leaves_nothing_behind(tiny_model_path: Path) -> None:
    # 512 bytes a token (2 layers, keys and values, 2 heads of 16, float32): 64 KiB hold 128 tokens.
    with LLM(str(tiny_model_path), **{**KNOBS, "kv_cache_memory_bytes": 64 << 10}) as engine:
        with pytest.raises(RequestError, match=r"prompt 1: .*200.*128"):
            engine.generate([[5] * 20, [5] * 200], SHORT, use_tqdm=False)
        engine.reset_stats()
        assert len(engine.generate([[5] * 20], SHORT, use_tqdm=False)[0].outputs[0].token_ids) == 6
        assert engine.stats.rows == 6


def test_without_a_tokenizer(tiny_model_path: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(tiny_model_path / name)
    with pytest.raises(ConfigError, match="skip_tokenizer_init"):
        LLM(str(tmp_path), **KNOBS)
    with LLM(str(tmp_path), skip_tokenizer_init=True, **KNOBS) as engine:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False, logprobs=1)
        output = engine.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)[0]
        assert (len(output.outputs[0].token_ids), output.outputs[0].text, output.prompt) == (6, "", None)
        with pytest.raises(RequestError, match="no tokenizer"):
            engine.generate("text", params)
        with pytest.raises(RequestError, match="detokenize=False"):
            engine.generate([5], SamplingParams())
        with pytest.raises(ConfigError, match="no tokenizer"):
            engine.chat([{"role": "user", "content": "x"}])


def test_an_end_of_text_token_ends_it(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, logit_bias={EOS: 100})
    completion = llm.generate("a", params, use_tqdm=False)[0].outputs[0]
    assert (completion.token_ids, completion.text, completion.finish_reason) == ([EOS], "", "stop")
    late = SamplingParams(temperature=0, max_tokens=9, logit_bias={EOS: 100}, min_tokens=4)
    completion = llm.generate("a", late, use_tqdm=False)[0].outputs[0]
    assert (len(completion.token_ids), completion.finish_reason) == (5, "stop")


def test_a_stop_string_ends_it(llm: LLM) -> None:
    whole = llm.generate("the fox", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), use_tqdm=False)
    text = whole[0].outputs[0].text
    stop = text[10:13]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=stop)
    completion = llm.generate("the fox", params, use_tqdm=False)[0].outputs[0]
    assert completion.text == text[: text.index(stop)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_an_interrupt_frees_what_was_running(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C inside the forward pass left the plan open: every later call failed with "step N is in flight"."""
    execute = llm._loop._executor.execute

    def interrupted(plan: StepPlan) -> StepResult:
        if plan.rows and plan.rows[0].start > 5:
            raise KeyboardInterrupt
        return execute(plan)

    monkeypatch.setattr(llm._loop._executor, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["the fox", "the dog"], SamplingParams(max_tokens=50, ignore_eos=True), use_tqdm=False)
    monkeypatch.undo()
    assert not llm._loop.has_work()
    assert llm._loop.scheduler_stats().kv_usage == 0
    assert llm.generate("a", SHORT, use_tqdm=False)[0].finished


def test_progress(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], SHORT)
    assert "2/2" in capsys.readouterr().err
    llm.generate(["a", "b"], SHORT, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_stats(llm: LLM) -> None:
    llm.reset_stats()
    llm.generate([[5] * 10, [6] * 20], SHORT, use_tqdm=False)
    stats = llm.stats
    # One step computes both prompts and samples; five more sample the rest.
    assert (stats.steps, stats.rows, stats.tokens) == (6, 12, 30 + 10)
    assert 0 < stats.forward_seconds < stats.wall_seconds
    assert 0 < stats.kv_waste_sum < 6
    assert stats.preemptions == 0


def test_misspelt_options(tiny_model_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        LLM(str(tiny_model_path), max_num_sequs=3)
