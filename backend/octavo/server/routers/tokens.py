"""/tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from octavo.server.body import read_json
from octavo.server.context import Context
from octavo.server.prompts import EncodedPrompt, encode_chat, encode_texts, require_tokenizer
from octavo.server.protocol.openapi import json_body
from octavo.server.protocol.tokens import DetokenizeRequest, TokenizeRequest

# So many tokens take milliseconds to decode: off the event loop with them.
_MANY_TOKENS = 10_000


def router(context: Context) -> APIRouter:
    routes = APIRouter()
    engine = context.engine

    @routes.post("/tokenize", openapi_extra=json_body(TokenizeRequest))
    async def tokenize(request: Request) -> dict[str, Any]:
        """Text, or messages through the chat template, to token ids."""
        asked = TokenizeRequest.parse(await read_json(request, context.config.max_request_bytes))
        context.check_model(asked.model)
        context.check_running()
        encoded = await _encoded(context, asked)
        texts = None
        if asked.return_token_strs:
            tokenizer = require_tokenizer(engine, "return_token_strs")
            texts = [tokenizer.token_text(token_id) for token_id in encoded.token_ids]
        return {
            "count": len(encoded.token_ids),
            "max_model_len": engine.max_model_len,
            "tokens": encoded.token_ids,
            "token_strs": texts,
        }

    @routes.post("/detokenize", openapi_extra=json_body(DetokenizeRequest))
    async def detokenize(request: Request) -> dict[str, str]:
        """Token ids to text."""
        asked = DetokenizeRequest.parse(await read_json(request, context.config.max_request_bytes))
        context.check_model(asked.model)
        context.check_running()
        tokenizer = require_tokenizer(engine, "tokens")
        decode = partial(tokenizer.decode, asked.tokens, skip_special_tokens=False)
        return {"prompt": await asyncio.to_thread(decode) if len(asked.tokens) > _MANY_TOKENS else decode()}

    return routes


async def _encoded(context: Context, asked: TokenizeRequest) -> EncodedPrompt:
    if asked.messages is not None:
        context.check_messages(len(asked.messages))
        return await encode_chat(
            context.engine,
            asked.messages,
            add_generation_prompt=asked.add_generation_prompt,
            continue_final_message=asked.continue_final_message,
            template_kwargs=asked.chat_template_kwargs,
            add_special_tokens=bool(asked.add_special_tokens),
        )
    if not asked.prompt:
        return EncodedPrompt([], "")
    with_special = asked.add_special_tokens is not False
    (encoded,) = await encode_texts(context.engine, [asked.prompt], add_special_tokens=with_special)
    return encoded
