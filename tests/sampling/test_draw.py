from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo.sampling.draw import Drawer, Filters, _first_above
from octavo.sampling_params import SamplingParams
from tests.sampling.oracle import distribution, sample

CPU = torch.device("cpu")


def filters(params: list[SamplingParams], vocab_size: int) -> Filters:
    top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
    return Filters(
        np.array([p.temperature for p in params]),
        np.array(top_k),
        np.array([p.top_p for p in params]),
        np.array([p.min_p for p in params]),
    )


def draw_all(logits: torch.Tensor, params: list[SamplingParams], uniforms: NDArray[np.float64]) -> list[int]:
    """One draw a row."""
    drawer = Drawer(logits.shape[1], CPU)
    tokens, _ = drawer.draw(logits, filters(params, logits.shape[1]), np.arange(len(logits)), uniforms)
    result: list[int] = tokens.tolist()
    return result


def frequencies(logits: torch.Tensor, params: SamplingParams, count: int = 4096) -> NDArray[np.float64]:
    """Share of each token at evenly spread uniforms: the distribution itself, to 1 / count."""
    drawer = Drawer(logits.shape[1], CPU)
    grid = (np.arange(count) + 0.5) / count
    tokens, _ = drawer.draw(logits, filters([params], logits.shape[1]), np.zeros(count, np.int64), grid)
    return np.bincount(tokens.numpy(), minlength=logits.shape[1]) / count


sampled = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.01, 0.3, 1.0, 1.7, 30.0]),
    top_k=st.sampled_from([0, 2, 3, 20, 255, 256, 257, 258, 400, 10_000]),
    top_p=st.sampled_from([1.0, 1e-6, 0.1, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.001, 0.05, 0.7, 1.0]),
)


@given(
    st.lists(sampled, min_size=1, max_size=5),
    st.sampled_from([1, 2, 100, 255, 256, 257, 258, 512, 700]),
    st.sampled_from([0.01, 1.0, 4.0]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_equals_the_plain_rules(
    params: list[SamplingParams], vocab_size: int, spread: float, coarse: bool, seed: int
) -> None:
    """Coarse logits (eighths, as bfloat16 gives) are full of ties at every cut."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, spread, (len(params), vocab_size)).astype(np.float32)
    if coarse:
        logits = np.round(logits * 8) / 8
    uniforms = random.random(len(params))
    tokens = draw_all(torch.from_numpy(logits), params, uniforms)
    for row, token in enumerate(tokens):
        expected = sample(logits[row].tolist(), params[row], uniforms[row])
        assert token == expected.token or expected.margin < 1e-5


@given(
    st.lists(sampled, min_size=2, max_size=6), st.sampled_from([40, 300, 1000]), st.integers(0, 2**32 - 1), st.data()
)
def test_alone_batched_and_in_any_order_are_bitwise_equal(
    params: list[SamplingParams], vocab_size: int, seed: int, data: st.DataObject
) -> None:
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(random.normal(0, 2, (len(params), vocab_size)).astype(np.float32))
    uniforms = random.random(len(params))
    together = draw_all(logits, params, uniforms)
    alone = [draw_all(logits[r : r + 1], params[r : r + 1], uniforms[r : r + 1])[0] for r in range(len(params))]
    assert together == alone
    order = data.draw(st.permutations(range(len(params))))
    shuffled = draw_all(logits[order], [params[r] for r in order], uniforms[order])
    assert shuffled == [together[r] for r in order]


def test_weights_of_a_row_do_not_depend_on_the_batch() -> None:
    """Not only the tokens: every running sum is the same bits, at the vocabulary size of a real model."""
    logits = torch.randn((9, 49_152), generator=torch.Generator().manual_seed(1))
    drawer = Drawer(49_152, CPU)
    edges = np.linspace(0, 1, 2000, endpoint=False)
    params = SamplingParams(temperature=0.7, top_p=0.9)
    owners = np.full(len(edges), 4)
    batched, _ = drawer.draw(logits, filters([params] * 9, 49_152), owners, edges)
    alone, _ = Drawer(49_152, CPU).draw(logits[4:5], filters([params], 49_152), owners * 0, edges)
    assert batched.tolist() == alone.tolist()


def test_never_picks_a_token_of_probability_zero() -> None:
    """At the ends of the unit interval and at every edge between tokens, where rounding is worst."""
    logits = torch.full((1, 1000), -torch.inf)
    allowed = [3, 255, 256, 511, 700, 998]
    logits[0, allowed] = torch.tensor([0.0, 1.0, -3.0, 2.0, 0.5, -20.0])
    weights = np.exp(logits[0, allowed].numpy().astype(np.float64))
    edges = np.cumsum(weights) / weights.sum()
    points = np.concatenate(
        ([0.0, np.nextafter(1, 0)], edges[:-1], np.nextafter(edges, 0), np.nextafter(edges[:-1], 1))
    )
    drawer = Drawer(1000, CPU)
    for params in (SamplingParams(), SamplingParams(top_k=900), SamplingParams(top_p=0.99999), SamplingParams(min_p=0)):
        tokens, _ = drawer.draw(logits, filters([params], 1000), np.zeros(len(points), np.int64), points)
        assert set(tokens.tolist()) <= set(allowed)
    assert drawer.draw(logits, filters([SamplingParams()], 1000), np.zeros(1, np.int64), np.zeros(1))[0].tolist() == [3]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=1.3, top_k=7),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=2.0, top_k=50, top_p=0.9, min_p=0.02),
    ],
)
def test_distribution(params: SamplingParams) -> None:
    logits = torch.randn((1, 600), generator=torch.Generator().manual_seed(3)) * 3
    expected, _ = distribution(logits[0].tolist(), params)
    assert np.abs(frequencies(logits, params) - expected).max() < 1 / 2000


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
def test_top_p_of_a_flat_distribution_keeps_the_lowest_ids(share: float) -> None:
    """All tokens tie, and far more than the first candidates are kept."""
    kept = np.flatnonzero(frequencies(torch.zeros((1, 4096)), SamplingParams(top_p=share), 8192))
    assert kept.tolist() == list(range(int(4096 * share)))


def test_top_k_keeps_k_of_equal_tokens() -> None:
    logits = torch.zeros((1, 100))
    logits[0, 90] = 1.0
    assert np.flatnonzero(frequencies(logits, SamplingParams(top_k=3))).tolist() == [0, 1, 90]


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-4])
def test_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([[1.0, 5.0, 4.9, -torch.inf]])
    assert frequencies(logits, SamplingParams(temperature=temperature))[1] == 1


def test_huge_temperature_is_flat_over_what_is_possible() -> None:
    logits = torch.tensor([[1.0, 5.0, 4.9, -torch.inf]])
    assert frequencies(logits, SamplingParams(temperature=1e308), 300).tolist() == [1 / 3, 1 / 3, 1 / 3, 0]


broken = st.sampled_from([torch.nan, torch.inf, -torch.inf])


@given(st.lists(sampled, min_size=3, max_size=3), st.sampled_from([3, 256, 500]), broken, st.booleans())
def test_a_broken_row_is_told_and_harms_no_other(
    params: list[SamplingParams], vocab_size: int, bad: float, whole: bool
) -> None:
    """One NaN or infinity in a row, or nothing else in it; what is drawn there is at least a token."""
    logits = torch.randn((3, vocab_size), generator=torch.Generator().manual_seed(5))
    uniforms = np.array([0.1, 0.5, 0.8])
    clean = draw_all(logits, params, uniforms)
    logits[1, slice(None) if whole or bad < 0 else 2] = bad
    tokens, peaks = Drawer(vocab_size, CPU).draw(logits, filters(params, vocab_size), np.arange(3), uniforms)
    assert torch.isfinite(peaks).tolist() == [True, False, True]
    assert [tokens[0], tokens[2]] == [clean[0], clean[2]]
    assert 0 <= tokens[1] < vocab_size


def test_rounding_past_the_end_gives_the_last_token_that_adds_something() -> None:
    """uniform x total can round up to the total itself, and what is left of it within a chunk past the chunk's sum."""
    sums = torch.tensor([[0.0, 0.25, 0.25, 1.0, 1.0]], dtype=torch.float64).repeat(5, 1)
    target = torch.tensor([0.0, 0.25, 0.3, 1.0, 1.5], dtype=torch.float64)
    assert _first_above(sums, target).tolist() == [1, 3, 3, 3, 3]
