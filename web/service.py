"""The dashboard's process: serves `create_app`, with `slackwater.web.http_server`."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial

from slackwater.core import control
from slackwater.core.config import ControllerSettings, host_and_port
from slackwater.core.heartbeat import Heartbeat
from slackwater.core.stopping import stop_event
from slackwater.web import create_app, http_server, memory
from slackwater.web.security import is_loopback

log = logging.getLogger("slackwater.web")


class WebError(Exception):
    """The dashboard cannot be served; the text has the address and the reason."""


async def run(settings: ControllerSettings) -> None:
    """Serves the dashboard on `web.listen` until SIGTERM or SIGINT. Raises WebError."""
    if not settings.web.listen:
        raise WebError("web.listen is empty: there is no dashboard to serve")
    memory.limit()
    loop = asyncio.get_running_loop()
    stop = stop_event()
    host, port = host_and_port(settings.web.listen)
    app = create_app(settings, send=partial(control.send_once, settings.control_bus))
    try:
        server = http_server.HttpServer(app, host, port, Heartbeat().beat)
    except OSError as error:
        raise WebError(
            f"the dashboard cannot listen on {settings.web.listen}: {error.strerror or error}; see `web.listen`"
        ) from None
    if not is_loopback(host) and settings.web.read_without_login == "always":
        log.warning("the dashboard listens on %s without a login: everyone who reaches it can read it", host)
    log.info("dashboard: http://%s/", settings.web.listen)

    def serve() -> None:
        try:
            server.run()
        finally:
            loop.call_soon_threadsafe(stop.set)

    thread = threading.Thread(target=serve, name="waitress", daemon=True)
    thread.start()
    await stop.wait()
    app.extensions["slackwater"].streams.stop.set()
    if not thread.is_alive():
        raise WebError(f"the dashboard on {settings.web.listen} ended by itself; see the log above")
    server.end()
    await asyncio.to_thread(thread.join)
