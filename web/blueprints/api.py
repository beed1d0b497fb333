"""The pages' data as JSON, for programs: `/api/v1/...`, described by `/api/v1/openapi.json`; `/healthz`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from flask import Blueprint, Response, abort, request

from slackwater.core.messages import Change, is_server_name
from slackwater.views import week as views
from slackwater.views import why
from slackwater.views.answers import Changes, Done, NodeEpisode, Pools
from slackwater.views.pool import PoolStatus
from slackwater.views.week import DAYS, WEEK_DAYS, Week
from slackwater.web.blueprints.controls import send
from slackwater.web.content import audit, episodes
from slackwater.web.content.harm import RANGES, HarmMap
from slackwater.web.context import as_json, context, operators_only, pool_settings
from slackwater.web.openapi import NAME, Api, number_parameter, query_parameter, text_parameter
from slackwater.web.query import LONGEST_S, MAX_UNIX_S, query_number
from slackwater.web.reader import MOST_BYTES, PLOT_S, Plots

api = Blueprint("api", __name__)
described = Api(api)
LAST = number_parameter("last_s", "seconds back from the end", LONGEST_S)
LIMIT = query_parameter("limit", "at most so many", {"type": "integer", "minimum": 1, "maximum": audit.MAX_CHANGES})
HISTORY = (
    LAST,
    number_parameter("step_s", "seconds a step; from 60 on means of minutes", LONGEST_S),
    number_parameter("until_unix_s", "the end, as Unix time; default: now", MAX_UNIX_S),
    query_parameter("node", "only this node; may be repeated", {"type": "array", "items": NAME}),
)
SPAN = (
    query_parameter("days", "so many days until now", {"type": "integer", "minimum": 1, "maximum": max(DAYS)}),
    query_parameter("pool", "only this pool", NAME),
)
FILTERS = (
    text_parameter("pool", "Changes of this pool"),
    text_parameter("what", "of this kind: `weight`, `pause`, ..."),
    text_parameter("target", "of this server or node"),
    text_parameter("text", "with this text in any field"),
    query_parameter("since", "not older than this", {"type": "string", "enum": [*audit.SINCE_S, ""]}),
    number_parameter("since_unix_s", "not older than this Unix time", MAX_UNIX_S),
    query_parameter("page", "which page", {"type": "integer", "minimum": 1, "maximum": 999_999}),
    LIMIT,
)

HARM = (
    query_parameter("last", "how far back; default: 24h", {"type": "string", "enum": [*RANGES]}),
    number_parameter("until_unix_s", "the end, as Unix time; default: now", MAX_UNIX_S),
)


class Episodes(msgspec.Struct):
    """The newest first."""

    episodes: list[episodes.Listed]


@api.get("/api/v1/openapi.json")
def description() -> Response:
    return as_json(described.description())


@described.get("/api/v1/pools", "All pools, now", Pools)
def pools() -> Response:
    reader, settings = context().reader, context().settings
    with reader.one_request() as journal:
        return as_json(Pools([reader.view(journal, pool) for pool in settings.pool], reader.clock()))


@described.get("/api/v1/pools/<pool>", "One pool, now", PoolStatus)
def pool(pool: str) -> Response:
    settings, reader = pool_settings(pool), context().reader
    with reader.one_request() as journal:
        return as_json(reader.view(journal, settings))


@described.get("/api/v1/pools/<pool>/history", "Series, states and weight changes of a pool", Plots, *HISTORY)
def history(pool: str) -> Response:
    settings, reader = pool_settings(pool), context().reader
    last_s, step_s = query_number("last_s", PLOT_S, most=LONGEST_S), query_number("step_s", 1.0, most=LONGEST_S)
    until_unix_s = query_number("until_unix_s", reader.clock(), most=MAX_UNIX_S)
    nodes = request.args.getlist("node")
    if not all(is_server_name(node) for node in nodes):  # a server without a node stands under its own name
        abort(400, "node: expected names of nodes")
    with reader.one_request() as journal, _too_much_is_refused():
        return as_json(reader.plots(journal, settings, last_s, step_s, nodes or None, until_unix_s))


@described.get("/api/v1/pools/<pool>/episodes", "A pool's episodes", Episodes, LAST)
def pool_episodes(pool: str) -> Response:
    settings, reader = pool_settings(pool), context().reader
    now_unix_s, last_s = reader.clock(), query_number("last_s", 7 * 86400.0, most=LONGEST_S)
    with reader.one_request() as journal:
        return as_json(Episodes(episodes.listed(journal, settings.name, now_unix_s - last_s, now_unix_s)))


@described.get("/api/v1/week", "What would have been done, and the harm that it would have avoided", Week, *SPAN)
def week() -> Response:
    reader, settings = context().reader, context().settings
    days = int(query_number("days", WEEK_DAYS, most=max(DAYS), least=1))
    name = request.args.get("pool")
    pools = settings.pool if name is None else [pool_settings(name)]
    with reader.one_request() as journal:
        return as_json(views.week(journal, settings, pools, days, reader.clock(), reader.measured_by))


@described.get("/api/v1/pools/<pool>/changes", "A pool's last Changes", Changes, LIMIT)
def pool_changes(pool: str) -> Response:
    settings = pool_settings(pool)
    limit = int(query_number("limit", 100, most=audit.MAX_CHANGES, least=1))
    with context().reader.one_request() as journal, _too_much_is_refused():
        return as_json(Changes(journal.changes(settings.name, limit=limit, most_bytes=MOST_BYTES)))


@described.get(
    "/api/v1/pools/<pool>/nodes/<node>/episode",
    "A node's last episode within a week, or the one at a time, and what was done about it",
    NodeEpisode,
    number_parameter(
        "at_unix_s",
        "the episode that went on at this Unix time, or else the first that began within a minute",
        MAX_UNIX_S,
    ),
)
def episode(pool: str, node: str) -> Response:
    settings, reader = pool_settings(pool), context().reader
    named = settings.servers.get(node, node)
    at_unix_s = query_number("at_unix_s", 0.0, most=MAX_UNIX_S) or None
    with reader.one_request() as journal:
        return as_json(
            NodeEpisode(why.episode_of(journal, settings.name, named, settings.servers, reader.clock(), at_unix_s))
        )


@described.get("/api/v1/fleet/harm", "What each server lost of its capacity over time", HarmMap, *HARM)
def fleet_harm() -> Response:
    last = request.args.get("last", "24h")
    if last not in RANGES:
        abort(400, f"last: expected one of {', '.join(RANGES)}")
    until_unix_s = query_number("until_unix_s", context().reader.clock(), most=MAX_UNIX_S)
    return Response(context().fleet.harm_json(last, until_unix_s), mimetype="application/json")


@described.post("/api/v1/pools/<pool>/control", "Send lbengine a command; needs the role operator", Done)
@operators_only
def control(pool: str) -> Response:
    settings = pool_settings(pool)
    try:
        fields = request.get_json(silent=True)
    except RecursionError:  # nested too deeply
        fields = None
    if not isinstance(fields, dict):
        abort(400, "expected a JSON object")
    return as_json(Done(send(settings.name, fields)))


@described.get("/api/v1/changes", "The audit log", Changes, *FILTERS)
def changes() -> Response:
    with _filtered_changes() as chosen:
        return as_json(Changes(chosen))


@described.get("/api/v1/changes.csv", "The audit log as CSV (RFC 4180)", "text/csv", *FILTERS)
def changes_csv() -> Response:
    with _filtered_changes() as chosen:
        answer = Response(audit.as_csv(chosen), mimetype="text/csv")
    answer.headers["Content-Disposition"] = f"attachment; filename={audit.file_name('csv')}"
    return answer


@api.get("/healthz")
def healthz() -> Response:
    """200 while the journal is readable, every pool has cycles and its balancer answers; 503 otherwise, for the site's
    own checks.

    Everybody may call it, so the journal is read once a second at most.
    """
    health = context().reader.health()
    if health.error:
        return as_json({"ok": False, "error": health.error}, 503)
    ok = not any(health.stale.values()) and not any(health.outages.values())
    ages = {
        pool: {"age_s": age_s, "stale": health.stale[pool], "outage": health.outages[pool]}
        for pool, age_s in health.ages_s.items()
    }
    return as_json({"ok": ok, "pools": ages}, 200 if ok else 503)


@contextmanager
def _filtered_changes() -> Iterator[list[Change]]:
    """The Changes that the query string selects; without `since` all."""
    try:
        chosen = audit.filter_of({"since": "all", **request.args})
    except audit.FilterError as error:
        abort(400, str(error))
    limit = int(query_number("limit", audit.MAX_CHANGES, most=audit.MAX_CHANGES, least=1))
    since_unix_s = query_number("since_unix_s", 0.0, most=MAX_UNIX_S)
    reader = context().reader
    with reader.one_request() as journal, _too_much_is_refused():
        offset = (chosen.page - 1) * limit
        yield audit.find(journal, chosen, reader.clock(), limit, offset, since_unix_s, MOST_BYTES)


@contextmanager
def _too_much_is_refused() -> Iterator[None]:
    """Aborts with 400 where an answer would be too large."""
    try:
        yield
    except ValueError as error:
        abort(400, str(error))
