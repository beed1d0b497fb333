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
        _row(pool.name, said, now_unix_s - written_unix_s)
        for pool in settings.pool
        for said, written_unix_s in journal.latest_governed(pool.name).values()
    ]


def decisions(journal: Journal, pools: Sequence[str], now_unix_s: float) -> list[ChangeLine]:
    """The last ones of a day, the newest first."""
    found = [
        change
        for pool in pools
        for change in journal.changes(pool, LOOKS_AT, now_unix_s - LOOK_BACK_S)
        if change.by == GOVERNOR
    ]
    found.sort(key=lambda change: change.time_unix_s, reverse=True)
    return change_lines(found[:SHOWN])


def _row(pool: str, said: Governed, age_s: float) -> GovernorRow:
    fresh = age_s <= FRESH_S
    p95_ms = said.rt_p95_ms if fresh else None
    return GovernorRow(
        pool=pool,
        node=said.node,
        mode=f"silent for {duration(age_s)}" if not fresh else "sets" if said.mode == "act" else "observes",
        load=f"{said.rps:.0f} requests/s" if said.rps is not None and fresh else NOTHING,
        p95=milliseconds(p95_ms),
        is_late=p95_ms is not None and p95_ms > said.target_p95_ms,
        target=milliseconds(said.target_p95_ms),
        cores=_now_of(said.cores, said.most_cores, said.wanted_cores),
        batch="" if said.batch_cores is None else str(said.batch_cores) if said.batch_cores else "stand still",
        clock=_clock(said),
        clock_name="quota in place of a clock" if said.clock_knob == "cpu.quota" else "",
        power=_power(said),
        within=f"{1.0 - said.misses / said.seconds:.1%} of {duration(said.seconds)}" if said.seconds else NOTHING,
        why=said.why,
    )


def _now_of(now: int | None, most: int | None, wanted: int | None) -> str:
    if now is None or most is None:
        return NOTHING
    text = f"{now} of {most}"
    return text if wanted in (None, now) else f"{text}, wants {wanted}"


def _clock(said: Governed) -> str:
    if said.clock_share is None:
        return NOTHING
    text = f"{said.clock_share:.0%}" if said.clock_mhz is None else f"{said.clock_mhz:.0f} MHz"
    wanted = said.wanted_clock_share
    return text if wanted is None or abs(wanted - said.clock_share) < 1e-6 else f"{text}, wants {wanted:.0%}"


def _power(said: Governed) -> str:
    """The model's power: `0.9 W of 1.4 W (a72)`."""
    if said.watts is None or said.most_watts is None:
        return NOTHING
    return f"{said.watts:.2f} W of {said.most_watts:.2f} W ({said.power_model})"
