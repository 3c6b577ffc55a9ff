"""Which GPUs an instance of a model may use: arithmetic over what Triton says and what the environment allows."""

from __future__ import annotations

from octavo import ConfigError


def visible_devices(
    *,
    kind: str,
    device_id: int,
    instance: int,
    gpu_device_ids: str | None,
    outer: str | None,
    world_size: int,
) -> str | None:
    """The value of CUDA_VISIBLE_DEVICES for one instance; None leaves it as it is.

    Args:
        kind: `CPU`, `GPU` or `MODEL`, from the instance group.
        device_id: that Triton gives a `GPU` instance; counts among the devices that `outer` leaves visible.
        instance: its number among the model's instances, from 0.
        gpu_device_ids: groups of device numbers, one a `MODEL` instance: `0,1;2,3`. They too count among those visible.
        outer: CUDA_VISIBLE_DEVICES as it was given to the server.
        world_size: GPUs one engine runs on.

    Raises:
        ConfigError: the model needs more GPUs than the instance has, or a number names no device.
    """
    if kind == "CPU":
        return ""
    if kind == "GPU":
        if world_size > 1:
            raise ConfigError(
                f"the model runs on {world_size} GPUs, but an instance of KIND_GPU has one: use KIND_MODEL, and "
                "the parameter gpu_device_ids to choose them",
                "instance_group",
            )
        return _among(outer, [device_id])
    if not gpu_device_ids:
        return None
    groups = [_numbers(group, gpu_device_ids) for group in gpu_device_ids.split(";")]
    if instance >= len(groups):
        raise ConfigError(
            f"gpu_device_ids '{gpu_device_ids}' has {len(groups)} groups, but there is an instance number "
            f"{instance + 1}: give each instance a group, as in '0,1;2,3'",
            "gpu_device_ids",
        )
    group = groups[instance]
    if len(group) != world_size:
        raise ConfigError(
            f"gpu_device_ids gives instance {instance} {len(group)} GPUs, but the model runs on {world_size}",
            "gpu_device_ids",
        )
    used = [number for other in groups for number in other]
    if len(set(used)) != len(used):
        raise ConfigError(f"gpu_device_ids '{gpu_device_ids}' names a GPU twice", "gpu_device_ids")
    return _among(outer, group)


def instance_number(instance_name: str) -> int:
    """The number in an instance's name: `llm_0_1` is number 1, as is `llm_0_gpu1`."""
    tail = instance_name.rpartition("_")[2].removeprefix("gpu").removeprefix("cpu")
    return int(tail) if tail.isdecimal() else 0


def _among(outer: str | None, numbers: list[int]) -> str:
    if outer is None:
        return ",".join(map(str, numbers))
    visible = [name.strip() for name in outer.split(",") if name.strip()]
    for number in numbers:
        if number >= len(visible):
            raise ConfigError(
                f"GPU {number} is asked for, but CUDA_VISIBLE_DEVICES='{outer}' leaves {len(visible)} visible",
                "gpu_device_ids",
            )
    return ",".join(visible[number] for number in numbers)


def _numbers(group: str, whole: str) -> list[int]:
    parts = [part.strip() for part in group.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"gpu_device_ids is '{whole}'; it is numbers such as '0,1;2,3'", "gpu_device_ids")
    return [int(part) for part in parts]
