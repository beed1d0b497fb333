"""The OpenTelemetry collector: OTLP over HTTP (https://opentelemetry.io/docs/specs/otlp/#otlphttp)."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.core.config import OtlpSettings
from slackwater.core.extras import installed_by
from slackwater.core.files import bytes_of

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.trace import ReadableSpan

HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([^\r\n]*\S)")


class OtlpError(Exception):
    """Nothing can be sent with these settings; the text has the setting and what was expected."""


class Collector:
    """Takes metrics and spans. Each sending lasts `timeout_s` at most, and waits for nothing else."""

    def __init__(self, metrics: Any, traces: Any) -> None:
        """Exporters of opentelemetry-exporter-otlp-proto-http."""
        self._metrics = metrics
        self._traces = traces
        self._said = _LastWords()
        exporters = logging.getLogger("opentelemetry")
        exporters.addHandler(self._said)
        exporters.propagate = False

    @classmethod
    def of(cls, settings: OtlpSettings) -> Collector:
        """The collector of the settings. Raises OtlpError: its packages are not installed, or a file cannot be used."""
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ModuleNotFoundError as error:
            raise OtlpError(
                f"otlp.endpoint needs {error.name}, which is not installed: {installed_by('otlp')}"
            ) from None
        if settings.tls_ca and not Path(settings.tls_ca).is_file():
            raise OtlpError(f"otlp.tls_ca: {settings.tls_ca}: is not there")
        root, headers = settings.endpoint.rstrip("/"), headers_in(settings.headers_file)
        common: dict[str, Any] = {"headers": headers, "timeout": settings.timeout_s}
        common |= {"certificate_file": settings.tls_ca} if settings.tls_ca else {}
        return cls(
            OTLPMetricExporter(endpoint=f"{root}/v1/metrics", **common),
            OTLPSpanExporter(endpoint=f"{root}/v1/traces", **common),
        )

    def take_metrics(self, data: MetricsData) -> str:
        """Sends metrics; returns why that failed, or an empty text."""
        return self._outcome(self._metrics.export(data))

    def take_spans(self, spans: Sequence[ReadableSpan]) -> str:
        """Sends spans in one piece; returns why that failed, or an empty text."""
        return self._outcome(self._traces.export(spans))

    def close(self) -> None:
        """Ends a sending that waits for its next try."""
        self._metrics.shutdown()
        self._traces.shutdown()

    def _outcome(self, result: Any) -> str:
        return "" if result.name == "SUCCESS" else self._said.text or "it did not take it"


class _LastWords(logging.Handler):
    """Keeps what an exporter said last, which would fill the log with each try."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def headers_in(path: str) -> dict[str, str]:
    """The headers in a file of lines `NAME: VALUE`; empty lines and lines that begin with `#` count for nothing.

    Raises:
        OtlpError: it cannot be read, is open to others, or a line is no header. The text does not have the line.
    """
    if not path:
        return {}
    file, headers = Path(path), {}
    try:
        if (mode := file.stat().st_mode & 0o777) & 0o007:
            raise OtlpError(
                f"otlp.headers_file: {path} can be used by everybody on this machine (mode {mode:04o}); chmod 0640"
            )
        lines = bytes_of(file).decode("ascii").splitlines()
    except OSError as error:
        raise OtlpError(f"otlp.headers_file: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OtlpError(f"otlp.headers_file: {path}: a header may have ASCII characters alone") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        header = HEADER.fullmatch(line.rstrip())
        if header is None:
            raise OtlpError(f"otlp.headers_file: {path}:{number}: expected NAME: VALUE")
        headers[header[1]] = header[2]
    return headers
