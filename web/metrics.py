"""`/metrics`: the controller for Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats/).

Everything is read from the journal when it is asked for, so a dead part shows as an old age, not as its last value.
docs/reference/metrics.md lists the metrics; the Grafana dashboard and the alerts use these names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flask import Blueprint, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from slackwater import __version__
from slackwater.journal.journal import Journal, JournalError
from slackwater.messages import Change
from slackwater.supervise import state_dir
from slackwater.views.pool import SYMBOLS, PoolView
from slackwater.views.why import SLOW
from web.reader import Reader

RECENT_S = 3600.0
"""Decision latency is that of the Changes of the last hour."""
LATENCY_MOST_S = 60.0
"""A Change so long after its episode began was made for another reason."""


def blueprint(reader: Reader) -> Blueprint:
    """The endpoint over this reader."""
    metrics = Blueprint("metrics", __name__)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Controller(reader))

    @metrics.get("/metrics")
    def show() -> Response:
        return Response(generate_latest(registry), mimetype=CONTENT_TYPE_LATEST)

    return metrics


class Controller:
    """A collector in the sense of prometheus-client."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("slackwater_info", "The version that runs; always 1.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield from self._parts()
        readable = 1
        try:
            with self._reader.journal() as journal:
                found = list(self._of_journal(journal))
        except JournalError:
            readable, found = 0, []
        yield GaugeMetricFamily("slackwater_journal_readable", "1 while the journal can be read.", value=readable)
        yield from found

    def _parts(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("slackwater_part_up", "1 while a part of `slackwater serve` runs.", labels=["part"])
        serve = state_dir.read_serve(Path(self._reader.settings.state_dir)) or {}
        for part, pid in serve.get("children", {}).items():
            up.add_metric([part], 1 if isinstance(pid, int) and state_dir.is_alive(pid) else 0)
        yield up

    def _of_journal(self, journal: Journal) -> Iterator[Metric]:
        reader, now = self._reader, self._reader.clock()
        yield GaugeMetricFamily("slackwater_journal_bytes", "What the journal's rows take.", value=journal.used_bytes())
        views = {pool.name: reader.view(journal, pool) for pool in reader.settings.pool}
        yield from _pools(views, reader)
        yield from _servers(views)
        yield from _ages(journal, views, now, reader.settings.lbengine.lease_s)
        yield from _changes(journal, now)


def _pools(views: dict[str, PoolView], reader: Reader) -> Iterator[Metric]:
    act = GaugeMetricFamily("slackwater_pool_acting", "1 in act mode, 0 in observe mode.", labels=["pool"])
    paused = GaugeMetricFamily("slackwater_pool_paused", "1 while the pool is paused.", labels=["pool"])
    stale = GaugeMetricFamily("slackwater_pool_stale", "1 while the controller is silent.", labels=["pool"])
    felt = GaugeMetricFamily(
        "slackwater_pool_response_seconds", "Response time over the pool's requests.", labels=["pool", "quantile"]
    )
    target = GaugeMetricFamily(
        "slackwater_pool_target_seconds", "The target of the settings.", labels=["pool", "quantile"]
    )
    for name, view in views.items():
        settings = reader.pool(name)
        stale.add_metric([name], int(view.stale))
        if view.mode is not None:
            act.add_metric([name], int(view.mode == "act"))
            paused.add_metric([name], int(view.paused))
        for quantile, value in (("0.95", view.rt_p95_ms), ("0.99", view.rt_p99_ms)):
            if value is not None:
                felt.add_metric([name, quantile], value / 1000.0)
        if settings is not None:
            for quantile, value in (("0.95", settings.target_p95_ms), ("0.99", settings.target_p99_ms)):
                if value:
                    target.add_metric([name, quantile], value / 1000.0)
    yield from (act, paused, stale, felt, target)


def _servers(views: dict[str, PoolView]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "slackwater_node_state", "1 for the state that the node is in.", labels=["pool", "node", "state"]
    )
    fields = {
        "weight": ("slackwater_server_weight", "Weight now.", 1.0),
        "baseline": ("slackwater_server_baseline_weight", "Weight that the site gave it.", 1.0),
        "wanted": ("slackwater_server_wanted_weight", "Weight that lbengine wants.", 1.0),
        "share": ("slackwater_server_share", "Share of the pool's requests, 0 to 1.", 1.0),
        "rps": ("slackwater_node_requests_per_second", "Requests per second.", 1.0),
        "rt_p95_ms": ("slackwater_node_response_p95_seconds", "p95 of response time.", 1e-3),
        "cpu": ("slackwater_node_cpu_utilisation", "CPU utilisation, 1 is full.", 1.0),
    }
    gauges = {key: GaugeMetricFamily(name, text, labels=["pool", "node"]) for key, (name, text, _) in fields.items()}
    for name, view in views.items():
        for row in view.rows:
            for word in SYMBOLS:
                state.add_metric([name, row.node, word], int(row.state == word))
            for key, gauge in gauges.items():
                value = getattr(row, key)
                if value is not None:
                    gauge.add_metric([name, row.node], value * fields[key][2])
    yield state
    yield from gauges.values()


def _ages(journal: Journal, views: dict[str, PoolView], now: float, lease_s: float) -> Iterator[Metric]:
    cycle = GaugeMetricFamily("slackwater_cycle_age_seconds", "Since lbengine's last cycle.", labels=["pool"])
    sample = GaugeMetricFamily("slackwater_sample_age_seconds", "Since the last Sample came.", labels=["pool", "node"])
    lease = GaugeMetricFamily(
        "slackwater_lease_valid",
        "1 while Verdicts are younger than the lease; at 0 lbengine goes back to the baseline weights.",
        labels=["pool"],
    )
    for name, view in views.items():
        if view.age_s is not None:
            cycle.add_metric([name], view.age_s)
        for node, at in journal.received("sample", name).items():
            sample.add_metric([name, node], max(0.0, now - at))
        judged = journal.received("verdict", name).values()
        lease.add_metric([name], int(bool(judged) and now - max(judged) < lease_s + 0.5))  # written twice a second
    yield from (cycle, sample, lease)


def _changes(journal: Journal, now: float) -> Iterator[Metric]:
    total = CounterMetricFamily("slackwater_changes", "Changes by what was changed.", labels=["pool", "what"])
    for (pool, what), count in journal.kinds_of_change().items():
        total.add_metric([pool, what], count)
    reasons = GaugeMetricFamily(
        "slackwater_changes_last_hour",
        "Changes of the last hour by reason.",
        labels=["pool", "what", "reason", "applied"],
    )
    refused = GaugeMetricFamily(
        "slackwater_changes_refused_last_hour", "Changes that the balancer did not take.", labels=["pool"]
    )
    latency = GaugeMetricFamily(
        "slackwater_decision_latency_seconds",
        "From an episode's beginning to the weight set, over the last hour.",
        labels=["pool", "quantile"],
    )
    made = journal.changes(None, 10_000, now - RECENT_S)
    counts: dict[tuple[str, str, str, str], int] = {}
    failed: dict[str, int] = {}
    for change in made:
        key = (change.pool, change.what, reason_of(change), str(change.applied).lower())
        counts[key] = counts.get(key, 0) + 1
        failed.setdefault(change.pool, 0)
        failed[change.pool] += change.cause == "not_set"
    for key, count in counts.items():
        reasons.add_metric(list(key), count)
    for pool, count in failed.items():
        refused.add_metric([pool], count)
        waits = sorted(_latencies(journal, pool, made, now))
        for quantile in (0.5, 0.95):
            if waits:
                latency.add_metric([pool, f"{quantile:g}"], waits[min(len(waits) - 1, int(quantile * len(waits)))])
    yield from (total, reasons, refused, latency)


def reason_of(change: Change) -> str:
    """A Change's reason as one of few words: the state it was made for, or what was done."""
    if change.cause in ("interference", "not_shown", "enough_reduced"):
        return "interference"
    if change.cause in ("calm", "overload", "all_slow", "unknown", "pinned"):
        return change.cause
    if change.what in ("outcome", "pause", "resume", "restore", "mode", "pin", "unpin", "share"):
        return change.what
    return "operator" if change.by not in ("lbengine", "serve") else "other"


def _latencies(journal: Journal, pool: str, made: list[Change], now: float) -> Iterator[float]:
    """Seconds from the beginning of each episode to the first lowered weight of its server."""
    lowered: dict[str, list[float]] = {}
    for change in made:
        before, after = change.before, change.after
        numbers = isinstance(before, int) and isinstance(after, int) and after < before
        if numbers and change.pool == pool and change.what == "weight":
            lowered.setdefault(change.target, []).append(change.time_unix_s)
    for span in journal.states(pool, now - RECENT_S):
        if span.state in SLOW and span.since_unix_s >= now - RECENT_S:
            after_it = [at - span.since_unix_s for at in lowered.get(span.node, []) if at >= span.since_unix_s]
            if after_it and min(after_it) <= LATENCY_MOST_S:
                yield min(after_it)
