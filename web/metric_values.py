"""The controller's metrics: their names, labels and help, and their values now. `/metrics` and OTLP show the same.

Everything is read from the journal each time, so a dead part shows as a high age, not as its last value.
docs/reference/metrics.md lists the metrics; the Grafana dashboard and the alerts use these names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from slackwater import __version__
from slackwater.core import state_dir
from slackwater.core.config import PoolSettings
from slackwater.core.journal.journal import Journal, JournalError
from slackwater.core.messages import PARTS, Change, Governed
from slackwater.governor.lines import FRESH_S
from slackwater.views.pool import SYMBOLS, PoolStatus
from slackwater.views.why import SLOW
from slackwater.web.reader import JournalReader

RECENT_S = 3600.0
"""Decision latency is that of the Changes of the last hour."""
MAX_LATENCY_S = 60.0
"""A Change that comes later than this after its episode began was made for another reason."""
METRICS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("slackwater_info", ("version",), "The version that runs; always 1."),
    ("slackwater_part_up", ("part",), "1 while a part of `slackwater serve` runs."),
    ("slackwater_part_starts_total", ("part",), "How often `slackwater serve` started a part."),
    ("slackwater_part_hangs_total", ("part",), "How often it killed a part that made no progress."),
    ("slackwater_config_last_reload_successful", (), "1 if the controller's file was accepted when it was last read."),
    (
        "slackwater_config_last_reload_success_timestamp_seconds",
        (),
        "When the controller's file was last accepted; the start counts.",
    ),
    ("slackwater_journal_readable", (), "1 while the journal can be read."),
    ("slackwater_journal_bytes", (), "What the journal's rows take."),
    ("slackwater_pool_acting", ("pool",), "1 in act mode, 0 in observe mode."),
    ("slackwater_pool_paused", ("pool",), "1 while the pool is paused."),
    ("slackwater_pool_stale", ("pool",), "1 while the controller is silent."),
    ("slackwater_pool_balancer_away", ("pool",), "1 while the balancer does not answer, or refuses what is asked."),
    ("slackwater_pool_response_seconds", ("pool", "percentile"), "Response time over the pool's requests."),
    ("slackwater_pool_target_seconds", ("pool", "percentile"), "The target of the settings."),
    (
        "slackwater_pool_utilisation_max_over_mean",
        ("pool",),
        "Utilisation of the fullest server over the mean, in calm, over half an hour; 1 is even.",
    ),
    (
        "slackwater_pool_servers_saved",
        ("pool",),
        "Servers of mean size that weights by capacity could save, with the fullest server as full as now.",
    ),
    ("slackwater_node_state", ("pool", "node", "state"), "1 for the state that the node is in."),
    ("slackwater_server_weight", ("pool", "node"), "Weight now."),
    ("slackwater_server_baseline_weight", ("pool", "node"), "Weight that the site gave it."),
    ("slackwater_server_full_weight", ("pool", "node"), "Weight that it has when nothing is wrong."),
    ("slackwater_server_wanted_weight", ("pool", "node"), "Weight that lbengine wants."),
    ("slackwater_server_share", ("pool", "node"), "Share of the pool's requests, 0 to 1."),
    ("slackwater_server_errors_per_second", ("pool", "node"), "Requests that failed there, as the balancer saw them."),
    ("slackwater_server_fails", ("pool", "node"), "1 if its share of failed requests is well above its peers'."),
    (
        "slackwater_server_away_last_hour",
        ("pool", "node"),
        "How many times in the last hour its weight was lowered since it was down or in maintenance.",
    ),
    (
        "slackwater_server_own_limit_cores",
        ("pool", "node"),
        "CPUs that its own limit allows, where the kernel's facts show one.",
    ),
    ("slackwater_node_requests_per_second", ("pool", "node"), "Requests per second."),
    ("slackwater_node_response_p95_seconds", ("pool", "node"), "p95 of response time."),
    ("slackwater_node_cpu_utilisation", ("pool", "node"), "CPU utilisation, 1 is full."),
    (
        "slackwater_node_lost_share",
        ("pool", "node"),
        "Share of its capacity that its machine lost by itself in the last `replace.days`.",
    ),
    ("slackwater_node_worth_replacing", ("pool", "node"), "1 where it pays to replace its machine."),
    ("slackwater_governor_acting", ("pool", "node"), "1 where the governor sets cores and clocks, 0 in observe mode."),
    ("slackwater_governor_target_seconds", ("pool", "node"), "Target of the p95 that the governor works for."),
    ("slackwater_governor_response_p95_seconds", ("pool", "node"), "p95 of response time as the governor saw it."),
    ("slackwater_governor_cores", ("pool", "node"), "Cores in force."),
    ("slackwater_governor_most_cores", ("pool", "node"), "Cores without the governor."),
    ("slackwater_governor_wanted_cores", ("pool", "node"), "Cores that the policy wants."),
    (
        "slackwater_governor_batch_cores",
        ("pool", "node"),
        "Cores of the batch jobs beside the web server, where the governor sets them; 0: they stand still.",
    ),
    (
        "slackwater_governor_clock_share",
        ("pool", "node", "knob"),
        "In force, of the highest clock; with the knob cpu.quota, which stands in for a clock, of the cores' time.",
    ),
    ("slackwater_governor_watts", ("pool", "node", "model"), "Estimated power of the cores, by the named model."),
    ("slackwater_governor_most_watts", ("pool", "node", "model"), "The same work without the governor."),
    ("slackwater_governor_seconds_total", ("pool", "node"), "Seconds with a p95 since the governor began."),
    ("slackwater_governor_misses_total", ("pool", "node"), "Of these, with a p95 above the target."),
    ("slackwater_cycle_age_seconds", ("pool",), "Since lbengine's last cycle."),
    ("slackwater_sample_age_seconds", ("pool", "node"), "Since the last Sample came."),
    (
        "slackwater_lease_valid",
        ("pool",),
        "1 while Verdicts are younger than the lease; at 0 lbengine goes back to the baseline weights.",
    ),
    ("slackwater_changes_total", ("pool", "what"), "Changes by what was changed."),
    (
        "slackwater_changes_last_hour",
        ("pool", "what", "reason", "applied"),
        "Changes of the last hour by reason.",
    ),
    ("slackwater_changes_refused_last_hour", ("pool",), "Changes that the balancer did not take."),
    (
        "slackwater_decision_latency_seconds",
        ("pool", "percentile"),
        "From an episode's beginning to the weight set, over the last hour.",
    ),
)
"""Name, labels and help; a name with `_total` is a counter, the others are gauges."""
SERVER_FIELDS = {
    "weight": ("slackwater_server_weight", 1.0),
    "baseline": ("slackwater_server_baseline_weight", 1.0),
    "full_weight": ("slackwater_server_full_weight", 1.0),
    "wanted": ("slackwater_server_wanted_weight", 1.0),
    "share": ("slackwater_server_share", 1.0),
    "rps": ("slackwater_node_requests_per_second", 1.0),
    "rt_p95_ms": ("slackwater_node_response_p95_seconds", 1e-3),
    "cpu": ("slackwater_node_cpu_utilisation", 1.0),
}
"""Field of a view's row -> metric and its factor."""
REASONS = frozenset(
    (
        *(
            "slow",
            "errors",
            "own_limit",
            "tried",
            "fast",
            "away",
            "warm_up",
            "calm",
            "capacity",
            "overload",
            "all_slow",
        ),
        *("unknown", "pinned", "governor"),
    )
)
"""Causes of Changes that are reasons of their own."""
Value = tuple[str, tuple[str, ...], float]
"""A metric's name, its labels' values, and its value."""
MaybeValue = tuple[str, tuple[str, ...], float | None]
"""As `Value`; a metric whose value is None is left out."""


def is_counter(name: str) -> bool:
    return name.endswith("_total")


def values(reader: JournalReader) -> Iterator[Value]:
    """All metrics that have a value now."""
    yield from ((name, labels, value) for name, labels, value in _values(reader) if value is not None)


def _values(reader: JournalReader) -> Iterator[MaybeValue]:
    yield "slackwater_info", (__version__,), 1
    serve = state_dir.read_serve(Path(reader.settings.state_dir)) or {}
    for part, pid in serve.get("children", {}).items():
        yield "slackwater_part_up", (part,), int(isinstance(pid, int) and state_dir.is_alive(pid))
    for name, field in (("slackwater_part_starts_total", "starts"), ("slackwater_part_hangs_total", "hangs")):
        for part, count in serve.get(field, {}).items():
            yield name, (part,), count
    if reloads := serve.get("reloads"):
        yield "slackwater_config_last_reload_successful", (), reloads["last_successful"]
        yield "slackwater_config_last_reload_success_timestamp_seconds", (), reloads["last_success_unix_s"]
    try:
        with reader.journal() as journal:
            views = {pool.name: reader.view(journal, pool) for pool in reader.settings.pool}
            values: list[MaybeValue] = [("slackwater_journal_bytes", (), journal.used_bytes())]
            values += [*_pools(reader, views), *_servers(views), *_ages(reader, journal, views)]
            for pool in views:
                values += _governed(pool, journal.latest_governed(pool), reader.clock())
                for machine in reader.machines(journal, pool):
                    labels = (pool, machine.node)
                    values.append(("slackwater_node_lost_share", labels, machine.lost_share))
                    values.append(("slackwater_node_worth_replacing", labels, machine.advice == "replace"))
            values += _changes(journal, reader.clock(), reader.settings.pool)
    except JournalError:
        yield "slackwater_journal_readable", (), 0
    else:
        yield "slackwater_journal_readable", (), 1
        yield from values


def _pools(reader: JournalReader, views: dict[str, PoolStatus]) -> Iterator[MaybeValue]:
    for pool in reader.settings.pool:
        view = views[pool.name]
        yield "slackwater_pool_stale", (pool.name,), view.stale
        if not view.stale:
            yield "slackwater_pool_balancer_away", (pool.name,), view.outage is not None
        if view.mode is not None:
            yield "slackwater_pool_acting", (pool.name,), view.mode == "act"
            yield "slackwater_pool_paused", (pool.name,), view.paused
        yield "slackwater_pool_utilisation_max_over_mean", (pool.name,), view.max_over_mean
        yield "slackwater_pool_servers_saved", (pool.name,), view.servers_saved
        measured = (("p95", view.rt_p95_ms, pool.target_p95_ms), ("p99", view.rt_p99_ms, pool.target_p99_ms))
        for percentile, value_ms, target_ms in measured:
            if value_ms is not None:
                yield "slackwater_pool_response_seconds", (pool.name, percentile), value_ms / 1000.0
            if target_ms:
                yield "slackwater_pool_target_seconds", (pool.name, percentile), target_ms / 1000.0


def _servers(views: dict[str, PoolStatus]) -> Iterator[MaybeValue]:
    for pool, view in views.items():
        for row in view.rows:
            for state in SYMBOLS:
                yield "slackwater_node_state", (pool, row.node, state), row.state == state
            yield "slackwater_server_errors_per_second", (pool, row.node), row.errors_per_s
            if row.failed_share is not None:
                yield "slackwater_server_fails", (pool, row.node), row.peers_failed_share is not None
            own_cores = row.own_limit_cores if row.resource == "own limit" else None
            yield "slackwater_server_own_limit_cores", (pool, row.node), own_cores
            for field, (name, factor) in SERVER_FIELDS.items():
                value = getattr(row, field)
                yield name, (pool, row.node), None if value is None else value * factor


def _governed(pool: str, latest: dict[str, tuple[Governed, float]], now_unix_s: float) -> Iterator[MaybeValue]:
    for node, (governed, written_unix_s) in latest.items():
        if now_unix_s - written_unix_s > FRESH_S:
            continue
        labels = (pool, node)
        yield "slackwater_governor_acting", labels, governed.mode == "act"
        yield "slackwater_governor_target_seconds", labels, governed.target_p95_ms / 1000.0
        p95_s = None if governed.rt_p95_ms is None else governed.rt_p95_ms / 1000.0
        yield "slackwater_governor_response_p95_seconds", labels, p95_s
        yield "slackwater_governor_cores", labels, governed.cores
        yield "slackwater_governor_most_cores", labels, governed.most_cores
        yield "slackwater_governor_wanted_cores", labels, governed.wanted_cores
        yield "slackwater_governor_batch_cores", labels, governed.batch_cores
        yield "slackwater_governor_clock_share", (*labels, governed.clock_knob), governed.clock_share
        yield "slackwater_governor_watts", (*labels, governed.power_model), governed.watts
        yield "slackwater_governor_most_watts", (*labels, governed.power_model), governed.most_watts
        yield "slackwater_governor_seconds_total", labels, governed.seconds
        yield "slackwater_governor_misses_total", labels, governed.misses


def _ages(reader: JournalReader, journal: Journal, views: dict[str, PoolStatus]) -> Iterator[MaybeValue]:
    now_unix_s, lease_s = reader.clock(), reader.settings.lbengine.lease_s
    for pool, view in views.items():
        yield "slackwater_cycle_age_seconds", (pool,), view.age_s
        for node, received_unix_s in journal.received("sample", pool).items():
            yield "slackwater_sample_age_seconds", (pool, node), max(0.0, now_unix_s - received_unix_s)
        judged = journal.received("verdict", pool).values()
        valid = bool(judged) and now_unix_s - max(judged) < lease_s + 0.5  # written twice a second
        yield "slackwater_lease_valid", (pool,), valid


def _changes(journal: Journal, now_unix_s: float, pools: Iterable[PoolSettings]) -> Iterator[MaybeValue]:
    for labels, count in journal.kinds_of_change().items():
        yield "slackwater_changes_total", labels, count
    recent = journal.changes(None, 10_000, now_unix_s - RECENT_S)
    counts = Counter((made.pool, made.what, reason_of(made), str(made.applied).lower()) for made in recent)
    for key, count in counts.items():
        yield "slackwater_changes_last_hour", key, count
    nodes = {pool.name: pool.servers for pool in pools}
    away = [(made.pool, made.target) for made in recent if made.cause == "away"]
    for (pool, server), count in Counter(away).items():
        yield "slackwater_server_away_last_hour", (pool, nodes.get(pool, {}).get(server, server)), count
    for pool in dict.fromkeys(made.pool for made in recent):
        refused = sum(made.pool == pool and made.cause == "not_set" for made in recent)
        yield "slackwater_changes_refused_last_hour", (pool,), refused
        latencies = sorted(_latencies(journal, pool, recent, now_unix_s))
        for percentile in (50, 95):
            if latencies:
                value = latencies[min(len(latencies) - 1, percentile * len(latencies) // 100)]
                yield "slackwater_decision_latency_seconds", (pool, f"p{percentile}"), value


def reason_of(change: Change) -> str:
    """A Change's reason as one of few words: the state it was made for, or what was done."""
    if change.cause in ("interference", "not_shown", "no_gain"):
        return "interference"
    if change.cause in REASONS:
        return change.cause
    if change.what == "replace" and change.cause is not None:
        return change.cause
    if change.what in ("outcome", "pause", "resume", "restore", "mode", "pin", "unpin", "share", "reload"):
        return change.what
    return "other" if change.by in PARTS else "operator"


def _latencies(journal: Journal, pool: str, recent: list[Change], now_unix_s: float) -> Iterator[float]:
    """Seconds from the beginning of each episode to the first lowered weight of its server."""
    lowered: dict[str, list[float]] = {}
    for change in recent:
        if change.lowers and change.pool == pool and change.what == "weight":
            lowered.setdefault(change.target, []).append(change.time_unix_s)
    for span in journal.states(pool, now_unix_s - RECENT_S):
        if span.state in SLOW and span.since_unix_s >= now_unix_s - RECENT_S:
            later = [
                lowered_s - span.since_unix_s
                for lowered_s in lowered.get(span.node, [])
                if lowered_s >= span.since_unix_s
            ]
            if later and min(later) <= MAX_LATENCY_S:
                yield min(later)
