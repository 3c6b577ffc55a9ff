"""The cosines and sines of all positions, made once."""

from __future__ import annotations

import torch

from octavo.model.spec import RopeSpec


def cos_sin_cache(rope: RopeSpec, num_positions: int, device: torch.device) -> torch.Tensor:
    """float32 [num_positions, rotary_dim]: the cosines of all pairs, then their sines, scaling included."""
    frequencies = torch.tensor(rope.inverse_frequencies, dtype=torch.float32)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    table = torch.cat((angles.cos(), angles.sin()), -1) * rope.attention_scaling
    return table.to(device)
