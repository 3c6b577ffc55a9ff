"""Counts the tokens of one HTTP request over all its prompts."""

from __future__ import annotations

from typing import Any

from octavo.outputs import RequestOutput


class Usage:
    """`usage` as OpenAI counts: each prompt once, however many choices it has; every generated token."""

    def __init__(self) -> None:
        self._prompt: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._completion: dict[int, int] = {}

    def update(self, prompt_index: int, output: RequestOutput, *, nothing_generated: bool = False) -> None:
        self._prompt[prompt_index] = len(output.prompt_token_ids)
        self._cached[prompt_index] = max(output.num_cached_tokens, self._cached.get(prompt_index, 0))
        self._completion[prompt_index] = 0 if nothing_generated else output.num_output_tokens

    def as_dict(self) -> dict[str, Any]:
        prompt, completion = sum(self._prompt.values()), sum(self._completion.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }
