"""The real dashboard over a recording's journal, on this machine only."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from slackwater.controller.playback.clock import Clock
from slackwater.controller.playback.events import Plays
from slackwater.core.config import ControllerSettings
from slackwater.core.control import Refused, Request
from slackwater.web import create_app
from slackwater.web.http_server import HttpServer

HOST = "127.0.0.1"
PORT = 8099
"""The dashboard's usual port."""
NOTICE = "{sentence} Times are the recording's, and nothing can be changed."


class PageError(Exception):
    """The page cannot be served; the text has the address and the reason."""


def free_port(wanted: int | None) -> int:
    """The port to listen on: the wanted one; without a wish the usual one, or any that is free. Raises PageError."""
    for port in (PORT, 0) if wanted is None else (wanted,):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((HOST, port))
            except OSError as error:
                if wanted is None and port and error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                raise PageError(f"the page cannot listen on {HOST}:{port}: {error.strerror}; see --port") from None
            free: int = tried.getsockname()[1]
            return free
    raise PageError(f"no port of {HOST} is free")


def _refuse(pool: str, _: Request) -> str:
    raise Refused(f"{pool} is a recording: nothing can be changed")


@contextmanager
def serving(settings: ControllerSettings, port: int, clock: Clock, plays: Plays) -> Iterator[str]:
    """Serves the page in a thread; gives its address, at which it answers already. Raises PageError."""
    logging.getLogger("waitress").setLevel(logging.WARNING)
    shown = msgspec.structs.replace(settings, web=msgspec.structs.replace(settings.web, listen=f"{HOST}:{port}"))
    app = create_app(shown, clock=clock, send=_refuse, notice=NOTICE.format(sentence=plays.sentence))
    try:
        server = HttpServer(app, HOST, port, lambda: None)
    except OSError as error:
        raise PageError(f"the page cannot listen on {HOST}:{port}: {error.strerror}; see --port") from None
    thread = threading.Thread(target=server.run, name="page", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{port}/"
    finally:
        app.extensions["slackwater"].streams.stop.set()
        server.end()
        thread.join()
