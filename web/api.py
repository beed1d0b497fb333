"""The same as JSON, for programs: `/api/v1/...`, described by `/api/v1/openapi.json`; `/healthz`."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from flask import Blueprint, Response, request

from slackwater.config import PoolSettings
from slackwater.journal.journal import JournalError
from slackwater.messages import Change, is_name
from slackwater.renamed import BothGiven
from slackwater.views import why
from slackwater.views.answers import Changes, Done, Error, Pools, Told
from web import audit, episodes, openapi
from web.ask import Ask
from web.controls import Unheard, do
from web.login import Gate
from web.reader import PLOT_S, Reader
from web.request_fields import new_names

MAX_CHANGES = 10_000
LONGEST_S = 400 * 86400.0


class ApiError(Exception):
    """An answer that is not 200: status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def blueprint(reader: Reader, gate: Gate, ask: Ask) -> Blueprint:
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
        return as_json(Error(str(error)), error.status)

    @api.errorhandler(JournalError)
    def unreadable(error: JournalError) -> Response:
        return as_json(Error(str(error)), 503)

    @api.get("/api/v1/openapi.json")
    def description() -> Response:
        return as_json(openapi.description())

    @api.get("/api/v1/pools")
    def pools() -> Response:
        return as_json(Pools(reader.views()))

    @api.get("/api/v1/pools/<pool>")
    def pool(pool: str) -> Response:
        settings = named(pool)
        with reader.journal() as journal:
            return as_json(reader.view(journal, settings))

    @api.get("/api/v1/pools/<pool>/history")
    def history(pool: str) -> Response:
        settings = named(pool)
        last_s, step_s = number("last_s", PLOT_S, most=LONGEST_S), number("step_s", 1.0, most=LONGEST_S)
        until = number("until_unix_s", reader.clock(), most=4e9)
        nodes = request.args.getlist("node")
        if not all(is_name(node) for node in nodes):
            raise ApiError(400, "node: expected names of nodes")
        with reader.journal() as journal:
            try:
                return as_json(reader.plots(journal, settings, last_s, step_s, nodes or None, until))
            except ValueError as error:
                raise ApiError(400, str(error)) from None

    @api.get("/api/v1/pools/<pool>/episodes")
    def pool_episodes(pool: str) -> Response:
        settings = named(pool)
        last_s = number("last_s", 7 * 86400.0, most=LONGEST_S)
        with reader.journal() as journal:
            now = reader.clock()
            return as_json({"episodes": episodes.listed(journal, settings.name, now - last_s, now)})

    @api.get("/api/v1/pools/<pool>/changes")
    def changes(pool: str) -> Response:
        settings = named(pool)
        limit = int(number("limit", 100, most=MAX_CHANGES, least=1))
        with reader.journal() as journal:
            return as_json(Changes(journal.changes(settings.name, limit=limit)))

    @api.get("/api/v1/pools/<pool>/nodes/<node>/story")
    def story(pool: str, node: str) -> Response:
        settings = named(pool)
        of = settings.servers.get(node, node)
        with reader.journal() as journal:
            told = why.story(journal, settings.name, of, settings.servers, reader.clock())
        return as_json(Told(told))

    @api.post("/api/v1/pools/<pool>/control")
    @gate.operator
    def control(pool: str) -> Response:
        settings = named(pool)
        asked = request.get_json(silent=True)
        if not isinstance(asked, dict):
            raise ApiError(400, "expected a JSON object")
        try:
            return as_json(Done(do(ask, settings.name, asked, gate.who().name)))
        except Unheard as error:
            raise ApiError(error.status, str(error)) from None

    @api.get("/api/v1/changes")
    def all_changes() -> Response:
        return as_json(Changes(_found(reader)))

    @api.get("/api/v1/changes.csv")
    def all_changes_csv() -> Response:
        answer = Response(audit.as_csv(_found(reader)), mimetype="text/csv")
        answer.headers["Content-Disposition"] = f"attachment; filename={audit.file_name('csv')}"
        return answer

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


def _found(reader: Reader) -> list[Change]:
    """The Changes that the query string means; without `since` all."""
    try:
        asked = audit.filter_of({"since": "all", **new_names(request.args)})
    except (audit.FilterError, BothGiven) as error:
        raise ApiError(400, str(error)) from None
    limit = int(number("limit", audit.MOST, most=audit.MOST, least=1))
    since_unix_s = number("since_unix_s", 0.0, most=4e9)
    with reader.journal() as journal:
        return list(audit.find(journal, asked, reader.clock(), limit, (asked.page - 1) * limit, since_unix_s))


def number(name: str, default: float, most: float = 1e9, least: float = 0.0) -> float:
    """A positive number of the query string. Raises ApiError (400)."""
    text = request.args.get(name)
    if text is None:
        return default
    value = float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?", text) else -1.0
    if not (least <= value <= most and value > 0.0):
        expected = f"from {least:g} to {most:g}" if least else f"above 0 and at most {most:g}"
        raise ApiError(400, f"{name}: expected a number {expected}, got `{text}`")
    return value


def as_json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, mimetype="application/json")
