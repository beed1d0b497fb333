"""The dashboard: one live page over the journal, and the same as JSON. It reads, it never writes.

`create_app` makes the Flask application; `web.service` serves it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from flask import Flask

from slackwater import __version__
from slackwater.config import ControllerSettings
from web import api, live, pages, security
from web.reader import Reader

__all__ = ["create_app"]


def create_app(settings: ControllerSettings, *, clock: Callable[[], float] = time.time) -> Flask:
    """The application for these settings; `clock` gives the wall time in seconds.

    The journal need not be there yet: the page says so until it is.
    """
    app = Flask(__name__)
    app.jinja_env.trim_blocks = True
    app.jinja_env.lstrip_blocks = True
    app.jinja_env.globals["version"] = __version__
    reader = Reader(settings, clock)
    security.protect(app, settings.web.listen)
    app.register_blueprint(pages.blueprint(reader))
    app.register_blueprint(api.blueprint(reader))
    app.register_blueprint(live.blueprint(reader))
    return app
