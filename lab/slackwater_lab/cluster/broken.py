"""A deploy that fails: a host's application answers each request with 500 at once, as long as a mark lies beside it.

A comparison begins and ends it as a neighbour, so it has a process of the same life.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.noise import Noise, sleeper
from slackwater_lab.cluster.paths import LabError

KIND = "errors"
APP = "events"
MARK = "broken"


@dataclass
class Mark:
    """The mark of a broken application; `cleanup` repairs it."""

    path: Path

    def cleanup(self) -> None:
        self.path.unlink(missing_ok=True)


def start(host: Host, seconds: float) -> Noise:
    """Breaks the application of a host; it is broken when this returns.

    Raises LabError for another application, and for a host whose files are in a guest.
    """
    root = host.folder / APP
    if not (root / "index.php").is_file():
        raise LabError(f"{host.name}: only the application `{APP}` of a host of this machine's kernel can be broken")
    process = sleeper(seconds)
    (root / MARK).touch()
    return Noise(host.name, KIND, 1.0, process, time.monotonic(), time.time(), files=Mark(root / MARK))
