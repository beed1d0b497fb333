"""What differs between two settings of the controller, and which of its parts each difference concerns. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from slackwater.core.bus.bus import without_password
from slackwater.core.config import ControllerSettings, PoolSettings

PARTS = ("journal", "detector", "lbengine", "balancer_view", "retune", "governor", "replace", "web", "otlp")
"""The parts that read the settings, in the order in which they are started and replaced."""
JOURNAL, DETECTOR, LBENGINE, BALANCER_VIEW, RETUNE, GOVERNOR, REPLACE, WEB, OTLP = PARTS
CONCERNS: Mapping[str, frozenset[str]] = {
    "pool": frozenset({LBENGINE, BALANCER_VIEW, RETUNE, GOVERNOR, REPLACE, WEB, OTLP}),
    "pool.servers": frozenset({DETECTOR, LBENGINE, BALANCER_VIEW, RETUNE, GOVERNOR, REPLACE, WEB, OTLP}),
    "pool.target_p95_ms": frozenset({GOVERNOR, WEB, OTLP}),
    "pool.target_p99_ms": frozenset({WEB, OTLP}),
    "pool.zones": frozenset({REPLACE, WEB}),
    "pool.machine_types": frozenset({REPLACE, WEB}),
    "bus.control_user": frozenset({WEB}),
    "bus.control_password_file": frozenset({WEB}),
    "detector": frozenset({DETECTOR, WEB}),
    "lbengine": frozenset({LBENGINE, WEB}),
    "lbengine.socket_timeout_s": frozenset({LBENGINE, BALANCER_VIEW, WEB}),
    "balancer_view": frozenset({BALANCER_VIEW, WEB}),
    "lbengine.lease_s": frozenset({LBENGINE, WEB, OTLP}),
    "retune": frozenset({RETUNE, WEB}),
    "retune.order_key": frozenset({RETUNE, GOVERNOR, WEB}),
    "governor": frozenset({GOVERNOR, WEB}),
    "replace": frozenset({REPLACE, WEB}),
    "web": frozenset({WEB}),
    "journal": frozenset({JOURNAL, WEB}),
    "otlp": frozenset({OTLP, WEB}),
}
"""A setting, or a section -> the parts that must have a new value. The dashboard shows all settings. A setting that is
missing here needs a restart of everything."""
ALL = frozenset(PARTS)


class Difference(msgspec.Struct, frozen=True):
    """One setting with two values, in a form that may be shown: without passwords."""

    setting: str
    """The setting's name in the file, with the pool's name: `pool.web.mode`; a pool that came or went is `pool.web`."""
    before: str | None
    """The value as TOML; None: there was none."""
    after: str | None
    parts: frozenset[str]
    """The parts that need the new value; empty: only a restart of the controller applies it."""
    pool: str = ""
    """The pool that the setting belongs to; empty: none."""

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.setting} is new: {self.after}"
        return f"{self.setting} is gone" if self.after is None else f"{self.setting}: {self.before} -> {self.after}"


def compare(before: ControllerSettings, after: ControllerSettings) -> list[Difference]:
    """All differences. Pools are told apart by their names, so their order does not count."""
    differences: list[Difference] = []
    for name in ControllerSettings.__struct_fields__:  # pools first
        old, new = getattr(before, name), getattr(after, name)
        if name == "pool":
            differences += _pools({pool.name: pool for pool in old}, {pool.name: pool for pool in new})
        elif isinstance(old, msgspec.Struct):
            differences += _fields(old, new, name, name, "")
        elif old != new:
            differences.append(_difference(name, old, new, _parts(name), ""))
    return differences


def given_back(before: ControllerSettings, after: ControllerSettings) -> list[PoolSettings]:
    """The pools of `before` that are not driven any more, or not in the same manner: they get their baseline weights
    before somebody else takes over."""
    pools = {pool.name: pool for pool in after.pool}
    return [pool for pool in before.pool if pool.name not in pools or not _same_place(pool, pools[pool.name])]


def _same_place(old: PoolSettings, new: PoolSettings) -> bool:
    """Whether both drive the same balancer, reached in the same manner."""
    own = set(old.__struct_fields__) - set(PoolSettings.__struct_fields__)
    return type(old) is type(new) and all(getattr(old, name) == getattr(new, name) for name in own)


def _pools(old: Mapping[str, PoolSettings], new: Mapping[str, PoolSettings]) -> Iterator[Difference]:
    for name in dict.fromkeys([*old, *new]):
        setting = f"pool.{name}"
        if name not in new:
            yield Difference(setting, old[name].place, None, ALL, name)
        elif name not in old:
            pool = new[name]
            yield Difference(setting, None, f"{pool.mode}, law {pool.law}, {pool.place}", ALL, name)
        elif type(old[name]) is not type(new[name]):
            yield Difference(f"{setting}.balancer", old[name].place, new[name].place, CONCERNS["pool"], name)
        else:
            yield from _fields(old[name], new[name], "pool", setting, name)


def _fields(old: msgspec.Struct, new: msgspec.Struct, section: str, setting: str, pool: str) -> Iterable[Difference]:
    for name in old.__struct_fields__:
        was, now = getattr(old, name), getattr(new, name)
        if was != now:
            yield _difference(f"{setting}.{name}", was, now, _parts(f"{section}.{name}"), pool)


def _parts(setting: str) -> frozenset[str]:
    return CONCERNS.get(setting, CONCERNS.get(setting.partition(".")[0], frozenset()))


def _difference(setting: str, old: Any, new: Any, parts: frozenset[str], pool: str) -> Difference:
    return Difference(setting, _shown(old), _shown(new), parts, pool)


def _shown(value: Any) -> str:
    """The value as JSON, which TOML writes alike for all that can be set but tables."""
    return without_password(msgspec.json.encode(value).decode())
