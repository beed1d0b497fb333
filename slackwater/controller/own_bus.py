"""The controller's own nats-server, as commands of people change it, and what a monitor that logs in to it adds."""

from __future__ import annotations

import signal
from pathlib import Path

from slackwater.core.config import ConfigError, ControllerSettings, load
from slackwater.core.state_dir import read_serve, running_serve, send_signal

ADDS = (
    "the cause (a neighbour, and what it takes), earlier notice, signs that a drained server is well again, and the"
    " second stage, which retunes a web server"
)
"""What a monitor on a web server adds to what its balancer sees."""


def private(config_path: Path) -> ControllerSettings:
    """The settings of a controller with a nats-server of its own. Raises ConfigError."""
    settings = load(config_path)
    if settings.bus.url:
        raise ConfigError(f"{config_path}: bus.url names a nats-server of yours: use `slackwater bus config`")
    return settings


def taken_over(settings: ControllerSettings) -> None:
    """Has a nats-server that runs read its configuration again."""
    if running_serve(settings.state_dir) is None:
        return
    folder = Path(settings.state_dir)
    pid = (read_serve(folder) or {}).get("children", {}).get("nats-server")
    if isinstance(pid, int):
        send_signal(folder, pid, signal.SIGHUP)
