"""LLMService: an engine with BentoML's life around it; `llm_service` and `with_llm` make services of it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
from collections.abc import AsyncGenerator, Callable
from http import HTTPStatus
from typing import Annotated, Any, ClassVar

import bentoml
from bentoml.exceptions import BentoMLException
from pydantic import Field
from starlette.exceptions import HTTPException

from octavo import AsyncEngine, EngineConfig, OctavoError, RequestError, SamplingParams
from octavo.config import DEFAULT_MODEL
from octavo.server.config import ServerConfig
from octavo.server.errors import api_error
from octavo.server.prompts import encode_chat
from octavo.server.protocol.chat import Message
from octavo_adapters.bentoml.devices import worker_devices
from octavo_adapters.bentoml.disconnect import while_there
from octavo_adapters.bentoml.image import llm_image
from octavo_adapters.bentoml.metrics import WorkerMetrics
from octavo_adapters.bentoml.openai_app import OpenAIApp

logger = logging.getLogger("octavo.bentoml")

DEFAULT_NAME = "SmolLM2-135M-Instruct"

Prompt = Annotated[str, Field(description="The text to continue.")]
Messages = Annotated[list[dict[str, Any]], Field(description="Chat messages: objects with role and content.")]
MaxTokens = Annotated[int, Field(ge=1, description="Most tokens to generate.")]
Temperature = Annotated[float, Field(ge=0, description="0 takes the likeliest token; higher is more varied.")]
TopP = Annotated[float, Field(gt=0, le=1, description="Keep the smallest set of tokens of at least this mass.")]
Stop = Annotated[list[str], Field(description="Strings that end the text.")]
Seed = Annotated[int | None, Field(description="Fixes the draws: the same request gives the same text.")]
Options = Annotated[
    dict[str, Any], Field(description="Further sampling parameters by name, e.g. top_k, min_p, presence_penalty.")
]


class LLMService:
    """Base of the services. One engine a worker, its core in a process of its own.

    A subclass's own APIs use `self.engine`.

    Attributes:
        engine_config, server_config, drain_timeout, openai_app: set by whoever makes the service.
        model_ref: a model of BentoML's store or of the Hugging Face hub, resolved when a worker starts; it goes into
            the bento.
    """

    engine_config: ClassVar[EngineConfig]
    server_config: ClassVar[ServerConfig]
    openai_app: ClassVar[OpenAIApp]
    drain_timeout: ClassVar[float]
    num_workers: ClassVar[int]
    has_model_ref: ClassVar[bool]

    engine: AsyncEngine

    @bentoml.on_startup
    async def start_engine(self) -> None:
        """Begins to load; the probes tell when that is done."""
        config = self.engine_config
        if self.has_model_ref:
            path = await asyncio.to_thread(lambda: str(getattr(self.model_ref, "path", self.model_ref)))  # type: ignore[attr-defined]
            config = config.model_copy(update={"model": path})
        worker = int(bentoml.server_context.worker_index or 1)
        devices = worker_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), worker - 1, self.num_workers, 1)
        if devices is not None:
            # The core's process inherits it, and nothing in this one touches a GPU.
            os.environ["CUDA_VISIBLE_DEVICES"] = devices
        self.engine = AsyncEngine(config)
        self.openai_app.open(self.engine)
        self.metrics = WorkerMetrics(self.engine, worker)
        self._background = [asyncio.create_task(self._start()), asyncio.create_task(self.metrics.keep_writing())]

    async def _start(self) -> None:
        try:
            await self.engine.start()
        except OctavoError as error:
            logger.error("%s", error)

    @bentoml.on_shutdown
    async def stop_engine(self) -> None:
        """Running requests may finish, up to `drain_timeout`; then the engine ends."""
        with contextlib.suppress(OctavoError):
            await self.engine.drain(self.drain_timeout)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.engine.shutdown()
        self.metrics.remove()

    async def __is_ready__(self) -> bool:
        """Raises HTTPException with the reason where the answer is no: BentoML's own says nothing."""
        status = self.engine.status()
        if status.state != "ready":
            raise HTTPException(503, f"the engine is {status.state}: {status.reason}")
        return True

    async def __is_alive__(self) -> bool:
        """False once the engine is dead: then only a new worker helps."""
        status = self.engine.status()
        if status.state == "dead":
            raise HTTPException(503, f"the engine is dead: {status.reason}")
        return True

    async def __metrics__(self, original: str) -> str:
        """BentoML's metrics, then octavo's."""
        return original + self.metrics.text()

    @bentoml.api
    async def generate(
        self,
        ctx: bentoml.Context,
        prompt: Prompt,
        max_tokens: MaxTokens = 128,
        temperature: Temperature = 1.0,
        top_p: TopP = 1.0,
        stop: Stop = [],  # noqa: B006 - BentoML makes a model of the signature
        seed: Seed = None,
        options: Options = {},  # noqa: B006 - likewise
    ) -> AsyncGenerator[str, None]:
        """Streams the continuation of a text."""
        params = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "stop": stop, "seed": seed}
        stream = self._deltas(prompt, {**params, **options})
        async for text in while_there(ctx.request, stream):
            yield text

    @bentoml.api
    async def chat(
        self,
        ctx: bentoml.Context,
        messages: Messages,
        max_tokens: MaxTokens = 512,
        temperature: Temperature = 1.0,
        top_p: TopP = 1.0,
        stop: Stop = [],  # noqa: B006 - likewise
        seed: Seed = None,
        options: Options = {},  # noqa: B006 - likewise
    ) -> AsyncGenerator[str, None]:
        """Streams the answer to a conversation."""
        params = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "stop": stop, "seed": seed}
        stream = self._deltas(messages, {**params, **options})
        async for text in while_there(ctx.request, stream):
            yield text

    async def _deltas(self, prompt: str | list[dict[str, Any]], params: dict[str, Any]) -> AsyncGenerator[str, None]:
        """Raises BentoMLException with the status the plain server would answer."""
        try:
            self.engine.check_accepting()
            sampling = SamplingParams(**params)
            if sampling.n != 1:
                raise RequestError("n: this endpoint streams one sequence; use /v1/completions for more", "n")
            if isinstance(prompt, list):
                encoded = await encode_chat(self.engine, [Message.parse(message) for message in prompt])
                outputs = self.engine.generate(encoded.for_engine(), sampling, operation="chat")
            else:
                outputs = self.engine.generate(prompt, sampling)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield output.outputs[0].text
        except OctavoError as error:
            failure = api_error(error)
            raise BentoMLException(failure.message, error_code=HTTPStatus(failure.status)) from None


def with_llm(
    config: EngineConfig | None = None,
    *,
    model: Any = None,
    server: ServerConfig | None = None,
    drain_timeout: float = 30.0,
    **service: Any,
) -> Callable[[type], Any]:
    """A decorator: makes a class with APIs of its own a service that has an engine as `self.engine`.

    Args:
        config: the engine's options; the default model's if None.
        model: instead of `config.model`: `bentoml.models.BentoModel(tag)` or `bentoml.models.HuggingFaceModel(id)`.
        server: options of the OpenAI app, e.g. `api_key`.
        drain_timeout: seconds that running requests have at the end.
        service: whatever `bentoml.service` takes: name, image, resources, traffic, workers, labels, ...

    Raises:
        ConfigError: by EngineConfig and ServerConfig, where they are made.
    """
    chosen = config or EngineConfig(model=DEFAULT_MODEL, served_model_name=[DEFAULT_NAME])
    workers = service.get("workers", 1)
    module = _caller()

    def decorate(inner: type) -> Any:
        app = OpenAIApp(server or ServerConfig())
        attributes: dict[str, Any] = {
            "__doc__": inner.__doc__,
            "__module__": inner.__module__,
            "engine_config": chosen,
            "server_config": server or ServerConfig(),
            "openai_app": app,
            "drain_timeout": drain_timeout,
            "num_workers": workers if isinstance(workers, int) else os.cpu_count() or 1,
            "has_model_ref": model is not None,
        }
        if model is not None:
            attributes["model_ref"] = model
        bases = (inner,) if issubclass(inner, LLMService) else (inner, LLMService)
        options = {
            "name": inner.__name__,
            "image": llm_image(gpu="gpu" in service.get("resources", {})),
            **service,
            "labels": {"openai_endpoint": "/v1", "engine": "octavo", **service.get("labels", {})},
            "endpoints": {"livez": "/livez", "readyz": "/readyz", **service.get("endpoints", {})},
        }
        made = bentoml.service(**options)(type(inner.__name__, bases, attributes))
        made.mount_asgi_app(app, path="/", name="openai")
        # BentoML looks for the module that holds the service, and would find this one.
        made._caller_module = module
        return made

    return decorate


def llm_service(config: EngineConfig | None = None, *, name: str = "octavo", **options: Any) -> Any:
    """A service of one model: `generate`, `chat` and the OpenAI API. Arguments as `with_llm` has them."""
    decorate = with_llm(config, name=name, **options)

    class LLM(LLMService):
        """A large language model behind octavo."""

    return decorate(LLM)


def _caller() -> str:
    """The module outside this one that is asking."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals["__name__"] == __name__:
        frame = frame.f_back
    return str(frame.f_globals["__name__"]) if frame is not None else __name__
