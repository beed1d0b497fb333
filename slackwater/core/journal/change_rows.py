"""Which Changes are read from the journal."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from slackwater.core.messages import ChangeCause


@dataclass(frozen=True)
class Chosen:
    """What the chosen Changes have. A field that is None or empty chooses all."""

    pool: str | None = None
    since_unix_s: float | None = None
    until_unix_s: float | None = None
    what: str | None = None
    target: str | None = None
    text: str = ""
    """A text that stands in any field, in either case."""
    without: Collection[ChangeCause | None] = ()
    """Those with one of these causes are left out."""


def read_changes(
    database: sqlite3.Connection, chosen: Chosen, limit: int, offset: int, most_bytes: int | None
) -> list[str]:
    """The chosen Changes as JSON, newest first. Raises ValueError for more than `most_bytes` of it, sqlite3.Error."""
    given = {
        "pool = ?": chosen.pool,
        "time_unix_s >= ?": chosen.since_unix_s,
        "time_unix_s < ?": chosen.until_unix_s,
        "what = ?": chosen.what,
        "target = ?": chosen.target,
        "json LIKE ? ESCAPE '!'": _like(chosen.text) if chosen.text else None,
    }
    conditions = {clause: value for clause, value in given.items() if value is not None}
    causes = sorted(cause for cause in chosen.without if cause is not None)
    left_out = f" AND coalesce(json_extract(json, '$.cause'), '') NOT IN ({', '.join('?' * len(causes))})"
    rows = database.execute(
        f"SELECT json FROM changes WHERE {' AND '.join(conditions) or '1'}{left_out if causes else ''}"
        " ORDER BY time_unix_s DESC, rowid DESC LIMIT ? OFFSET ?",
        (*conditions.values(), *causes, limit, offset),
    )
    newest: list[str] = []
    size = 0
    for (json,) in rows:
        size += len(json)
        if most_bytes is not None and size > most_bytes:
            raise ValueError(
                f"the {len(newest)} newest of these Changes are {most_bytes:,} bytes already, and {limit} were asked"
                f" for: ask for at most {len(newest)} at a time (`limit`)"
            )
        newest.append(json)
    return newest


def _like(text: str) -> str:
    """The LIKE pattern for a text within a JSON string; `!` escapes."""
    return f"%{re.sub('([!%_])', '!' + chr(92) + '1', msgspec.json.encode(text).decode()[1:-1])}%"
