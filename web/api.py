"""The same as JSON, for programs: `/api/v1/pools`, `/api/v1/pools/POOL`, `.../history`, `.../changes`; `/healthz`."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Blueprint, Response, request

from slackwater.config import PoolSettings
from slackwater.journal import JournalError
from web.reader import PLOT_S, Reader

MAX_CHANGES = 10_000


class ApiError(Exception):
    """An answer that is not 200: status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def blueprint(reader: Reader) -> Blueprint:
    """The API over this reader."""
    api = Blueprint("api", __name__)

    def named(name: str) -> PoolSettings:
        pool = reader.pool(name)
        if pool is None:
            known = ", ".join(pool.name for pool in reader.settings.pool)
            raise ApiError(404, f"no pool `{name}`; the configuration has: {known}")
        return pool

    @api.errorhandler(ApiError)
    def refused(error: ApiError) -> Response:
        return as_json({"error": str(error)}, error.status)

    @api.errorhandler(JournalError)
    def unreadable(error: JournalError) -> Response:
        return as_json({"error": str(error)}, 503)

    @api.get("/api/v1/pools")
    def pools() -> Response:
        return as_json({"pools": reader.views()})

    @api.get("/api/v1/pools/<pool>")
    def pool(pool: str) -> Response:
        settings = named(pool)
        with reader.journal() as journal:
            return as_json(reader.view(journal, settings))

    @api.get("/api/v1/pools/<pool>/history")
    def history(pool: str) -> Response:
        settings = named(pool)
        last_s, step_s = number("last_s", PLOT_S), number("step_s", 1.0)
        with reader.journal() as journal:
            try:
                return as_json(reader.plots(journal, settings, last_s, step_s))
            except ValueError as error:
                raise ApiError(400, str(error)) from None

    @api.get("/api/v1/pools/<pool>/changes")
    def changes(pool: str) -> Response:
        settings = named(pool)
        limit = int(number("limit", 100, most=MAX_CHANGES))
        with reader.journal() as journal:
            return as_json({"changes": journal.changes(settings.name, limit=limit)})

    @api.get("/healthz")
    def healthz() -> Response:
        """200 while the journal is readable and every pool has cycles; 503 otherwise, for the site's own checks."""
        try:
            views = reader.views()
        except JournalError as error:
            return as_json({"ok": False, "error": str(error)}, 503)
        ok = not any(view.stale for view in views)
        ages = {view.pool: {"age_s": view.age_s, "stale": view.stale} for view in views}
        return as_json({"ok": ok, "pools": ages}, 200 if ok else 503)

    return api


def number(name: str, default: float, most: float = 1e9) -> float:
    """A positive number of the query string. Raises ApiError (400)."""
    text = request.args.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= most:
        raise ApiError(400, f"{name}: expected a number above 0 and at most {most:g}, got `{text}`")
    return value


def as_json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, mimetype="application/json")
