"""Counter-based uniform draws: a pure function of (seed, index, position), so no generator state has to survive.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
Key: the seed's low and high 32 bits. Counter: position's low and high 32 bits, the sequence's index, 0. The uniform is
53 bits: 27 of the first output word over 26 of the second.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_TWO_26 = float(1 << 26)
_TWO_MINUS_53 = 2.0**-53


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Philox4x32-10.

    Args:
        counter: [4, N], 32-bit words in uint64.
        key: [2, N], 32-bit words in uint64.

    Returns:
        [4, N], 32-bit words in uint64.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for step in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _WORD) ^ c1 ^ ((k0 + np.uint64(step * _WEYL[0])) & _LOW),
            product1 & _LOW,
            (product0 >> _WORD) ^ c3 ^ ((k1 + np.uint64(step * _WEYL[1])) & _LOW),
            product0 & _LOW,
        )
    return np.stack((c0, c1, c2, c3))


def uniforms(
    seeds: NDArray[np.uint64], indices: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.float64]:
    """One float64 in [0, 1) for each (seed, index, position).

    Args:
        seeds: [N], the sequences' 64-bit seeds.
        indices: [N], each sequence's index within its request.
        positions: [N], position of the token to be drawn.
    """
    where = positions.astype(np.uint64)
    zero = np.zeros_like(where)
    counter = np.stack((where & _LOW, where >> _WORD, indices.astype(np.uint64), zero))
    words = philox4x32(counter, np.stack((seeds & _LOW, seeds >> _WORD)))
    high = (words[0] >> np.uint64(5)).astype(np.float64)
    low = (words[1] >> np.uint64(6)).astype(np.float64)
    uniform: NDArray[np.float64] = (high * _TWO_26 + low) * _TWO_MINUS_53
    return uniform


def seed_bits(seed: int) -> int:
    """A seed of any sign and size as an unsigned 64-bit number."""
    return seed & 0xFFFFFFFFFFFFFFFF
