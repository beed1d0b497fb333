"""The page of the governor: each node's cores, clock, target, p95 and estimated power, and why."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slackwater.core.config import ControllerSettings
from slackwater.core.journal.journal import Journal
from slackwater.core.messages import GOVERNOR, Governed
from slackwater.governor.lines import FRESH_S
from slackwater.views.change_lines import ChangeLine, change_lines
from slackwater.views.pool import NOTHING, duration, milliseconds

SHOWN = 30
"""Decisions in the list."""
LOOK_BACK_S, LOOKS_AT = 86400.0, 2000


class GovernorRow(msgspec.Struct):
    """One node, in words."""

    pool: str
    node: str
    mode: str
    """`sets` or `observes`; how long it has been silent, where it has."""
    load: str
    p95: str
    is_late: bool
    """The p95 is above the target."""
    target: str
    cores: str
    batch: str
    """Cores of the batch jobs beside it; empty: it sets none."""
    clock: str
    clock_name: str
    power: str
    within: str
    why: str


def rows(journal: Journal, settings: ControllerSettings, now_unix_s: float) -> list[GovernorRow]:
    """Raises JournalError."""
    return [
        _row(pool.name, governed, now_unix_s - written_unix_s)
        for pool in settings.pool
        for governed, written_unix_s in journal.latest_governed(pool.name).values()
    ]


def decisions(journal: Journal, pools: Sequence[str], now_unix_s: float) -> list[ChangeLine]:
    """The last decisions of a day, the newest first."""
    listed = [
        change
        for pool in pools
        for change in journal.changes(pool, LOOKS_AT, now_unix_s - LOOK_BACK_S)
        if change.by == GOVERNOR
    ]
    listed.sort(key=lambda change: change.time_unix_s, reverse=True)
    return change_lines(listed[:SHOWN])


def _row(pool: str, governed: Governed, age_s: float) -> GovernorRow:
    fresh = age_s <= FRESH_S
    p95_ms = governed.rt_p95_ms if fresh else None
    return GovernorRow(
        pool=pool,
        node=governed.node,
        mode=f"silent for {duration(age_s)}" if not fresh else "sets" if governed.mode == "act" else "observes",
        load=f"{governed.rps:.0f} requests/s" if governed.rps is not None and fresh else NOTHING,
        p95=milliseconds(p95_ms),
        is_late=p95_ms is not None and p95_ms > governed.target_p95_ms,
        target=milliseconds(governed.target_p95_ms),
        cores=_now_of(governed.cores, governed.most_cores, governed.wanted_cores),
        batch=""
        if governed.batch_cores is None
        else str(governed.batch_cores)
        if governed.batch_cores
        else "stand still",
        clock=_clock(governed),
        clock_name="quota in place of a clock" if governed.clock_knob == "cpu.quota" else "",
        power=_power(governed),
        within=f"{1.0 - governed.misses / governed.seconds:.1%} of {duration(governed.seconds)}"
        if governed.seconds
        else NOTHING,
        why=governed.why,
    )


def _now_of(now: int | None, most: int | None, wanted: int | None) -> str:
    if now is None or most is None:
        return NOTHING
    text = f"{now} of {most}"
    return text if wanted in (None, now) else f"{text}, wants {wanted}"


def _clock(governed: Governed) -> str:
    if governed.clock_share is None:
        return NOTHING
    text = f"{governed.clock_share:.0%}" if governed.clock_mhz is None else f"{governed.clock_mhz:.0f} MHz"
    wanted = governed.wanted_clock_share
    return text if wanted is None or abs(wanted - governed.clock_share) < 1e-6 else f"{text}, wants {wanted:.0%}"


def _power(governed: Governed) -> str:
    """The model's power: `0.9 W of 1.4 W (a72)`."""
    if governed.watts is None or governed.most_watts is None:
        return NOTHING
    return f"{governed.watts:.2f} W of {governed.most_watts:.2f} W ({governed.power_model})"
