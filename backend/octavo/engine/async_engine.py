"""AsyncEngine: what servers and adapters call. Tokenises, streams, aborts, drains; the core runs in its own process."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Literal

from octavo.config import EngineConfig
from octavo.core.request import SequenceOutput
from octavo.engine.backlog import Backlog
from octavo.engine.in_flight import InFlight, RequestState
from octavo.engine.intake import Intake, Prompt
from octavo.engine.ledger import Ledger
from octavo.engine.messages import Abort, CoreFailed, CoreMessage, CoreReady, RequestRejected, StepOutputs
from octavo.engine.output import RequestAssembler
from octavo.engine.pulse import mark_of
from octavo.engine.recorder import RecordedStep
from octavo.engine.restarts import Suspicion
from octavo.engine.supervisor import Supervisor
from octavo.errors import (
    EngineDeadError,
    EngineOverloadedError,
    EngineStoppedError,
    OctavoError,
    RequestCrashError,
    RequestError,
    RequestTimeoutError,
)
from octavo.model.loading.source import resolve_model
from octavo.observe.metrics import EngineMetrics
from octavo.observe.tracing import Operation, build_tracer
from octavo.outputs import RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.text.tokenizer import Tokenizer

logger = logging.getLogger("octavo.engine")

State = Literal["starting", "ready", "recovering", "draining", "dead"]

# A prompt this long takes milliseconds to tokenise: off the event loop with it.
_LONG_TEXT = 20_000


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """`reason` says why it is not `ready`. While it is `recovering`, requests are taken and wait."""

    state: State
    reason: str


class AsyncEngine:
    """The engine behind an event loop. One instance, one model, one core process.

    `start` must have returned before `generate` is of use. Not thread-safe: all calls belong to one event loop.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.metrics = EngineMetrics(config.model_name)
        self.tokenizer: Tokenizer | None = None
        self.info: CoreReady | None = None
        self._state: State = "starting"
        self._reason = "the engine has not been started"
        self._requests: dict[str, InFlight] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._dead = asyncio.Event()
        self._held: set[str] = set()
        self._backlog = Backlog(config.max_num_seqs, config.max_queued_requests, config.max_queued_tokens)
        self._suspicion = Suspicion()
        self._ledger = Ledger(self.metrics, build_tracer(config.otlp_traces_endpoint, config.model_name))
        self._supervisor: Supervisor | None = None
        self._intake: Intake | None = None

    @property
    def max_model_len(self) -> int:
        """Longest prompt + output, in tokens."""
        return self._ready_info().max_model_len

    @property
    def vocab_size(self) -> int:
        return self._ready_info().vocab_size

    @property
    def num_unfinished(self) -> int:
        """Requests in flight."""
        return len(self._requests)

    def status(self) -> EngineStatus:
        return EngineStatus(self._state, self._reason)

    def recent_steps(self, count: int = 256) -> list[RecordedStep]:
        """The core's last steps, oldest first; of a dead core too."""
        return self._supervisor.recent_steps(count) if self._supervisor is not None else []

    def requests(self) -> list[RequestState]:
        """What is in flight, oldest first; no prompts and no texts."""
        now = time.monotonic()
        return [request.state(now, held=name in self._held) for name, request in self._requests.items()]

    async def start(self) -> None:
        """Starts the core and returns when a warm-up token has come out.

        Raises:
            ConfigError: the model cannot be found or served with these options.
            EngineDeadError: the core ended for another reason.
        """
        if self._supervisor is not None:
            raise RuntimeError("the engine has been started already")
        self._reason = f"loading {self.config.model}"
        self._supervisor = Supervisor(self.config, self)
        try:
            source = await asyncio.to_thread(resolve_model, self.config.model, self.config.revision)
            self._supervisor.launch()
            if not self.config.skip_tokenizer_init:
                if self.config.tokenizer is not None:
                    source = await asyncio.to_thread(resolve_model, self.config.tokenizer, self.config.revision)
                self.tokenizer = await asyncio.to_thread(
                    Tokenizer.load,
                    source,
                    trust_remote_code=self.config.trust_remote_code,
                    chat_template=self.config.chat_template,
                )
            info = await self._supervisor.ready()
        except BaseException as error:
            self._die(f"the engine did not start: {error}")
            self._supervisor.kill()
            raise
        self.info = info
        self._intake = Intake(self.config, self.tokenizer, vocab_size=info.vocab_size, max_model_len=info.max_model_len)
        self.metrics.record_cache(info.num_blocks, info.block_size)
        self._state, self._reason = "ready", "ready"

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        timeout: float | None = None,
        operation: Operation = "text_completion",
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Streams what is new, at most one output a step; the last one has `finished` set.

        Closing the iterator early aborts the request in the core.

        Args:
            timeout: seconds the request may take, waiting included; None: `request_timeout`.
            operation, trace_headers: for traces: what is asked for, and the caller's W3C `traceparent`.

        Raises:
            RequestError: the request is wrong; raised before the first output.
            RequestTimeoutError: it did not end within `timeout`; what came before was streamed.
            EngineOverloadedError: too much waits already; raised before the first output.
            EngineStoppedError: the engine is starting, draining or shut down.
            EngineDeadError: the core died, before or during the request.
        """
        begin = asyncio.get_running_loop().time()
        seconds = self._seconds(timeout)
        self.check_accepting()
        request_id = request_id or uuid.uuid4().hex
        request = await self._submit(prompt, params, request_id, priority, cache_salt)
        request.operation, request.trace_headers = operation, trace_headers
        expiry = None
        if seconds is not None:
            expiry = asyncio.get_running_loop().call_at(begin + seconds, self._expire, request_id, request, seconds)
        try:
            while True:
                output = await request.stream.get()
                yield output
                if output.finished:
                    return
        finally:
            if expiry is not None:
                expiry.cancel()
            self._forget(request_id, request)

    async def wait_dead(self) -> str:
        """Returns when the engine has died for good, with the reason; not when it is shut down."""
        await self._dead.wait()
        return self._reason

    async def abort(self, request_id: str) -> None:
        """Ends a request; its stream closes with finish reason `abort`. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._feed(request_id, request, request.assembler.abort_outputs())
            self._send_abort(request_id)

    async def drain(self, deadline_seconds: float) -> None:
        """Takes no new requests, waits for the running ones up to the deadline, then aborts what is left."""
        if self._state in ("starting", "ready", "recovering"):
            self._state, self._reason = "draining", "the engine is shutting down"
        try:
            await asyncio.wait_for(self._idle.wait(), deadline_seconds)
        except TimeoutError:
            logger.warning(
                "%d requests did not finish within %g s; aborting them", self.num_unfinished, deadline_seconds
            )
            for request_id in list(self._requests):
                await self.abort(request_id)

    async def shutdown(self) -> None:
        """Ends the core. Requests still in flight fail with EngineStoppedError."""
        self._state, self._reason = "dead", "the engine has been shut down"
        self._fail_all(EngineStoppedError("the engine has been shut down"))
        if self._supervisor is not None:
            await self._supervisor.stop()
        await asyncio.to_thread(self._ledger.close)

    def _ready_info(self) -> CoreReady:
        if self.info is None:
            raise EngineStoppedError(f"the engine is not ready: {self._reason}")
        return self.info

    def check_accepting(self) -> None:
        """Whether a request would be taken now: cheap, for a front to ask before it reads and tokenises one.

        Raises:
            EngineOverloadedError, EngineStoppedError, EngineDeadError: it would not, and why.
        """
        self._check_running()
        self._check_load()

    def _check_running(self) -> None:
        if self._state == "dead":
            raise EngineDeadError(self._reason)
        if self._state not in ("ready", "recovering"):
            raise EngineStoppedError(f"the engine takes no requests now: {self._reason}")

    def _check_load(self, num_sequences: int = 1, num_tokens: int = 0) -> None:
        try:
            self._backlog.check(num_sequences, num_tokens)
        except EngineOverloadedError:
            self.metrics.record_refused()
            raise

    def _seconds(self, timeout: float | None) -> float | None:
        if timeout is None:
            return self.config.request_timeout
        if not 0 < timeout < math.inf:
            raise RequestError(f"timeout is {timeout}; it is a positive number of seconds", "timeout")
        return timeout

    async def _submit(
        self, prompt: Prompt, params: SamplingParams, request_id: str, priority: int, cache_salt: str | None
    ) -> InFlight:
        if self._intake is None:
            raise EngineStoppedError(f"the engine is not ready: {self._reason}")
        arrival = time.monotonic()
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        admit = functools.partial(
            self._intake.admit,
            prompt,
            params,
            request_id,
            arrival_time=arrival,
            priority=priority,
            cache_salt=cache_salt,
        )
        if isinstance(text, str) and len(text) > _LONG_TEXT:
            admitted = await asyncio.to_thread(admit)
            self._check_running()
        else:
            admitted = admit()
        if request_id in self._requests:
            raise RequestError(f"request id '{request_id}' is in use by a request in flight", "request_id")
        message = admitted.message
        self._check_load(params.n, len(message.prompt_token_ids))
        assembler = RequestAssembler(
            request_id, admitted.prompt, message.prompt_token_ids, params, self.tokenizer, arrival, delta=True
        )
        request = InFlight(message, assembler)
        self._requests[request_id] = request
        self._backlog.enter(params.n, request.num_prompt_tokens)
        self._idle.clear()
        self._hand_over(request_id)
        return request

    def on_message(self, message: CoreMessage) -> None:
        """From the supervisor: what the core says."""
        match message:
            case StepOutputs():
                self.metrics.record_stats(message.stats)
                self._deliver(message.outputs)
            case RequestRejected():
                request = self._remove(message.request_id)
                if request is not None:
                    request.stream.fail(RequestError(message.message, message.param, message.code))
            case CoreReady() | CoreFailed():
                raise RuntimeError(f"{type(message).__name__} is the supervisor's")

    def on_down(self, reason: str, batch: frozenset[int]) -> None:
        """From the supervisor: the core died; what was in flight is held until there is another."""
        if self._state == "ready":
            self._state = "recovering"
        if self._state == "recovering":
            self._reason = f"the core is being started again: {reason}"
        self._held = set(self._requests)
        self.metrics.record_restart()
        guilty = self._suspicion.crashed(name for name in self._requests if mark_of(name) in batch)
        if guilty is not None:
            logger.error("request %s ends the core whenever it runs; it is refused", guilty)
            request = self._remove(guilty)
            if request is not None:
                request.stream.fail(
                    RequestCrashError(
                        "the request ended the engine's core three times, the last time alone: it is refused"
                    )
                )

    def on_up(self) -> None:
        """From the supervisor: another core is ready."""
        if self._state == "recovering":
            self._state, self._reason = "ready", "ready"
        logger.warning("the core is back; %d requests go on", len(self._held))
        self._release()

    def on_dead(self, reason: str) -> None:
        """From the supervisor: there will be no other core."""
        self._die(reason)

    def _hand_over(self, request_id: str) -> None:
        """Gives a request to the core, or holds it while there is none, or while a suspect is tried."""
        request = self._requests.get(request_id)
        if request is None or self._supervisor is None:
            return
        if self._state == "recovering" or self._suspicion.on_trial not in (None, request_id):
            self._held.add(request_id)
            return
        self._held.discard(request_id)
        for message in request.resume():
            self._supervisor.send(message)

    def _release(self) -> None:
        """Lets held requests run: the next suspect alone, or, where there is none, all of them."""
        while (suspect := self._suspicion.next_trial()) is not None:
            if suspect in self._requests:
                self._hand_over(suspect)
                return
            self._suspicion.clear(suspect)
        for request_id in [name for name in self._requests if name in self._held]:
            self._hand_over(request_id)

    def _deliver(self, outputs: list[SequenceOutput]) -> None:
        by_request: dict[str, list[SequenceOutput]] = {}
        for output in outputs:
            by_request.setdefault(output.request_id, []).append(output)
        for request_id, news in by_request.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            try:
                self._feed(request_id, request, news)
            except Exception as error:
                # A fault in one request's text must not keep the others from theirs, nor leave its caller waiting.
                logger.exception("request %s failed", request_id)
                self._end(request_id, OctavoError(f"the request failed inside octavo: {error}"))

    def _feed(self, request_id: str, request: InFlight, news: list[SequenceOutput]) -> None:
        now = time.monotonic()
        self._note_tokens(request, news, now)
        update = request.assembler.feed(news, now)
        for index in update.stopped:
            self._send_abort(request_id, index)
        if update.output is not None:
            request.stream.put(update.output)
            if update.output.finished:
                self._ledger.finished(request, now)
        if update.error is not None:
            self._end(request_id, RequestError(update.error))

    def _note_tokens(self, request: InFlight, news: list[SequenceOutput], now: float) -> None:
        if not any(output.token_ids for output in news):
            return
        if request.last_token_time is None:
            self._backlog.begin(request.num_prompt_tokens)
        self._ledger.tokens(request, news, now)
        request.last_token_time = now
        if self._suspicion.clear(request.message.request_id):
            self._release()

    def _expire(self, request_id: str, request: InFlight, seconds: float) -> None:
        if self._requests.get(request_id) is request and not request.assembler.finished:
            self._end(request_id, RequestTimeoutError(f"the request did not end within {seconds:g} s (timeout)"))

    def _end(self, request_id: str, error: OctavoError) -> None:
        """The request is over with an error, in the core too; its caller learns of it when it looks."""
        request = self._remove(request_id)
        if request is not None:
            self._send_abort(request_id)
            self._ledger.unfinished(request, "error", error)
            request.stream.fail(error)

    def _forget(self, request_id: str, request: InFlight) -> None:
        """The caller is done with the request, whether or not the request is done."""
        if self._requests.get(request_id) is not request:
            return
        self._remove(request_id)
        if request.assembler.finished:
            return
        self._send_abort(request_id)
        self._ledger.unfinished(request, "error" if self._state == "dead" else "abort")

    def _remove(self, request_id: str) -> InFlight | None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._backlog.leave(request.message.params.n, request.num_waiting_tokens, time.monotonic())
        self._held.discard(request_id)
        if self._suspicion.clear(request_id):
            self._release()
        if not self._requests:
            self._idle.set()
        return request

    def _send_abort(self, request_id: str, index: int | None = None) -> None:
        if self._supervisor is not None and self._state != "dead":
            self._supervisor.send(Abort(request_id, index))

    def _die(self, reason: str) -> None:
        if self._state == "dead":
            return
        self._state, self._reason = "dead", reason
        self._dead.set()
        if self.info is not None:
            logger.error("the engine is dead: %s", reason)
        self._fail_all(EngineDeadError(reason))

    def _fail_all(self, error: OctavoError) -> None:
        for request in self._requests.values():
            request.stream.fail(error)
