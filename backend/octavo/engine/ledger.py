"""Ledger: what becomes of requests, entered into metrics and traces."""

from __future__ import annotations

import time
from collections.abc import Sequence

from octavo.core.request import SequenceOutput
from octavo.engine.in_flight import InFlight
from octavo.errors import OctavoError
from octavo.observe.metrics import EndReason, EngineMetrics
from octavo.observe.tracing import RequestTracer, TracedRequest


class Ledger:
    """
    Args:
        tracer: None: nothing is traced.
    """

    def __init__(self, metrics: EngineMetrics, tracer: RequestTracer | None) -> None:
        self._metrics = metrics
        self._tracer = tracer

    def tokens(self, request: InFlight, news: list[SequenceOutput], now: float) -> None:
        """A step brought `news`, with tokens, to a request; `last_token_time` is still that of the step before."""
        count = sum(len(output.token_ids) for output in news)
        if request.last_token_time is None:
            scheduled = news[0].first_scheduled_time
            queued = scheduled - request.arrival_time if scheduled is not None else None
            self._metrics.record_first_token(request.num_prompt_tokens, now - request.arrival_time, queued)
            self._metrics.record_tokens(count, None)
        else:
            self._metrics.record_tokens(count, now - request.last_token_time)

    def finished(self, request: InFlight, now: float) -> None:
        """All its sequences have ended."""
        reasons = request.assembler.finish_reasons
        self._enter(request, now, reasons[0] if reasons else "abort", reasons)

    def unfinished(self, request: InFlight, reason: EndReason, error: OctavoError | None = None) -> None:
        """It is over before that: `abort` if its caller left, `error` if it failed."""
        self._enter(request, time.monotonic(), reason, [reason], error)

    def close(self) -> None:
        """Sends what traces are left, within bounds; blocks."""
        if self._tracer is not None:
            self._tracer.close()

    def _enter(
        self,
        request: InFlight,
        now: float,
        reason: EndReason,
        reasons: Sequence[str],
        error: OctavoError | None = None,
    ) -> None:
        num_output_tokens = request.assembler.num_output_tokens
        self._metrics.record_finished(reason, now - request.arrival_time, request.num_prompt_tokens, num_output_tokens)
        if self._tracer is None:
            return
        self._tracer.record(
            TracedRequest(
                request_id=request.message.request_id,
                operation=request.operation,
                params=request.message.params,
                metrics=request.assembler.metrics,
                end_time=now,
                num_prompt_tokens=request.num_prompt_tokens,
                num_output_tokens=num_output_tokens,
                finish_reasons=reasons,
                error=error,
            ),
            request.trace_headers,
        )
