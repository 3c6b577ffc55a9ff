"""Which GPUs an instance sees."""

from __future__ import annotations

import pytest

from octavo import ConfigError
from octavo_adapters.triton.devices import instance_number, visible_devices


def visible(
    kind: str, device: int = 0, instance: int = 0, ids: str | None = None, outer: str | None = None, size: int = 1
) -> str | None:
    return visible_devices(
        kind=kind, device_id=device, instance=instance, gpu_device_ids=ids, outer=outer, world_size=size
    )


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (("CPU",), ""),
        (("CPU", 0, 0, None, "2,3"), ""),
        (("GPU", 1), "1"),
        (("GPU", 1, 0, None, "2,3"), "3"),
        (("GPU", 0, 0, None, "GPU-abc, GPU-def"), "GPU-abc"),
        (("MODEL",), None),
        (("MODEL", 0, 0, "0,1;2,3", None, 2), "0,1"),
        (("MODEL", 0, 1, "0,1;2,3", None, 2), "2,3"),
        (("MODEL", 0, 1, "0 ; 1", "6,7"), "7"),
    ],
)
def test_visible(arguments: tuple[object, ...], want: str | None) -> None:
    assert visible(*arguments) == want  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("GPU", 0, 0, None, None, 2), "KIND_MODEL"),
        (("GPU", 2, 0, None, "0,1"), "leaves 2 visible"),
        (("MODEL", 0, 2, "0,1;2,3", None, 2), "has 2 groups, but there is an instance number 3"),
        (("MODEL", 0, 0, "0,1", None, 1), "2 GPUs, but the model runs on 1"),
        (("MODEL", 0, 0, "0;0", None, 1), "names a GPU twice"),
        (("MODEL", 0, 0, "0;one", None, 1), "numbers such as"),
        (("MODEL", 0, 0, "-1", None, 1), "numbers such as"),
        (("MODEL", 0, 0, "5", "0", 1), "leaves 1 visible"),
    ],
)
def test_what_cannot_be(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        visible(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "want"), [("llm_0_1", 1), ("llm_0_gpu3", 3), ("llm_2_0_cpu0", 0), ("odd", 0)])
def test_instance_number(name: str, want: int) -> None:
    assert instance_number(name) == want
