"""Live updates: `/events` is a stream of server-sent events."""

from __future__ import annotations

from flask import Blueprint, Response, abort, request

from web.context import context, pool_settings
from web.streams import MAX_STREAMS

live = Blueprint("live", __name__)


@live.get("/events")
def events() -> Response:
    """Events of all pools in short, or of the one pool in the query."""
    pool = request.args.get("pool")
    if pool is not None:
        pool_settings(pool)
    stream = context().streams.open(context().reader, pool)
    if stream is None:
        abort(503, f"{MAX_STREAMS} viewers already get live updates; reload the page by hand")
    response = Response(stream, mimetype="text/event-stream")
    response.headers["X-Accel-Buffering"] = "no"
    return response
