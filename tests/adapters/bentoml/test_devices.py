"""Which GPUs a worker takes of those the service has."""

from __future__ import annotations

import pytest

from octavo import ConfigError
from octavo_adapters.bentoml.devices import worker_devices


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ((None, 0, 2, 1), None),
        (("", 0, 2, 1), None),
        (("0,1", 0, 1, 1), None),
        (("0,1", 0, 2, 1), "0"),
        (("0,1", 1, 2, 1), "1"),
        (("4, 5,6,7", 1, 2, 2), "6,7"),
        (("GPU-a,GPU-b", 1, 2, 1), "GPU-b"),
    ],
)
def test_devices(arguments: tuple[str | None, int, int, int], want: str | None) -> None:
    assert worker_devices(*arguments) == want


def test_too_few() -> None:
    with pytest.raises(ConfigError, match="2 workers with 2 GPUs each need 4, but the service has 3"):
        worker_devices("0,1,2", 0, 2, 2)
