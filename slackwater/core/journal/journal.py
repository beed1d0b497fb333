"""The journal: what was measured, judged and changed, in one SQLite file (`state_dir/journal.sqlite`).

WAL mode lets the page read while the journal process and lbengine write (https://sqlite.org/wal.html).
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from slackwater.core import messages
from slackwater.core.journal import schema
from slackwater.core.journal.change_rows import Chosen, read_changes
from slackwater.core.journal.database import Database
from slackwater.core.journal.losses import Losses, read_losses
from slackwater.core.journal.response_times import WHY_NONE, ServerTimes, ServerTotals, read_response_times
from slackwater.core.journal.schema import SAMPLE_COLUMNS, JournalError, failure
from slackwater.core.journal.series import NodeSeries, PoolSeries, Reading, StateSpan, read_history, read_states
from slackwater.core.messages import WSENGINE, Change, Cycle, Governed, Knobs, Message, Sample, Verdict, plain_json

__all__ = ["Journal", "JournalError", "Losses", "NodeSeries", "PoolSeries", "Reading", "StateSpan", "journal_path"]

WEIGHT_EVERY_S = 10.0
"""An unchanged weight is written again this often, so that a gap in the plot means that it was not read."""
M = TypeVar("M", bound=Message)


def journal_path(state_dir: str | Path) -> Path:
    """Where the journal of a controller with this `state_dir` is."""
    return Path(state_dir) / "journal.sqlite"


class Journal:
    """An open journal; may be used from several threads, and written by several processes. Use `Journal.open`.

    All methods raise JournalError, whose text names the file, when it cannot be read or written.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self.path = database.path
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._unforced = False
        """Changes were recorded that may not be on the disk yet."""
        self._node_ids: dict[tuple[str, str], int] = {}
        self._weights: dict[tuple[str, str], tuple[int, int, float]] = {}
        self._totals = ServerTotals()
        self._known_of = database.connection
        """The connection that the three fields above describe."""

    @classmethod
    def open(
        cls, path: str | Path, read_only: bool = False, *, wait_s: float = 5.0, clock: Callable[[], float] = time.time
    ) -> Journal:
        """Opens the journal; unless `read_only` it is made if it is not there.

        `wait_s` is how long to wait for another writer; `clock` gives the wall time in seconds.
        """
        return cls(Database(Path(path), read_only, wait_s), clock)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing

    def record(self, *batch: Message, wait: bool = True) -> None:
        """Writes all of these in one transaction, or none (JournalError). A Change that is there already is left alone.

        What is written survives the death of any process. A transaction with a Change is on the disk when this
        returns, so that it survives a power cut too; with `wait` false only once `force` has returned. Samples,
        Verdicts and Cycles of the last moments may be lost with the machine's power.
        """
        if not batch:
            return
        self._write(batch)
        if any(isinstance(message, Change) for message in batch):
            self._unforced = True
            if wait:
                self.force()

    def force(self) -> None:
        """Brings every recorded Change to the disk. Waits for the disk without keeping other writers waiting.

        SQLite's synchronous=FULL would hold the write lock meanwhile. A write-ahead log that is forced to
        the disk after the commit is as safe (https://sqlite.org/wal.html, "Performance Considerations").
        """
        if not self._unforced:
            return
        self._unforced = False
        try:
            self._database.force()
        except OSError as error:
            self._unforced = True
            raise JournalError(f"{self.path}: not written: the disk refused ({error})") from None

    def _write(self, batch: Sequence[Message]) -> None:
        with self._transaction("written") as database:
            now_unix_s = self._clock()
            for message in batch:
                if isinstance(message, Change):
                    database.execute(
                        schema.INSERT_CHANGE,
                        (
                            *(message.id, message.pool, message.time_unix_s, message.what, message.target),
                            *(_json(message), message.target if message.by == WSENGINE else None),
                        ),
                    )
                elif isinstance(message, Sample):
                    self._write_sample(database, message)
                    self._totals.add(database, message, now_unix_s)
                elif isinstance(message, Verdict):
                    self._write_state(database, message)
                elif isinstance(message, Cycle):
                    self._write_weights(database, message)
            newest = {
                (kind, message.pool, getattr(message, "node", "")): message
                for message in batch
                for kind in [_kind_of(message)]
                if kind != "change"
            }
            database.executemany(
                "INSERT INTO latest VALUES (?,?,?,?,?) ON CONFLICT DO UPDATE SET"
                " received_unix_s = excluded.received_unix_s, json = excluded.json",
                [(*key, now_unix_s, _json(message)) for key, message in newest.items()],
            )

    def _node_id(self, database: sqlite3.Connection, pool: str, node: str) -> int:
        node_id = self._node_ids.get((pool, node))
        if node_id is None:
            database.execute("INSERT OR IGNORE INTO nodes (pool, node) VALUES (?,?)", (pool, node))
            row = database.execute("SELECT id FROM nodes WHERE pool = ? AND node = ?", (pool, node)).fetchone()
            node_id = self._node_ids[pool, node] = int(row[0])
        return node_id

    def _write_sample(self, database: sqlite3.Connection, sample: Sample) -> None:
        values = (
            getattr(getattr(sample, section), field, None) if getattr(sample, section) is not None else None
            for section, field in SAMPLE_COLUMNS.values()
        )
        database.execute(
            schema.INSERT_SAMPLE, (self._node_id(database, sample.pool, sample.node), sample.time_unix_s, *values)
        )

    def _write_state(self, database: sqlite3.Connection, verdict: Verdict) -> None:
        database.execute(
            "INSERT INTO states VALUES (?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET"
            " last_unix_s = max(last_unix_s, excluded.last_unix_s), severity = max(severity, excluded.severity),"
            " resource = coalesce(nullif(excluded.resource, 'unclear'), resource, excluded.resource)",
            (
                self._node_id(database, verdict.pool, verdict.node),
                verdict.since_unix_s,
                verdict.state,
                verdict.time_unix_s,
                verdict.severity,
                msgspec.json.encode(verdict.path).decode(),
                verdict.resource,
            ),
        )

    def _write_weights(self, database: sqlite3.Connection, cycle: Cycle) -> None:
        for server in cycle.servers:
            key = (cycle.pool, server.server)
            weight, wanted, written_unix_s = self._weights.get(key, (-1, -1, 0.0))
            same = (weight, wanted) == (server.weight, server.wanted)
            if same and 0 <= cycle.time_unix_s - written_unix_s < WEIGHT_EVERY_S:
                continue
            self._node_id(database, cycle.pool, server.server)
            database.execute(
                "INSERT OR REPLACE INTO weights VALUES (?,?,?,?,?)",
                (cycle.pool, server.server, cycle.time_unix_s, server.weight, server.wanted),
            )
            self._weights[key] = (server.weight, server.wanted, cycle.time_unix_s)

    # --- reading

    def pools(self) -> list[str]:
        """The pools of which the journal knows anything, sorted."""
        with self.reading() as database:
            rows = database.execute("SELECT pool FROM latest UNION SELECT pool FROM changes ORDER BY 1").fetchall()
        return [row[0] for row in rows]

    def latest_cycle(self, pool: str) -> Cycle | None:
        """The last Cycle of a pool; None if there was none."""
        return next(iter(self._latest(Cycle, pool).values()), (None, 0.0))[0]

    def latest_samples(self, pool: str) -> dict[str, Sample]:
        """The last Sample of each node."""
        return {node: sample for node, (sample, _) in self._latest(Sample, pool).items()}

    def latest_knobs(self, pool: str) -> dict[str, tuple[Knobs, float]]:
        """The last Knobs of each node's wsengine, and when they were written."""
        return self._latest(Knobs, pool)

    def latest_governed(self, pool: str) -> dict[str, tuple[Governed, float]]:
        """What the governor said last of each node, and when it was written."""
        return self._latest(Governed, pool)

    def latest_verdicts(self, pool: str) -> dict[str, Verdict]:
        """The last Verdict of each node."""
        return {node: verdict for node, (verdict, _) in self._latest(Verdict, pool).items()}

    def received(self, kind: str, pool: str) -> dict[str, float]:
        """When each node's last message of a kind (`sample`, `verdict`) was written: wall time of this machine."""
        with self.reading() as database:
            rows = database.execute(
                "SELECT node, received_unix_s FROM latest WHERE kind = ? AND pool = ?", (kind, pool)
            ).fetchall()
        return dict(rows)

    def changes(
        self,
        pool: str | None = None,
        limit: int = 100,
        since_unix_s: float | None = None,
        *,
        until_unix_s: float | None = None,
        what: str | None = None,
        target: str | None = None,
        text: str = "",
        without: Collection[messages.ChangeCause | None] = (),
        offset: int = 0,
        most_bytes: int | None = None,
    ) -> list[Change]:
        """The Changes of a pool (or of all), newest first; `text`: those with it in any field, in either case;
        `without`: causes that are left out. Raises ValueError for more than `most_bytes` of them."""
        chosen = Chosen(pool, since_unix_s, until_unix_s, what, target, text, without)
        with self.reading() as database:
            rows = read_changes(database, chosen, limit, offset, most_bytes)
        return [self._decode_change(row) for row in rows]

    def kinds_of_change(self) -> dict[tuple[str, str], int]:
        """(pool, what) -> how many Changes there are of it."""
        with self.reading() as database:
            rows = database.execute("SELECT pool, what, count(*) FROM changes GROUP BY pool, what").fetchall()
        return {(row[0], row[1]): row[2] for row in rows}

    def states(self, pool: str, since_unix_s: float, *, oldest: bool = False) -> list[StateSpan]:
        """The states that the pool's nodes were in since then, in order of their beginning: of very many (MOST_STATES)
        the newest, or the oldest."""
        with self.reading() as database:
            return read_states(database, pool, since_unix_s, oldest=oldest)

    def losses(self, pool: str, since_unix_s: float, step_s: float, until_unix_s: float) -> dict[str, Losses]:
        """What each node lost of its calm capacity in each step. Steps of a day from the beginning of one (UTC) come
        from the rolled-up days, but for the last. Raises ValueError for a step that is not positive or too short."""
        with self.reading() as database:
            return read_losses(database, pool, since_unix_s, step_s, until_unix_s)

    def readings(self, pool: str, last_s: float = 2.0) -> dict[str, Reading]:
        """Each node's means over the `last_s` seconds before its last Sample (the node's own clock)."""
        with self.reading() as database:
            rows = database.execute(schema.READINGS, {"pool": pool, "last_s": last_s}).fetchall()
        return {row["node"]: Reading(*tuple(row)[1:]) for row in rows}

    def response_times(self, pool: str) -> dict[tuple[str, str], ServerTimes]:
        """The response times of each node and server, of the last minutes and since the journal began."""
        with self.reading() as database:
            return read_response_times(database, pool, self._clock())

    def why_no_response_times(self, pool: str) -> dict[str, tuple[str, str]]:
        """The source of each node's last Sample, and why that has no response times in buckets; empty where it has."""
        with self.reading() as database:
            rows = database.execute(WHY_NONE, (pool,)).fetchall()
        return {row["node"]: (row["source"], row["reason"]) for row in rows}

    def history(
        self,
        pool: str,
        since_unix_s: float,
        step_s: float,
        *,
        until_unix_s: float | None = None,
        servers: Mapping[str, str] | None = None,
        nodes: Collection[str] | None = None,
        most_values: int | None = None,
    ) -> PoolSeries:
        """Series of each node from `since_unix_s` to `until_unix_s` (None: now), one value a step of `step_s`.

        Response times are means over the step, weighted with the requests. Steps of a minute or more come from the
        rolled-up minutes, of an hour or more from hours. `servers` maps server names to node names where they differ
        (as in the settings); `nodes`: only these. Raises ValueError for a step that is not positive or too short, and
        for more than `most_values`: steps times nodes times signals.
        """
        until_unix_s = self._clock() if until_unix_s is None else until_unix_s
        with self.reading() as database:
            return read_history(database, pool, since_unix_s, until_unix_s, step_s, servers or {}, nodes, most_values)

    def _latest(self, kind: type[M], pool: str) -> dict[str, tuple[M, float]]:
        name = next(name for name, struct in messages.KINDS.items() if struct is kind)
        with self.reading() as database:
            rows = database.execute(
                "SELECT node, json, received_unix_s FROM latest WHERE kind = ? AND pool = ? ORDER BY node", (name, pool)
            ).fetchall()
        return {row["node"]: (self._decode(kind, row["json"]), row["received_unix_s"]) for row in rows}

    def _decode(self, kind: type[M], text: str) -> M:
        try:
            return msgspec.json.decode(plain_json(text), type=kind)
        except msgspec.MsgspecError as error:
            raise JournalError(f"{self.path}: a {kind.__name__} cannot be read: {error}") from None

    def _decode_change(self, text: str) -> Change:
        """A stored Change. What is beyond the limits of messages is read too: they hold on the bus, not for what we
        store."""
        try:
            return msgspec.json.decode(plain_json(text), type=Change)
        except msgspec.ValidationError:
            fields = msgspec.json.decode(plain_json(text))
            return Change(**{name: fields[name] for name in Change.__struct_fields__ if name in fields})
        except msgspec.MsgspecError as error:
            raise JournalError(f"{self.path}: a Change cannot be read: {error}") from None

    # --- the connection

    def used_bytes(self) -> int:
        """What the file's rows take; pages that deleted rows left behind are used again and do not count."""
        with self.reading() as database:
            pages, free, size = (
                int(database.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "freelist_count", "page_size")
            )
        return (pages - free) * size

    def file_bytes(self) -> int:
        """What the file takes of its disk, free pages in it included; its log is short-lived and does not count."""
        return self.path.stat().st_size

    def keeping(self, work: Callable[[sqlite3.Connection], None], verb: str) -> None:
        """Runs `work` in one transaction (for `slackwater.core.journal.retention`); node ids may have gone
        afterwards."""
        with self._transaction(verb) as database:
            work(database)
            self._node_ids.clear()

    def give_up_after(self, seconds: float) -> None:
        """Stops what is read for longer than this, which raises JournalError."""
        until_s = time.monotonic() + seconds
        self._database.connection.set_progress_handler(lambda: time.monotonic() > until_s, 10_000)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The open database, for the statements of this package."""
        with self._lock:
            try:
                with self._database.used() as database:
                    yield database
            except sqlite3.Error as error:
                raise failure(self.path, "read", error) from error
            except msgspec.MsgspecError as error:  # a program of another version wrote it, or the disk is bad
                raise JournalError(f"{self.path}: a row cannot be read: {error}") from None

    @contextlib.contextmanager
    def _transaction(self, verb: str) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                with self._database.used() as database:
                    if database is not self._known_of:
                        self._forget()
                        self._known_of = database
                    try:
                        database.execute("BEGIN IMMEDIATE")
                        yield database
                        database.execute("COMMIT")
                    except BaseException:
                        self._forget()
                        with contextlib.suppress(sqlite3.Error):
                            if database.in_transaction:
                                database.execute("ROLLBACK")
                        raise
            except sqlite3.Error as error:
                raise failure(self.path, verb, error) from error

    def _forget(self) -> None:
        self._node_ids.clear()
        self._totals.forget()
        self._weights.clear()


def _kind_of(message: Message) -> str:
    return next(kind for kind, struct in messages.KINDS.items() if isinstance(message, struct))


def _json(message: Any) -> str:
    return messages.encode(message).decode()
