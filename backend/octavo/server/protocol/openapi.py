"""Request bodies in the app's OpenAPI description: the routes read them themselves, so FastAPI does not know."""

from __future__ import annotations

from typing import Any

from octavo.server.protocol.wire import Wire


def json_body(kind: type[Wire]) -> dict[str, Any]:
    """What a route's `openapi_extra` needs to say that its body is a `kind`."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(kind)}}}}


def _inlined(kind: type[Wire]) -> dict[str, Any]:
    """The JSON schema with every reference replaced by what it stands for."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return resolve(definitions[node["$ref"].rpartition("/")[2]])
            return {key: resolve(value) for key, value in node.items()}
        return [resolve(item) for item in node] if isinstance(node, list) else node

    resolved: dict[str, Any] = resolve(schema)
    return resolved
