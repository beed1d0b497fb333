"""The baseline: the weights that a pool has without Slackwater, on disk before the first change.

The file exists exactly while lbengine may have changed a weight: a clean stop puts the weights back and removes it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from slackwater.core.config import PoolSettings, kind_of, place_in_words
from slackwater.core.control import ServerWeight
from slackwater.core.files import as_owner, bytes_of, force_folder, remove, replace_durably, write_whole
from slackwater.core.messages import Name
from slackwater.lbengine.balancer import Server, Snapshot
from slackwater.lbengine.state_file import StateFile, StateFileError

VERSION = 1


class BaselineError(Exception):
    """A baseline file cannot be read, trusted or written. The text names it and says what to do."""


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One server's baseline."""

    weight: ServerWeight
    """Its weight without us: the configured weight, or on disk the weight that somebody else has set. Where none is
    configured it is the weight that the server had when it was first seen. A server with 0 is left alone until somebody
    gives it a weight."""
    configured: ServerWeight
    """The configuration file's weight when `weight` was taken. A different one after a reload is the new baseline."""
    maxconn: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The most requests that it gets at a time; None: no limit, or the balancer has none."""


class _File(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file. The settings that say what is driven (`PoolSettings.driven`) stand beside these fields."""

    v: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
    pool: Name
    servers: dict[str, Baseline]
    balancer: str = ""
    id: str = ""


@dataclass
class BaselineStore:
    """The file `<state_dir>/baseline/<pool>.json`."""

    state_dir: Path
    pool: PoolSettings
    mirror: Callable[[Mapping[str, Baseline] | None], None] = field(default=lambda _: None)
    """Called with the baseline that is on disk now (None: removed), before `save` and `remove` return."""
    saved: Mapping[str, Baseline] | None = field(default=None, init=False)
    """The baseline that was saved or loaded last."""
    id: str = field(default="", init=False)
    """Random id of the stored baseline, the same from its first save until it is removed."""
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
        self.saved, self.id = file.servers, file.id
        return file.servers

    def save(self, servers: Mapping[str, Baseline]) -> None:
        """Writes the file; a power cut leaves the old one or the new one whole. Raises BaselineError."""
        pool = self.pool
        if not (self.id and self.path.exists()):
            self.id = uuid.uuid4().hex
        file = msgspec.to_builtins(_File(VERSION, pool.name, dict(servers), pool.balancer, self.id)) | pool.driven
        try:
            replace_durably(self.path, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")
            self._written = self._identity()
        except OSError as error:
            raise BaselineError(f"{self.path}: cannot be written: {error.strerror}; no weight is changed") from None
        self.saved = dict(servers)
        self.mirror(servers)

    def is_current(self) -> bool:
        """True while the file on disk is the one that was written last, so that weights may be changed."""
        return self._written is not None and self._identity() == self._written

    def remove(self) -> None:
        """Removes the file, when nothing is left to put back. Raises BaselineError."""
        try:
            with as_owner(self.path):
                if self.path.exists():
                    with contextlib.suppress(OSError):
                        write_whole(self._note, f"{self.id}\n".encode())
                    remove(self.path)
                    force_folder(self.path.parent)
        except OSError as error:
            raise BaselineError(f"{self.path}: cannot be removed: {error.strerror}") from None
        self._written = self.saved = None
        self.id = ""
        self.mirror(None)

    def forget(self) -> None:
        """Removes a baseline that is out of date, since somebody else has led since."""
        remove(self.path)

    @property
    def put_back(self) -> str:
        """The `id` of the baseline that was put back last, by us or by `slackwater restore`; empty: none is known.

        A copy with this id, in a lease, is out of date.
        """
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return bytes_of(self._note).decode().strip()
        return ""

    @property
    def _note(self) -> Path:
        return self.path.with_suffix(".put-back")

    def _identity(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            stat = self.path.stat()
            return stat.st_ino, stat.st_mtime_ns
        return None


def stored_in(state_dir: Path) -> list[Path]:
    """The files of all stored baselines, of pools that the settings no longer have too."""
    return list((state_dir / "baseline").glob("*.json"))


def pool_of(path: Path) -> PoolSettings:
    """The pool of a stored baseline, with the settings that say where it is. Raises BaselineError."""
    try:
        fields = StateFile(path, dict[str, object]).load() or {}
        kind = kind_of(fields)
        driven = {key: value for key, value in fields.items() if key not in _File.__struct_fields__}
        named = {"balancer": kind.word(), "name": fields.get("pool")}
        return msgspec.convert(kind.from_driven(driven) | named, kind)
    except (StateFileError, msgspec.ValidationError) as error:
        raise BaselineError(f"{path}: where its weights belong cannot be read: {error}") from None


def configured_weight(server: Server) -> int | None:
    """The weight of a server in the site's configuration; None where it has none, or DNS sets it."""
    return server.configured if server.configured > 0 and not server.srv_record else None


def merge(
    stored: Mapping[str, Baseline] | None,
    snapshot: Snapshot,
    limits: Mapping[str, int] | None = None,
    *,
    follow: bool = False,
) -> tuple[dict[str, Baseline], list[str]]:
    """The baseline after a look at the balancer, and its news in words.

    The configured weight is the baseline, whatever somebody has set by hand. Where none is configured it is the weight
    that the server had when it was first seen; with `follow` (nothing of ours is set) its present weight. New servers
    are added, and servers that are gone drop out. If a server's configured weight differs from the one when its
    baseline was taken (the site changed it and reloaded), the new weight is its baseline. `limits` are the `maxconn`s
    that we have set (None: not known, any of them may be ours); a `maxconn` that is not ours is the baseline. While a
    part of the balancer does not answer no server counts as gone. A server that cannot be read does not either.
    Everything else stays as stored.
    """
    merged: dict[str, Baseline] = {}
    news: list[str] = []
    for server in snapshot.servers:
        known = None if stored is None else stored.get(server.name)
        limited = known is not None and (limits is None or limits.get(server.name, 0) == server.maxconn)
        maxconn = known.maxconn if known is not None and limited and server.maxconn is not None else server.maxconn
        configured = configured_weight(server)
        if known is None:
            weight = server.weight if configured is None else configured
            merged[server.name] = Baseline(weight, server.configured, maxconn)
            if stored is not None:
                news.append(f"{server.name} is new with weight {weight}")
        elif known.configured != server.configured:
            merged[server.name] = Baseline(server.configured, server.configured, maxconn)
            news.append(f"{server.name} is configured with {server.configured} now, it was {known.configured}")
        elif configured is not None:
            merged[server.name] = Baseline(configured, server.configured, maxconn)
        elif known.weight == 0 and server.weight > 0:
            merged[server.name] = Baseline(server.weight, server.configured, maxconn)
            news.append(f"{server.name} was given weight {server.weight}")
        elif follow and known.weight != server.weight:
            merged[server.name] = Baseline(server.weight, server.configured, maxconn)
            news.append(f"{server.name} has weight {server.weight} now, it had {known.weight}, and none is configured")
        else:
            merged[server.name] = Baseline(known.weight, known.configured, maxconn)
    for name, known in (stored or {}).items():
        if name not in merged and (snapshot.absent or name in snapshot.unreadable):
            merged[name] = known
        elif name not in merged:
            news.append(f"{name} is gone")
    return merged, news


def set_by_someone(stored: Mapping[str, Baseline], snapshot: Snapshot) -> dict[str, int]:
    """The weights that somebody else had set when this baseline was stored, by server.

    They are the stored weights that differ from the configured ones.
    """
    return {
        server.name: known.weight
        for server in snapshot.servers
        if (known := stored.get(server.name)) is not None
        and configured_weight(server) == known.configured != known.weight
    }


def to_store(
    baselines: Mapping[str, Baseline], snapshot: Snapshot, externally_controlled: Collection[str]
) -> dict[str, Baseline]:
    """The weights to go back to without us: a server that somebody else controls keeps its present weight."""
    weights_of_others = {
        server.name: server.weight for server in snapshot.servers if server.name in externally_controlled
    }
    return {
        name: msgspec.structs.replace(baseline, weight=weights_of_others.get(name, baseline.weight))
        for name, baseline in baselines.items()
    }


def diff_from_baseline(
    snapshot: Snapshot, baselines: Mapping[str, Baseline]
) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    """The weights and the `maxconn`s that are not at their baseline, each as server -> (shown, baseline)."""
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
