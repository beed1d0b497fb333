"""Live updates: `/events` is a stream of server-sent events."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flask import Blueprint, Response, abort, request

from slackwater.web.context import context, pool_settings
from slackwater.web.streams import MAX_STREAMS

live = Blueprint("live", __name__)


@live.get("/events")
def events() -> Response:
    """Events of all pools in short, or of the one pool in the query."""
    pool = request.args.get("pool")
    if pool is not None:
        pool_settings(pool)
    return _stream(partial(context().reader.event_json, pool))


@live.get("/events/fleet")
def fleet_events() -> Response:
    """Events of all servers of all pools."""
    return _stream(context().fleet.event_json)


def _stream(event_json: Callable[[], bytes]) -> Response:
    stream = context().streams.open(event_json)
    if stream is None:
        abort(503, f"{MAX_STREAMS} viewers already get live updates; reload the page by hand")
    response = Response(stream, mimetype="text/event-stream")
    response.headers["X-Accel-Buffering"] = "no"
    return response
