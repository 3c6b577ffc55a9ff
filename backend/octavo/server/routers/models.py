"""/v1/models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from octavo.server.context import Context


def router(context: Context) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The served model, under each of its names."""
        return {"object": "list", "data": [_card(context, name) for name in context.engine.config.model_names]}

    # A model's name may have slashes.
    @routes.get("/v1/models/{model:path}")
    async def retrieve_model(model: str) -> dict[str, Any]:
        """One model."""
        context.check_model(model)
        return _card(context, model)

    return routes


def _card(context: Context, name: str) -> dict[str, Any]:
    info = context.engine.info
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "octavo",
        "root": context.engine.config.model,
        "parent": None,
        "max_model_len": info.max_model_len if info is not None else context.engine.config.max_model_len,
    }
