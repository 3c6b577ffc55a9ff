"""The sampler's rules once more: one row at a time, float64, plain loops. Slow and obviously right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.sampling_params import SamplingParams


@dataclass(frozen=True)
class Outcome:
    """The token, and how near the nearest decision was to falling otherwise."""

    token: int
    margin: float


def processed(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    eos: Sequence[int],
    bad_words: Sequence[Sequence[int]],
) -> list[float]:
    """Logits after logit_bias, bad words, min_tokens and the penalties."""
    x = [float(value) for value in logits]
    for token, bias in (params.logit_bias or {}).items():
        x[token] += bias
    for word in bad_words:
        prefix = list(word[:-1])
        if prefix == list(output)[len(output) - len(prefix) :] and len(output) >= len(prefix):
            x[word[-1]] = -math.inf
    if len(output) < params.min_tokens:
        for token in {*eos, *params.stop_token_ids}:
            x[token] = -math.inf
    for token in {*prompt, *output}:
        if params.repetition_penalty != 1:
            x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
    for token in set(output):
        x[token] -= params.frequency_penalty * list(output).count(token) + params.presence_penalty
    return x


def distribution(x: Sequence[float], params: SamplingParams) -> tuple[list[float], float]:
    """Probabilities after temperature, min_p, top_k, top_p, and the margin of the cuts."""
    peak = max(x)
    weights = [math.exp((value - peak) / params.temperature) for value in x]
    margin = math.inf
    if params.min_p:
        margin = min([margin, *(abs(weight - params.min_p) for weight in weights if weight < 1)])
        weights = [weight if weight >= params.min_p else 0.0 for weight in weights]
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1:
        total = sum(weights[token] for token in order)
        kept, mass = [], 0.0
        for token in order:
            kept.append(token)
            mass += weights[token]
            margin = min(margin, abs(mass - params.top_p * total) / total)
            if mass >= params.top_p * total:
                break
        order = kept
    chosen = set(order)
    total = sum(weights[token] for token in order)
    return [weight / total if token in chosen else 0.0 for token, weight in enumerate(weights)], margin


def sample(x: Sequence[float], params: SamplingParams, uniform: float) -> Outcome:
    """The token of processed logits `x`."""
    if params.temperature == 0 or params.top_k == 1:
        best = max(x)
        return Outcome(list(x).index(best), math.inf)
    probabilities, margin = distribution(x, params)
    running = 0.0
    for token, probability in enumerate(probabilities):
        running += probability
        margin = min(margin, abs(running - uniform)) if probability else margin
        if running > uniform:
            return Outcome(token, margin)
    raise AssertionError("the probabilities do not add up to 1")
