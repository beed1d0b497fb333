"""An OpenTelemetry collector of the tests: it decodes what comes over HTTP with the official messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

MESSAGES: dict[str, Any] = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/traces": ExportTraceServiceRequest}


class Receiver:
    """What came, oldest first. `status`: what it answers; with `silent` it answers nothing until it ends."""

    def __init__(self) -> None:
        self.status = 200
        self.silent = False
        self.came = threading.Event()
        self.over = threading.Event()
        self.headers: list[dict[str, str]] = []
        self.metrics: list[Any] = []
        self.traces: list[Any] = []
        self.url = ""

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.came.set()
        if self.silent:
            self.over.wait()
        if self.status == 200:
            self.headers.append(headers)
            message = MESSAGES[path].FromString(gzip.decompress(body) if headers.get("content-encoding") else body)
            (self.metrics if path.endswith("metrics") else self.traces).append(message)
        return self.status

    def values(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """The metrics that came last: (name, sorted labels) -> value."""
        (resource,) = self.metrics[-1].resource_metrics
        (scope,) = resource.scope_metrics
        values = {}
        for metric in scope.metrics:
            for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points:
                labels = tuple(sorted((attribute.key, attribute.value.string_value) for attribute in point.attributes))
                values[metric.name, labels] = point.as_double
        return values

    def spans(self) -> list[Any]:
        """All spans that came, in their order."""
        return [
            span
            for message in self.traces
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """On a free port of loopback, until the end of the block."""
    ours = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            named = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(ours.take(self.path, named, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Who asked may have given up meanwhile."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    ours.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield ours
    finally:
        ours.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
