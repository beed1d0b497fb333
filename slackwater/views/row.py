"""One server of a pool as the views show it, and the words for states, times and names."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from slackwater.core.messages import TAKES_REQUESTS, Resource, ServerCondition, State
from slackwater.views.percentiles import ServerPercentiles

NOTHING = "\N{EN DASH}"
"""Stands for a missing value."""
SYMBOLS: dict[State, str] = {
    "calm": "●",
    "interference": "▲",
    "slow": "△",
    "errors": "✕",
    "overload": "■",
    "all_slow": "◆",
    "unknown": "?",
}
"""Beside the word, never instead of it."""
WORDS: dict[State, str] = {
    "calm": "calm",
    "interference": "interference",
    "slow": "slow",
    "errors": "errors",
    "overload": "overload",
    "all_slow": "all slow",
    "unknown": "unknown",
}
CONDITIONS: dict[ServerCondition, str] = {
    "up": "up",
    "unchecked": "up, not checked",
    "draining": "draining",
    "maintenance": "in maintenance",
    "down": "down",
}


class Row(msgspec.Struct):
    """One server of a pool; unknown values are None."""

    node: str
    server: str
    """The balancer's name of it; empty for a node that is no server of this backend."""
    condition: ServerCondition | None
    """What the balancer lets it do."""
    state: State
    since_unix_s: float | None
    weight: int | None
    baseline: int | None
    wanted: int | None
    """The weight that lbengine wants; differs from `weight` in observe mode."""
    rps: float | None
    share: float | None
    """Share of the pool's requests in the last second."""
    share_wanted: float | None
    """The share by the wanted weights; None where weights do not set it (least connections, hashes), or unknown."""
    rt_p95_ms: float | None
    rt_p99_ms: float | None
    cpu: float | None
    """Utilisation: 1.0 is full."""
    why: str
    """All reasons, with their numbers."""
    resource: Resource | None = None
    """What a neighbour takes (`unclear` if that cannot be decided), in `interference`; or its own limit."""
    own_limit_cores: float | None = None
    """CPUs that it gets and no more: by its own limit where `resource` says so, else by that or a steady neighbour."""
    retuned: list[str] = []
    """What the second stage has changed on the node: `php_fpm.max_children 4 → 16`."""
    governed: list[str] = []
    """What the governor has changed on the node: `cpu.cores 4 → 2`."""
    rt_p50_ms: float | None = None
    """Of its newest Sample, like `rt_p95_ms` and `rt_p99_ms`; `percentiles` has those of the last minutes."""
    in_flight: int | None = None
    """Requests that the balancer has sent it and that are not answered yet."""
    queue: int | None = None
    """Requests that wait in the balancer for it."""
    errors_per_s: float | None = None
    failed_share: float | None = None
    """Share of its requests that failed over the last 30 s, as the balancer saw them."""
    peers_failed_share: float | None = None
    """`failed_share` of all other servers together, where this server's is well above it; else None."""
    rt_p95_now_ms: float | None = None
    """The median of its p95 over the last 10 s, where that is far above `rt_p95_usual_ms`; None: it is not."""
    rt_p95_usual_ms: float | None = None
    """What its p95 mostly was in the last days; None: not known yet."""
    as_in_calm: list[str] = []
    """Which of a slow server's CPU, disk and memory are as they mostly were."""
    decided: bool = True
    """False: lbengine decides nothing about its weight, which is somebody else's or the pool is paused."""
    pinned: bool = False
    """An operator has pinned its weight."""
    summary: str = ""
    """`why` in a sentence."""
    percentiles: ServerPercentiles | None = None
    """Percentiles of its response times over the last minutes; None for a node that is no server of this backend."""
    full_weight: int | None = None
    """The weight that it has when nothing is wrong."""
    exceptions: list[str] = []
    """Why it does not count as calm: `is down in HAProxy`."""

    @property
    def out(self) -> str:
        """Why the balancer sends it nothing, as `down`; empty where it does, or where that is not known."""
        return "" if self.condition is None or self.condition in TAKES_REQUESTS else CONDITIONS[self.condition]


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`: the two largest units."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def milliseconds(value: float | None) -> str:
    """`4.5 ms`, `62 ms`, `12.3 s`; a dash for None."""
    if value is None:
        return NOTHING
    if value >= 9995:
        return f"{value / 1000:.1f} s"
    return f"{value:.1f} ms" if value < 9.95 else f"{value:,.0f} ms"


def listed(names: Sequence[str], most: int = 4) -> str:
    """`a, b, c, d and 2 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def clock(unix_s: float) -> str:
    """`14:02:11` of this machine's time zone."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))
