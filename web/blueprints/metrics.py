"""`/metrics`: the controller for Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from __future__ import annotations

from collections.abc import Iterator

from flask import Blueprint, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from slackwater.core.response_times import CLASS_BOUNDS_S
from slackwater.web.context import context
from slackwater.web.metric_histograms import SERVER_RESPONSE, server_histograms
from slackwater.web.metric_values import METRICS, is_counter, values
from slackwater.web.reader import JournalReader

metrics = Blueprint("metrics", __name__)


@metrics.get("/metrics")
def show() -> Response:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(context().reader))
    with context().reader.lane.turn():
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class _Collector:
    """A collector in the sense of prometheus-client."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, labels, text in METRICS:
            kind = CounterMetricFamily if is_counter(name) else GaugeMetricFamily
            families[name] = kind(name, text, labels=labels)
        for name, label_values, value in values(self._reader):
            families[name].add_metric(label_values, value)
        yield from families.values()
        name, labels, text = SERVER_RESPONSE
        histograms = HistogramMetricFamily(name, text, labels=labels)
        for label_values, histogram in server_histograms(self._reader):
            bounds = [f"{bound:g}" for bound in CLASS_BOUNDS_S]
            buckets = list(zip([*bounds, "+Inf"], [*histogram.cumulative(), histogram.count], strict=True))
            histograms.add_metric(label_values, buckets, histogram.sum_s)
        yield histograms
