"""A restart of a host's web server, as of a deploy: it ends, its caches are emptied, and some seconds later it starts.

A comparison begins and ends it as a neighbour. It begins when the server is stopped, and ends in the time in which the
caches become warm again.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.noise import Noise, sleeper
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.cluster.spawn import Running

KIND = "restart"
AWAY_S = 3.0
"""Time from the stop of the web server to its start."""
CACHE = Path("wiki-data/cache")
"""Below a host's folder: where DokuWiki keeps its pages once they are made."""


class Restart:
    """A restart that goes on in a thread; `cleanup` waits for its end, and raises what went wrong."""

    def __init__(self, host: Host, web_server: Sequence[Running], start: Callable[[Host], None]) -> None:
        self._host, self._web_server, self._start = host, web_server, start
        self._error: LabError | None = None
        self._thread = threading.Thread(target=self._run, name=f"restart of {host.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begin_s = time.monotonic()
        try:
            for program in self._web_server:
                program.signal(signal.SIGTERM)
            for program in self._web_server:
                program.stop()
            empty(self._host.folder / CACHE)
            time.sleep(max(begin_s + AWAY_S - time.monotonic(), 0.0))
            self._start(self._host)
        except LabError as error:
            self._error = error

    def cleanup(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


def empty(cache: Path) -> None:
    """Removes what is in a cache; its marks stay."""
    for folder in [place for place in cache.glob("*") if place.is_dir()]:
        shutil.rmtree(folder)


def start(host: Host, seconds: float, web_server: Sequence[Running], start_again: Callable[[Host], None]) -> Noise:
    """Restarts a host's web server, from now on."""
    process = sleeper(seconds)
    files = Restart(host, web_server, start_again)
    return Noise(host.name, KIND, 1.0, process, time.monotonic(), time.time(), files=files)
