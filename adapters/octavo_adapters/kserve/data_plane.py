"""OctavoDataPlane: KServe's, with probes that tell the truth."""

from __future__ import annotations

from kserve.errors import ServerNotLive, ServerNotReady
from kserve.model_repository import ModelRepository
from kserve.protocol.dataplane import DataPlane

from octavo import AsyncEngine


class OctavoDataPlane(DataPlane):  # type: ignore[misc]
    """`live` is `/` and /v2/health/live, `ready` /v2/health/ready, `model_ready` /v2/models/<m>/ready; over gRPC alike.

    All are red until a warm-up token has come out, and while the engine is dead or its core is being replaced. While it
    drains it is live, but not ready. A pod needs a startup probe for the time of loading.
    """

    def __init__(self, registry: ModelRepository, engine: AsyncEngine) -> None:
        super().__init__(model_registry=registry)
        self._engine = engine

    async def live(self) -> dict[str, str]:
        """Raises ServerNotLive with the reason."""
        status = self._engine.status()
        if status.state not in ("ready", "draining"):
            raise ServerNotLive(f"the engine is {status.state}: {status.reason}")
        return {"status": "alive"}

    async def ready(self) -> bool:
        """Raises ServerNotReady with the reason."""
        status = self._engine.status()
        if status.state != "ready":
            raise ServerNotReady(f"the engine is {status.state}: {status.reason}")
        return bool(await super().ready())

    async def model_ready(self, model_name: str, disable_predictor_health_check: bool = False) -> bool:
        """Raises ModelNotFound. Requests ask with `disable_predictor_health_check`; they may wait for a new core."""
        found = await super().model_ready(model_name, disable_predictor_health_check)
        state = self._engine.status().state
        return bool(found) and (state == "ready" or (disable_predictor_health_check and state == "recovering"))
