"""generate: a TensorRequest through an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from octavo.engine.stream import join
from octavo.outputs import RequestOutput
from octavo.server.prompts import encode_chat
from octavo.tensors.answer import TensorAnswer
from octavo.tensors.request import TensorRequest

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine
    from octavo.engine.intake import Prompt


async def generate(
    engine: AsyncEngine, request: TensorRequest
) -> AsyncGenerator[tuple[dict[str, list[Any]], bool], None]:
    """(output tensors, whether they are the last): a set a step if the request streams, else one for the whole answer.

    Closing it early aborts the request.

    Raises:
        RequestError, and whatever else `AsyncEngine.generate` raises.
    """
    engine.check_accepting()
    answer = TensorAnswer(request)
    outputs = engine.generate(
        await _prompt(engine, request),
        request.params,
        request.request_id,
        priority=request.priority,
        cache_salt=request.cache_salt,
        timeout=request.timeout,
        operation="text_completion" if request.messages is None else "chat",
    )
    whole: RequestOutput | None = None
    async with aclosing(outputs):
        async for output in outputs:
            if request.stream:
                yield answer.build(output), output.finished
            elif whole is None:
                whole = output
            else:
                join(whole, output)
    if whole is not None:
        yield answer.build(whole), True


async def _prompt(engine: AsyncEngine, request: TensorRequest) -> Prompt:
    if request.messages is not None:
        return (await encode_chat(engine, request.messages)).for_engine()
    return request.prompt if request.prompt is not None else ""
