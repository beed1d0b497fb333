"""The baseline: the weights that a pool has without Slackwater, on disk before the first change.

The file is there exactly while lbengine may have changed something: a clean stop puts the weights back and removes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from lbengine.balancer import Snapshot
from lbengine.state_file import StateFile, StateFileError
from slackwater.config import PoolSettings, place_in_words
from slackwater.control import ServerWeight
from slackwater.files import force_folder, replace_durably
from slackwater.messages import Name

VERSION = 1


class BaselineError(Exception):
    """A baseline file that cannot be read, trusted or written; the text names it and what to do."""


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One server's baseline."""

    weight: ServerWeight
    """0: it had no weight when it was first seen, so it is left alone until somebody gives it one."""
    configured: ServerWeight
    """The configuration file's weight when `weight` was taken: another one after a reload is the new baseline."""
    maxconn: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The most requests that it gets at a time; None: no limit, or the balancer has none."""


class _File(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file. What is driven (`PoolSettings.driven`) stands beside these."""

    v: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
    pool: Name
    servers: dict[str, Baseline]
    balancer: str = ""


@dataclass
class BaselineStore:
    """`<state_dir>/baseline/<pool>.json`."""

    state_dir: Path
    pool: PoolSettings
    mirror: Callable[[Mapping[str, Baseline] | None], None] = field(default=lambda _: None)
    """Called with what is on disk now (None: nothing any more), before `save` and `remove` return."""
    _written: tuple[int, int] | None = field(default=None, init=False)

    @property
    def path(self) -> Path:
        return self.state_dir / "baseline" / f"{self.pool.name}.json"

    def load(self) -> dict[str, Baseline] | None:
        """The stored baseline, or None when there is none. Raises BaselineError."""
        try:
            file = StateFile(self.path, _File).load()
            fields = StateFile(self.path, dict[str, object]).load()
        except StateFileError as error:
            raise BaselineError(
                f"{error}, so the weights to go back to are not known; set the weights as they should be, then remove"
                " the file"
            ) from None
        if file is None or fields is None:
            return None
        place = place_in_words(
            file.balancer, {key: str(value) for key, value in fields.items() if key not in _File.__struct_fields__}
        )
        if (file.pool, place) != (self.pool.name, self.pool.place):
            raise BaselineError(
                f"{self.path}: it belongs to pool `{file.pool}`, {place}, not to `{self.pool.name}`,"
                f" {self.pool.place}; put that one's weights back, then remove the file"
            )
        return file.servers

    def save(self, servers: Mapping[str, Baseline]) -> None:
        """Writes the file so that a power cut leaves the old one or the new one. Raises BaselineError."""
        pool = self.pool
        file = msgspec.to_builtins(_File(VERSION, pool.name, dict(servers), pool.balancer)) | pool.driven
        try:
            replace_durably(self.path, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")
            self._written = self._identity()
        except OSError as error:
            raise BaselineError(f"{self.path}: cannot be written: {error.strerror}; no weight is changed") from None
        self.mirror(servers)

    def is_current(self) -> bool:
        """True while the file on disk is the one written last, so that a change may be made."""
        return self._written is not None and self._identity() == self._written

    def remove(self) -> None:
        """Removes the file: nothing is left to put back. Raises BaselineError."""
        try:
            if self.path.exists():
                self.path.unlink()
                force_folder(self.path.parent)
        except OSError as error:
            raise BaselineError(f"{self.path}: cannot be removed: {error.strerror}") from None
        self._written = None
        self.mirror(None)

    def _identity(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            stat = self.path.stat()
            return stat.st_ino, stat.st_mtime_ns
        return None


def merge(
    stored: Mapping[str, Baseline] | None, snapshot: Snapshot, limits: Mapping[str, int] | None = None
) -> tuple[dict[str, Baseline], list[str]]:
    """The baseline after a look at the balancer, and in words what is new in it.

    Servers that came add theirs, ones that went drop out, and one whose configured weight is another than when its
    baseline was taken (the site changed it and reloaded) gets the new one. `limits` are the `maxconn`s that we have
    set (None: not known, any of them may be ours); one that is not ours is the baseline. While part of the balancer
    does not answer, no server counts as gone. Everything else stays as stored.
    """
    merged: dict[str, Baseline] = {}
    news: list[str] = []
    for server in snapshot.servers:
        known = None if stored is None else stored.get(server.name)
        limited = known is not None and (limits is None or limits.get(server.name, 0) == server.maxconn)
        most = known.maxconn if known is not None and limited and server.maxconn is not None else server.maxconn
        if known is None:
            merged[server.name] = Baseline(server.weight, server.configured, most)
            if stored is not None:
                news.append(f"{server.name} is new with weight {server.weight}")
        elif known.configured != server.configured:
            merged[server.name] = Baseline(server.configured, server.configured, most)
            news.append(f"{server.name} is configured with {server.configured} now, it was {known.configured}")
        elif known.weight == 0 and server.weight > 0:
            merged[server.name] = Baseline(server.weight, server.configured, most)
            news.append(f"{server.name} was given weight {server.weight}")
        else:
            merged[server.name] = Baseline(known.weight, known.configured, most)
    for name, known in (stored or {}).items():
        if name not in merged and snapshot.absent:
            merged[name] = known
        elif name not in merged:
            news.append(f"{name} is gone")
    return merged, news


def diff_from_baseline(
    snapshot: Snapshot, baselines: Mapping[str, Baseline]
) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    """Weights, and `maxconn`s, that are not at their baseline: server -> (shown, baseline)."""
    weights, limits = {}, {}
    for server in snapshot.servers:
        baseline = baselines.get(server.name)
        if baseline is None:
            continue
        if server.weight != baseline.weight > 0:
            weights[server.name] = (server.weight, baseline.weight)
        if server.maxconn is not None and baseline.maxconn is not None and server.maxconn != baseline.maxconn:
            limits[server.name] = (server.maxconn, baseline.maxconn)
    return weights, limits
