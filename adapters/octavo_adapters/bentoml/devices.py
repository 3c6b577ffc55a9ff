"""Which GPUs a worker uses: BentoML gives all workers of a service the same ones."""

from __future__ import annotations

from octavo import ConfigError


def worker_devices(visible: str | None, worker: int, num_workers: int, world_size: int) -> str | None:
    """The value of CUDA_VISIBLE_DEVICES for one worker; None leaves it as it is.

    Args:
        visible: CUDA_VISIBLE_DEVICES as BentoML set it for the service; None: there are none, or all of them.
        worker: its number, from 0.
        world_size: GPUs one engine runs on.

    Raises:
        ConfigError: there are not enough for all workers.
    """
    if not visible or num_workers == 1:
        return None
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if len(names) < num_workers * world_size:
        raise ConfigError(
            f"{num_workers} workers with {world_size} GPUs each need {num_workers * world_size}, but the service has "
            f"{len(names)}: raise resources.gpu, or lower workers",
            "workers",
        )
    first = worker * world_size
    return ",".join(names[first : first + world_size])
