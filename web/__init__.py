"""The dashboard: pages and API over the journal. It never writes to it; controls are requests to lbengine.

`create_app` makes the Flask application; `slackwater.web.service` serves it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from flask import Flask

from slackwater import __version__
from slackwater.core.bus.bus import BusError
from slackwater.core.config import ControllerSettings
from slackwater.core.control import Request
from slackwater.web import access, security
from slackwater.web.blueprints import api, controls, errors, fleet, live, login, metrics, pages
from slackwater.web.content.model import Models
from slackwater.web.context import Context, SendToEngine
from slackwater.web.fleet import Fleet
from slackwater.web.reader import JournalReader
from slackwater.web.streams import Streams

__all__ = ["create_app"]


def _no_engine(pool: str, _: Request) -> str:
    raise BusError(f"pool {pool}: this dashboard has no connection to lbengine")


def create_app(
    settings: ControllerSettings,
    *,
    clock: Callable[[], float] = time.time,
    send: SendToEngine = _no_engine,
    notice: str = "",
) -> Flask:
    """The application for these settings; `clock` gives the wall time in seconds, `send` carries out controls.

    The journal need not exist yet: pages report that until it does. `notice` is shown at the top of each page.
    """
    app = Flask(__name__)
    app.jinja_env.trim_blocks = True
    app.jinja_env.lstrip_blocks = True
    app.jinja_env.globals.update(version=__version__, notice=notice)
    gate = access.Gate(settings, clock)
    reader = JournalReader(settings, clock)
    app.extensions["slackwater"] = Context(
        settings, reader, gate, send, Models(settings.detector.model), Streams(), Fleet(reader)
    )
    security.protect(app, settings.web.listen, settings.web.hosts)
    access.protect(app, gate, settings)
    for blueprint in (
        pages.pages,
        fleet.fleet,
        controls.controls,
        api.api,
        live.live,
        login.login,
        metrics.metrics,
        errors.errors,
    ):
        app.register_blueprint(blueprint)
    return app
