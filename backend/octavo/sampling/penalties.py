"""Token counts of one sequence, for its repetition, presence and frequency penalties."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.sampling_params import SamplingParams


class PenaltyCounts:
    """The distinct tokens a sequence's penalties touch, and how often each was generated.

    Sparse: a sequence meets far fewer tokens than the vocabulary has. Grows by one token a step.

    Args:
        token_ids: int32, prompt and output so far.
        num_prompt_tokens: how many of them are the prompt; those count for the repetition penalty alone.
    """

    def __init__(self, params: SamplingParams, token_ids: NDArray[np.int32], num_prompt_tokens: int) -> None:
        self.repetition = params.repetition_penalty
        self.presence = params.presence_penalty
        self.frequency = params.frequency_penalty
        output = token_ids[num_prompt_tokens:]
        ids, inverse = np.unique(token_ids if self.repetition != 1 else output, return_inverse=True)
        counts = np.bincount(inverse[len(inverse) - len(output) :], minlength=len(ids))
        self._size = len(ids)
        self._ids = ids.astype(np.int64)
        self._counts = counts.astype(np.float32)
        self._where = {token: place for place, token in enumerate(ids.tolist())}

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0

    @property
    def token_ids(self) -> NDArray[np.int64]:
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each of `token_ids` was generated; 0 for one that only the prompt has."""
        return self._counts[: self._size]

    def add(self, token: int) -> None:
        """Counts one more generated token."""
        place = self._where.setdefault(token, self._size)
        if place == self._size:
            if self._size == len(self._ids):
                room = max(64, self._size)
                self._ids = np.concatenate((self._ids, np.zeros(room, np.int64)))
                self._counts = np.concatenate((self._counts, np.zeros(room, np.float32)))
            self._ids[place] = token
            self._size += 1
        self._counts[place] += 1
