"""The HTTP server of a running export: metrics for Prometheus, and its status. Edge."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.job.metrics import PREFIX, ExportMetrics, observe
from lakemq.spark_plugin.service.pages import page

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_READ_TIMEOUT_S: Final = 10.0
"""A client that sends its request slower than this is not waited for."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = _READ_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:
        """No line for each request."""


def serve(exports: Sequence[ExportMetrics], address: str) -> int:
    """Serve `/metrics`, `/`, `/status` and `/healthz` at `host:port`; the port. OptionError if it
    can't be."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import CollectorRegistry, make_wsgi_app

    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise OptionError(f"--metrics is {address!r}; it takes host:port, such as 127.0.0.1:9464")
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry)], shutdown_on_exit=False)
    observe(exports, provider.get_meter(PREFIX))
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            text: Iterable[bytes] = metrics(environ, start)
            return text
        found = page(environ["PATH_INFO"], exports, time.time_ns() / 1e9)
        start(found.status, [("Content-Type", found.content_type)])
        return [found.body]

    try:
        server = make_server(host or "127.0.0.1", int(port), answer, _Server, _Handler)
    except OSError as error:
        raise OptionError(f"--metrics {address}: {error.strerror}") from None
    threading.Thread(target=server.serve_forever, name="lakemq-status", daemon=True).start()
    return int(server.server_port)
