"""OpenTelemetry traces: a span for each request, with children for its queue, prefill and decode.

Attributes follow OpenTelemetry's semantic conventions for generative AI; `gen_ai.latency.*` are vLLM's. Nothing of
OpenTelemetry is imported unless an endpoint is configured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from octavo import __version__
from octavo.errors import ConfigError
from octavo.outputs import RequestMetrics
from octavo.sampling_params import SamplingParams

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Operation = Literal["chat", "text_completion"]

_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_FLUSH_MILLISECONDS = 3000


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A request that has ended. Times are seconds on the monotonic clock."""

    request_id: str
    operation: Operation
    params: SamplingParams
    metrics: RequestMetrics
    end_time: float
    num_prompt_tokens: int
    num_output_tokens: int
    finish_reasons: Sequence[str]
    error: Exception | None = None


class RequestTracer:
    """Turns ended requests into spans. Exporting happens on a thread of the SDK's own, in batches.

    Args:
        provider: closed with the tracer.
    """

    def __init__(self, provider: TracerProvider, model_name: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("octavo", __version__)
        self._model_name = model_name

    def record(self, request: TracedRequest, headers: Mapping[str, str] | None) -> None:
        """
        Args:
            headers: `traceparent` and `tracestate` of the trace the request belongs to, if it does.
        """
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        since_epoch = time.time_ns() - time.monotonic_ns()

        def nanoseconds(seconds: float) -> int:
            return since_epoch + int(seconds * 1e9)

        parent = TraceContextTextMapPropagator().extract(dict(headers or {}))
        span = self._tracer.start_span(
            f"{request.operation} {self._model_name}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=self._attributes(request),
            start_time=nanoseconds(request.metrics.arrival_time),
        )
        if request.error is not None:
            span.set_attribute("error.type", type(request.error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(request.error)))
        inside = set_span_in_context(span)
        for name, start, end in _phases(request):
            child = self._tracer.start_span(name, context=inside, start_time=nanoseconds(start))
            child.end(nanoseconds(end))
        span.end(nanoseconds(request.end_time))

    def close(self) -> None:
        """Sends what is left, within bounds."""
        self._provider.force_flush(_FLUSH_MILLISECONDS)
        self._provider.shutdown()

    def _attributes(self, request: TracedRequest) -> dict[str, Any]:
        params, metrics = request.params, request.metrics
        found: dict[str, Any] = {
            "gen_ai.operation.name": request.operation,
            "gen_ai.provider.name": "octavo",
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.model": self._model_name,
            "gen_ai.response.id": request.request_id,
            "gen_ai.response.finish_reasons": list(request.finish_reasons),
            "gen_ai.request.choice.count": params.n,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": params.top_k,
            "gen_ai.request.frequency_penalty": params.frequency_penalty,
            "gen_ai.request.presence_penalty": params.presence_penalty,
            "gen_ai.usage.input_tokens": request.num_prompt_tokens,
            "gen_ai.usage.output_tokens": request.num_output_tokens,
            "gen_ai.latency.e2e": request.end_time - metrics.arrival_time,
        }
        if params.max_tokens is not None:
            found["gen_ai.request.max_tokens"] = params.max_tokens
        if params.seed is not None:
            found["gen_ai.request.seed"] = params.seed
        if params.stop:
            found["gen_ai.request.stop_sequences"] = list(params.stop)
        if metrics.first_scheduled_time is not None:
            found["gen_ai.latency.time_in_queue"] = metrics.first_scheduled_time - metrics.arrival_time
        if metrics.first_token_time is not None:
            found["gen_ai.latency.time_to_first_token"] = metrics.first_token_time - metrics.arrival_time
        return found


def build_tracer(endpoint: str | None, model_name: str) -> RequestTracer | None:
    """A tracer if an endpoint is given, here or by OpenTelemetry's own variables; else None.

    Raises:
        ConfigError: an endpoint is given here, but OpenTelemetry is not installed.
    """
    if endpoint is None and not any(os.environ.get(name) for name in _ENDPOINT_VARIABLES):
        return None
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        if endpoint is None:
            return None
        raise ConfigError(
            "otlp_traces_endpoint needs OpenTelemetry: pip install 'octavo[otel]', or leave the option out",
            "otlp_traces_endpoint",
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    service = {SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "octavo"), SERVICE_VERSION: __version__}
    provider = TracerProvider(resource=Resource.create(service), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return RequestTracer(provider, model_name)


def _phases(request: TracedRequest) -> list[tuple[str, float, float]]:
    """(name, start, end) of the phases a request got to; the last one ends with it."""
    metrics = request.metrics
    begins = [
        ("queue", metrics.arrival_time),
        ("prefill", metrics.first_scheduled_time),
        ("decode", metrics.first_token_time),
    ]
    begun = [(name, start) for name, start in begins if start is not None]
    ends = [*(start for _, start in begun[1:]), request.end_time]
    return [(name, start, end) for (name, start), end in zip(begun, ends, strict=True)]
