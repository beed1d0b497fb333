"""The dashboard: pages and API over the journal. It never writes; what operators want done it asks of lbengine.

`create_app` makes the Flask application; `web.service` serves it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from flask import Flask

from slackwater import __version__
from slackwater.bus.bus import BusError
from slackwater.config import ControllerSettings
from slackwater.control import Request
from web import api, controls, live, login, metrics, pages, security
from web.ask import Ask
from web.reader import Reader

__all__ = ["create_app"]


def _nobody(pool: str, _: Request) -> str:
    raise BusError(f"pool {pool}: there is nobody to ask")


def create_app(settings: ControllerSettings, *, clock: Callable[[], float] = time.time, ask: Ask = _nobody) -> Flask:
    """The application for these settings; `clock` gives the wall time in seconds, `ask` carries out controls.

    The journal need not be there yet: the page says so until it is.
    """
    app = Flask(__name__)
    app.jinja_env.trim_blocks = True
    app.jinja_env.lstrip_blocks = True
    app.jinja_env.globals["version"] = __version__
    reader = Reader(settings, clock)
    gate = login.Gate(settings, clock)
    security.protect(app, settings.web.listen, settings.web.hosts)
    login.protect(app, gate, settings)
    app.register_blueprint(pages.blueprint(reader))
    app.register_blueprint(controls.blueprint(settings, gate, ask))
    app.register_blueprint(api.blueprint(reader, gate, ask))
    app.register_blueprint(live.blueprint(reader))
    app.register_blueprint(metrics.blueprint(reader))
    return app
