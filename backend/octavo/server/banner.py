"""What the server prints when it is ready: two examples that work as pasted."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from octavo import __version__
from octavo.server.config import ServerConfig

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
_KEY_VARIABLE = "OCTAVO_API_KEY"


def base_url(host: str, port: int) -> str:
    """Where a client on this machine finds the server."""
    host = _ANY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def banner(engine: AsyncEngine, config: ServerConfig, port: int) -> str:
    """One curl line and one `openai` snippet. Keys are never shown: the examples read them from the environment."""
    url = base_url(config.host, port)
    model = engine.config.model_name
    path, call, body, result = _example(engine, model)
    headers = "-H 'Content-Type: application/json'"
    key = "'none'"
    imports = "from openai import OpenAI"
    if config.wants_keys:
        headers += f' -H "Authorization: Bearer ${_KEY_VARIABLE}"'
        key = f"os.environ['{_KEY_VARIABLE}']"
        imports = f"import os\n{imports}"
    arguments = ", ".join(f"{name}={value!r}" for name, value in body.items())
    return (
        f"octavo {__version__} serves {model} at {url}/v1\n\n"
        f"curl {url}/v1/{path} {headers} -d {shlex.quote(json.dumps(body, ensure_ascii=False))}\n\n"
        f"{imports}\n"
        f"client = OpenAI(base_url={url + '/v1'!r}, api_key={key})\n"
        f"answer = client.{call}.create({arguments})\n"
        f"print(answer.choices[0].{result})\n"
    )


def _example(engine: AsyncEngine, model: str) -> tuple[str, str, dict[str, Any], str]:
    """(path, the client's method, body, where the text is), by what the model can do."""
    if engine.tokenizer is not None and engine.tokenizer.has_chat_template:
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        body = {"model": model, "messages": messages, "max_tokens": 64}
        return "chat/completions", "chat.completions", body, "message.content"
    prompt: str | list[int] = [1] if engine.tokenizer is None else "The capital of France is"
    return "completions", "completions", {"model": model, "prompt": prompt, "max_tokens": 16}, "text"
