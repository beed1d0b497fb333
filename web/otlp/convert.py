"""What the journal holds, as OpenTelemetry's data: the metrics of `/metrics`, and each episode as a trace. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from slackwater import __version__
from slackwater.core.messages import Change
from slackwater.core.response_times import CLASS_BOUNDS_S, Histogram, upper_bound_s
from slackwater.views.why import Episode
from slackwater.web.metric_histograms import SERVER_RESPONSE
from slackwater.web.metric_values import METRICS, Value, is_counter

SCOPE = InstrumentationScope("slackwater", __version__)
MOST_CHANGES = 1000
"""Most Changes of an episode that become spans, the oldest; more are counted only."""
NOT_SAID = {"v", "pool", "time_unix_s"}
"""Fields of a Change that its span does not repeat."""


def resource_of(host: str) -> Resource:
    """What sends: this controller."""
    return Resource({"service.name": "slackwater", "service.version": __version__, "host.name": host})


def metrics_data(
    values: Iterable[Value],
    histograms: Iterable[tuple[tuple[str, ...], Histogram]],
    now_unix_s: float,
    resource: Resource,
) -> MetricsData:
    """The metrics under the names, labels and help of `/metrics`; those without a value are left out."""
    now = _ns(now_unix_s)
    points: dict[str, list[NumberDataPoint]] = {}
    labels = {name: names for name, names, _ in METRICS}
    for name, label_values, value in values:
        attributes = dict(zip(labels[name], label_values, strict=True))
        points.setdefault(name, []).append(NumberDataPoint(attributes, 0, now, float(value)))
    metrics = [
        Metric(name, text, "", Sum(points[name], AggregationTemporality.CUMULATIVE, is_monotonic=True))
        if is_counter(name)
        else Metric(name, text, "", Gauge(points[name]))
        for name, _, text in METRICS
        if name in points
    ]
    if servers := [_histogram_point(label_values, histogram, now) for label_values, histogram in histograms]:
        name, _, text = SERVER_RESPONSE
        metrics.append(Metric(name, text, "s", HistogramMetric(servers, AggregationTemporality.CUMULATIVE)))
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(SCOPE, metrics, "")], "")])


def _histogram_point(label_values: tuple[str, ...], histogram: Histogram, now_ns: int) -> HistogramDataPoint:
    up_to = [*histogram.cumulative(), histogram.count]
    counts = [count - before for before, count in zip([0, *up_to], up_to, strict=False)]
    shortest, longest = min(histogram.counts), max(histogram.counts)
    return HistogramDataPoint(
        attributes=dict(zip(SERVER_RESPONSE[1], label_values, strict=True)),
        start_time_unix_nano=0,
        time_unix_nano=now_ns,
        count=histogram.count,
        sum=histogram.sum_s,
        bucket_counts=counts,
        explicit_bounds=CLASS_BOUNDS_S,
        min=upper_bound_s(shortest - 1) if shortest else 0.0,
        max=min(upper_bound_s(longest), histogram.sum_s),
    )


def spans_of(episode: Episode, resource: Resource) -> Iterator[ReadableSpan]:
    """An episode that is over: one span from its beginning to its end, and below it a span for each Change.

    The same episode has the same ids each time, so an episode that is sent twice is one trace.
    """
    assert episode.until_unix_s is not None
    name = f"{episode.pool}/{episode.node}/{episode.since_unix_s!r}"
    root = _context(name, name)
    listed, left_out = episode.changes[:MOST_CHANGES], len(episode.changes[MOST_CHANGES:])
    yield ReadableSpan(
        "episode",
        root,
        resource=resource,
        attributes={
            "slackwater.pool": episode.pool,
            "slackwater.node": episode.node,
            "slackwater.state": episode.state,
            "slackwater.severity": episode.severity,
            "slackwater.resource": episode.resource or "",
            "slackwater.reasons": episode.path,
            "slackwater.changes_left_out": left_out,
        },
        start_time=_ns(episode.since_unix_s),
        end_time=_ns(episode.until_unix_s),
        instrumentation_scope=SCOPE,
    )
    for change in listed:
        yield ReadableSpan(
            f"change {change.what}",
            _context(name, change.id),
            parent=root,
            resource=resource,
            attributes=_attributes(change),
            start_time=_ns(change.time_unix_s),
            end_time=_ns(change.time_unix_s),
            instrumentation_scope=SCOPE,
        )


def _attributes(change: Change) -> dict[str, str | bool | int | float]:
    fields = msgspec.structs.asdict(change)
    return {
        f"slackwater.change.{name}": value
        for name, value in fields.items()
        if name not in NOT_SAID and value not in (None, "")
    }


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(_id(trace, 16), _id(f"{trace}/{span}", 8), False, TraceFlags(TraceFlags.SAMPLED))


def _id(text: str, size: int) -> int:
    """An id of `size` bytes; never 0, which is no id."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1


def _ns(unix_s: float) -> int:
    return round(unix_s * 1e9)
