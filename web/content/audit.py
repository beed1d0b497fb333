"""The audit log: Changes by filter, a page at a time, and as files."""

from __future__ import annotations

import csv
import io
import math
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from slackwater.core.journal.journal import Journal
from slackwater.core.messages import Change

ON_A_PAGE = 100
MAX_CHANGES = 10_000
"""Most Changes in one answer of the API or one file."""
LONGEST = 200
SINCE_S = {"1h": 3600.0, "1d": 86400.0, "7d": 7 * 86400.0, "90d": 90 * 86400.0, "all": math.inf}
COLUMNS = (
    *("time_utc", "time_unix_s", "pool", "what", "target", "before", "after", "why", "by", "applied"),
    *("rt_p95_ms", "rt_p95_predicted_ms", "follows", "id"),
)


class FilterError(ValueError):
    """A filter that cannot be used; the text names it and what was expected."""


class ChangeFilter(msgspec.Struct):
    """Which Changes to show; an empty field chooses all."""

    pool: str = ""
    what: str = ""
    target: str = ""
    text: str = ""
    since: str = "7d"
    page: int = 1


def filter_of(given: Mapping[str, str]) -> ChangeFilter:
    """The filter that a query string describes. Raises FilterError."""
    texts = {key: given[key] for key in ("pool", "what", "target", "text", "since") if given.get(key)}
    for key, text in texts.items():
        if len(text) > LONGEST:
            raise FilterError(f"{key}: expected at most {LONGEST} characters, got {len(text)}")
    chosen = msgspec.convert(texts, ChangeFilter)
    if chosen.since not in SINCE_S:
        raise FilterError(f"since: expected one of {', '.join(SINCE_S)}, got `{chosen.since}`")
    page = given.get("page", "1")
    if not re.fullmatch(r"[1-9][0-9]{0,5}", page):
        raise FilterError(f"page: expected a number from 1 on, got `{page}`")
    chosen.page = int(page)
    return chosen


def find(
    journal: Journal,
    chosen: ChangeFilter,
    now_unix_s: float,
    limit: int,
    offset: int = 0,
    since_unix_s: float = 0.0,
    most_bytes: int | None = None,
) -> list[Change]:
    """The matching Changes, the newest first, none older than `since_unix_s`. Raises JournalError, and ValueError for
    more than `most_bytes` of them."""
    oldest_unix_s = max(now_unix_s - SINCE_S[chosen.since], since_unix_s)
    return journal.changes(
        chosen.pool or None,
        limit,
        oldest_unix_s or None,
        what=chosen.what or None,
        target=chosen.target or None,
        text=chosen.text,
        offset=offset,
        most_bytes=most_bytes,
    )


def as_csv(changes: list[Change]) -> str:
    """RFC 4180 with a header; texts that a spreadsheet would read as a formula get a leading quote."""
    sink = io.StringIO()
    writer = csv.writer(sink)
    writer.writerow(COLUMNS)
    for change in changes:
        time = datetime.fromtimestamp(change.time_unix_s, UTC).isoformat(timespec="milliseconds")
        values = [time, *(getattr(change, name) for name in COLUMNS[1:])]
        writer.writerow([_harmless(value) for value in values])
    return sink.getvalue()


def file_name(ending: str) -> str:
    return f"slackwater-changes-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.{ending}"


def _harmless(value: object) -> object:
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value
