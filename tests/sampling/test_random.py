from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.sampling.random import philox4x32, seed_bits, uniforms

# Known answers published with Random123 (kat_vectors, philox4x32 with 10 rounds): counter, key, output.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
WORDS = st.integers(0, 2**63 - 1)


def draw(seed: int, index: int, position: int) -> float:
    return float(uniforms(np.array([seed], np.uint64), np.array([index]), np.array([position]))[0])


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox4x32(np.array(counter, np.uint64)[:, None], np.array(key, np.uint64)[:, None])
    assert words[:, 0].tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 127), st.integers(0, 2**31)), min_size=1))
def test_a_draw_depends_on_its_own_key_alone(keys: list[tuple[int, int, int]]) -> None:
    seeds, indices, positions = zip(*keys, strict=True)
    together = uniforms(np.array(seeds, np.uint64), np.array(indices), np.array(positions))
    assert together.tolist() == [draw(*key) for key in keys]
    assert ((together >= 0) & (together < 1)).all()


def test_every_part_of_the_key_counts() -> None:
    base = draw(5, 0, 9)
    assert (
        len({base, draw(6, 0, 9), draw(5 | 1 << 63, 0, 9), draw(5, 1, 9), draw(5, 0, 10), draw(5, 0, 9 + 2**32)}) == 6
    )


def test_seeds_of_any_sign() -> None:
    assert seed_bits(-1) == 2**64 - 1
    assert seed_bits(-(2**63)) == 2**63
    assert seed_bits(7) == 7


@pytest.mark.parametrize("axis", ["seed", "index", "position"])
def test_draws_are_uniform_and_uncorrelated(axis: str) -> None:
    """Chi-square over 64 bins and lag-1 correlation, along each part of the key while the others stand still."""
    count = 64_000
    running, still = np.arange(count), np.zeros(count, np.int64)
    parts = {name: running if name == axis else still + 3 for name in ("seed", "index", "position")}
    values = uniforms(parts["seed"].astype(np.uint64), parts["index"], parts["position"])
    observed = np.bincount((values * 64).astype(int), minlength=64)
    chi_square = ((observed - count / 64) ** 2 / (count / 64)).sum()
    assert 25 < chi_square < 125  # 63 degrees of freedom: outside with probability below 1e-5
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / np.sqrt(count)
