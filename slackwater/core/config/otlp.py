"""The settings of the OpenTelemetry export."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slackwater.core.config.kinds import WEB_URL_PATTERN, Settings


class OtlpSettings(Settings, frozen=True):
    """Metrics and episodes for an OpenTelemetry collector (OTLP over HTTP).

    Needs the extra `otlp`: in a checkout `pip install '.[otlp]'`.
    """

    endpoint: Annotated[
        str,
        Meta(
            pattern=WEB_URL_PATTERN,
            description="URL of the collector, such as http://127.0.0.1:4318; `/v1/metrics` and `/v1/traces` are added."
            " Empty: nothing is sent",
        ),
    ] = ""
    headers_file: Annotated[
        str, Meta(description="file with HTTP headers for it, a line `NAME: VALUE` each, closed to others; empty: none")
    ] = ""
    tls_ca: Annotated[
        str, Meta(description="file with the authority (PEM) of its certificate; empty: the system's")
    ] = ""
    every_s: Annotated[float, Meta(ge=1, description="seconds between two sendings")] = 15.0
    timeout_s: Annotated[float, Meta(gt=0, le=8, description="seconds in which it must take one sending")] = 5.0
