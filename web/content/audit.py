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

from slackwater.journal.journal import Journal
from slackwater.messages import Change
from slackwater.views.pool import describe_change
from web.content.pool import ms

ON_A_PAGE = 100
MOST = 10_000
"""As many are given at a time, by the API and as a file."""
LONGEST = 200
SINCE_S = {"1h": 3600.0, "1d": 86400.0, "7d": 7 * 86400.0, "90d": 90 * 86400.0, "all": math.inf}
COLUMNS = (
    *("time_utc", "time_unix_s", "pool", "what", "target", "before", "after", "why", "by", "applied"),
    *("rt_p95_ms", "rt_p95_predicted_ms", "follows", "id"),
)


class FilterError(ValueError):
    """A filter that cannot be used; the text names it and what was expected."""


class Filter(msgspec.Struct):
    """Which Changes are meant; empty is all."""

    pool: str = ""
    what: str = ""
    target: str = ""
    text: str = ""
    since: str = "7d"
    page: int = 1


class Line(msgspec.Struct):
    """One Change as the page shows it."""

    id: str
    time_unix_s: float
    pool: str
    what: str
    why: str
    by: str
    applied: bool
    predicted: str


def filter_of(given: Mapping[str, str]) -> Filter:
    """From a query string. Raises FilterError."""
    texts = {key: given[key] for key in ("pool", "what", "target", "text", "since") if given.get(key)}
    for key, text in texts.items():
        if len(text) > LONGEST:
            raise FilterError(f"{key}: expected at most {LONGEST} characters, got {len(text)}")
    asked = msgspec.convert(texts, Filter)
    if asked.since not in SINCE_S:
        raise FilterError(f"since: expected one of {', '.join(SINCE_S)}, got `{asked.since}`")
    page = given.get("page", "1")
    if not re.fullmatch(r"[1-9][0-9]{0,5}", page):
        raise FilterError(f"page: expected a number from 1 on, got `{page}`")
    asked.page = int(page)
    return asked


def find(
    journal: Journal, asked: Filter, now_unix_s: float, limit: int, offset: int = 0, since_unix_s: float = 0.0
) -> list[Change]:
    """The Changes that are meant, the newest first, none older than `since_unix_s`. Raises JournalError."""
    oldest_unix_s = max(now_unix_s - SINCE_S[asked.since], since_unix_s)
    return journal.changes(
        asked.pool or None,
        limit,
        oldest_unix_s or None,
        what=asked.what or None,
        target=asked.target or None,
        text=asked.text,
        offset=offset,
    )


def line(change: Change) -> Line:
    """The texts of one."""
    predicted = ""
    if change.rt_p95_ms is not None and change.rt_p95_predicted_ms is not None:
        predicted = f"p95 {ms(change.rt_p95_ms)} → {ms(change.rt_p95_predicted_ms)}"
    what = describe_change(change)
    return Line(change.id, change.time_unix_s, change.pool, what, change.why, change.by, change.applied, predicted)


def as_csv(changes: list[Change]) -> str:
    """RFC 4180 with a header; texts that a spreadsheet would take for a formula get a quote in front."""
    sink = io.StringIO()
    writer = csv.writer(sink)
    writer.writerow(COLUMNS)
    for change in changes:
        at = datetime.fromtimestamp(change.time_unix_s, UTC).isoformat(timespec="milliseconds")
        values = [at, *(getattr(change, name) for name in COLUMNS[1:])]
        writer.writerow([_harmless(value) for value in values])
    return sink.getvalue()


def file_name(ending: str) -> str:
    return f"slackwater-changes-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.{ending}"


def _harmless(value: object) -> object:
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value
