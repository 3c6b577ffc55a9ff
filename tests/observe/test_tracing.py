"""Traces as a collector receives them: a real engine, a real OTLP/HTTP receiver."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.engine.test_async_engine import KNOBS, collect

from octavo import AsyncEngine, EngineConfig, SamplingParams
from octavo.errors import ConfigError, RequestTimeoutError
from octavo.observe.tracing import build_tracer

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class Collector:
    """Where it listens, and the spans it was sent."""

    url: str
    spans: list[Any] = field(default_factory=list)
    resources: list[Any] = field(default_factory=list)


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            for resource in sent.resource_spans:
                one.resources.append(resource.resource)
                one.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    one = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield one
    server.shutdown()
    thread.join()
    server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    def value(given: Any) -> Any:
        kind = given.WhichOneof("value")
        if kind == "array_value":
            return [value(item) for item in given.array_value.values]
        return getattr(given, kind)

    return {item.key: value(item.value) for item in span.attributes}


@pytest.mark.server
async def test_a_request_is_a_span_with_its_phases(tiny_model_path: Path, collector: Collector) -> None:
    config = EngineConfig(
        model=str(tiny_model_path), served_model_name="tiny", otlp_traces_endpoint=collector.url, **KNOBS
    )
    engine = AsyncEngine(config)
    await engine.start()
    params = SamplingParams(temperature=0.5, top_p=0.9, max_tokens=7, ignore_eos=True, seed=3, n=2)
    header = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
    await collect(engine, [5] * 11, params, request_id="one", operation="chat", trace_headers=header)
    long = SamplingParams(max_tokens=400, ignore_eos=True)
    with pytest.raises(RequestTimeoutError):
        await collect(engine, [5], long, request_id="late", timeout=0.05)
    await engine.shutdown()

    requests = {attributes(span)["gen_ai.response.id"]: span for span in collector.spans if span.attributes}
    span = requests["one"]
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("chat tiny", TRACE_ID, PARENT_ID)
    found = attributes(span)
    assert {name: found[name] for name in found if "latency" not in name} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": "one",
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 14,
    }
    assert (
        0
        <= found["gen_ai.latency.time_in_queue"]
        <= found["gen_ai.latency.time_to_first_token"]
        <= found["gen_ai.latency.e2e"]
    )
    children = sorted(
        (child for child in collector.spans if child.parent_span_id == span.span_id),
        key=lambda child: child.start_time_unix_nano,
    )
    assert [child.name for child in children] == ["queue", "prefill", "decode"]
    edges = [span.start_time_unix_nano, *(child.end_time_unix_nano for child in children)]
    assert edges == sorted(edges)
    assert [child.start_time_unix_nano for child in children] == edges[:-1]
    assert edges[-1] == span.end_time_unix_nano

    late = requests["late"]
    assert late.status.code == 2
    assert "did not end within" in late.status.message
    assert attributes(late)["error.type"] == "RequestTimeoutError"
    assert late.parent_span_id == b""
    service = {item.key: item.value.string_value for item in collector.resources[0].attributes}
    assert service["service.name"] == "octavo"


def test_nothing_is_imported_where_nothing_is_configured() -> None:
    script = (
        "import sys; from octavo.observe.tracing import build_tracer; "
        "assert build_tracer(None, 'm') is None; sys.exit('opentelemetry' in sys.modules)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": ""}
    assert subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode == 0


def test_the_standard_variables_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    tracer = build_tracer(None, "m")
    assert tracer is not None
    tracer.close()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert build_tracer(None, "m") is None


def test_an_endpoint_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.observe.tracing.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"octavo\[otel\]"):
        build_tracer("http://127.0.0.1:9/v1/traces", "m")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert build_tracer(None, "m") is None
