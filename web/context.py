"""What the endpoints share: one `Context` for each application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import msgspec
from flask import Response, abort, current_app, redirect, request, url_for

from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.control import Request
from slackwater.web.access import LOG_IN, Gate
from slackwater.web.content.model import Models
from slackwater.web.fleet import Fleet
from slackwater.web.reader import JournalReader
from slackwater.web.streams import Streams

SendToEngine = Callable[[str, Request], str]
"""(pool, request) -> lbengine's answer, a sentence. Raises control.Refused, BusError."""
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True)
class Context:
    """The parts of one application."""

    settings: ControllerSettings
    reader: JournalReader
    gate: Gate
    send: SendToEngine
    models: Models
    streams: Streams
    fleet: Fleet

    @property
    def pool_names(self) -> list[str]:
        """The configured pools, in the order of the file."""
        return [pool.name for pool in self.settings.pool]


def context() -> Context:
    """The context of the application that handles the present request."""
    context = current_app.extensions["slackwater"]
    assert isinstance(context, Context)
    return context


def pool_settings(name: str) -> PoolSettings:
    """The pool's settings; aborts with 404 if there is no such pool."""
    pool = context().reader.pool(name)
    if pool is None:
        abort(404, f"no pool `{name}`; the configuration has: {', '.join(context().pool_names)}")
    return pool


def as_json(body: Any, status: int = 200) -> Response:
    """The answer with this body as JSON."""
    return Response(msgspec.json.encode(body), status, mimetype="application/json")


def operators_only(endpoint: Endpoint) -> Endpoint:
    """Admits operators only: others get the login page, or 401 or 403."""

    @wraps(endpoint)
    def guarded(*arguments: Any, **named: Any) -> Any:
        who = context().gate.who()
        if who.role is None:
            if request.path.startswith("/api/"):
                abort(401, LOG_IN)
            asked = request.full_path.rstrip("?") if request.method == "GET" else None
            return redirect(url_for("login.show", next=asked))
        if not who.operates:
            abort(403, f"{who.name} is a viewer; this needs an operator")
        return endpoint(*arguments, **named)

    return guarded  # type: ignore[return-value]
