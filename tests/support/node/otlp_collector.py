"""A collector that takes metrics and spans by OTLP over HTTP."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class ReceivedSpan(NamedTuple):
    """A span that was pushed; ids in hexadecimal."""

    name: str
    trace_id: str
    parent_id: str
    links: list[str]
    """Trace ids."""
    attributes: dict[str, Any]
    duration_ns: int
    failed: bool


class Collector(ThreadingHTTPServer):
    """Serves while it is entered."""

    def __init__(self) -> None:
        self.metrics: Queue[ExportMetricsServiceRequest] = Queue()
        self.spans: list[ReceivedSpan] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def wait_for(self, *names: str, timeout_s: float = 20.0) -> list[ReceivedSpan]:
        """The first span of each name."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = {each.name: each for each in reversed(self.spans)}
            if found.keys() >= set(names):
                return [found[name] for name in names]
            assert time.monotonic() < deadline, f"{set(names) - found.keys()} of {list(found)}"
            time.sleep(0.02)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        collector = cast(Collector, self.server)
        answer = ExportMetricsServiceResponse().SerializeToString()
        if self.path == "/v1/metrics":
            collector.metrics.put(ExportMetricsServiceRequest.FromString(body))
        elif self.path == "/v1/traces":
            answer = ExportTraceServiceResponse().SerializeToString()
            collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def _spans(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            span.name,
            span.trace_id.hex(),
            span.parent_span_id.hex(),
            [link.trace_id.hex() for link in span.links],
            {
                each.key: getattr(each.value, each.value.WhichOneof("value"))
                for each in span.attributes
            },
            span.end_time_unix_nano - span.start_time_unix_nano,
            span.status.code == span.status.STATUS_CODE_ERROR,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
