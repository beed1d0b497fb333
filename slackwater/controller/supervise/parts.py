"""The parts that `serve` runs, each part's command, and how long it may be silent."""

from __future__ import annotations

import fcntl
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from slackwater.controller.supervise.children import SilenceLimits
from slackwater.controller.supervise.differences import (
    BALANCER_VIEW,
    GOVERNOR,
    LBENGINE,
    OTLP,
    PARTS,
    REPLACE,
    RETUNE,
    WEB,
)
from slackwater.core.config import ControllerSettings, LbengineSettings, parse

START_WITHIN_S = 300.0
"""Time until a part's first progress: the first start after an update may convert a large journal."""
OTHERS_SILENT_S = 20.0


def names_of(settings: ControllerSettings) -> list[str]:
    """The parts that run with these settings, in the order in which they start."""
    off = {RETUNE} if settings.retune.mode == "off" else set()
    off |= {GOVERNOR} if settings.governor.mode == "off" else set()
    off |= set() if settings.replace.command else {REPLACE}
    off |= {BALANCER_VIEW} if settings.balancer_view.mode == "off" else set()
    off |= set() if settings.web.listen else {WEB}
    off |= set() if settings.otlp.endpoint else {OTLP}
    return [name for name in PARTS if name not in off]


def lbengine_silent_s(settings: LbengineSettings) -> float:
    """How long lbengine may be silent: a cycle comes round even when the balancer twice takes all the time it has."""
    return settings.cycle_s + 2 * settings.socket_timeout_s


def limits_of(name: str, settings: ControllerSettings) -> SilenceLimits:
    silent_s = OTHERS_SILENT_S
    if name == LBENGINE:
        silent_s = lbengine_silent_s(settings.lbengine)
    elif name == BALANCER_VIEW:
        silent_s += 2 * settings.lbengine.socket_timeout_s  # while a balancer hangs
    return SilenceLimits(START_WITHIN_S, silent_s)


@dataclass(frozen=True)
class SettingsInForce:
    """Settings, and their text where the parts read it: a file in memory, of which they inherit the descriptor.

    What stands in the controller's file counts only after it was accepted: a part that is started again after a crash
    gets the same settings as before.
    """

    settings: ControllerSettings
    path: Path
    """The file that the settings came from, for messages."""
    text: str
    fd: int

    @classmethod
    def of(cls, text: str, path: Path) -> SettingsInForce:
        """The settings of this text. Raises ConfigError for a text that is not accepted."""
        settings = parse(text, str(path))
        fd = os.memfd_create("slackwater-settings", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(fd, "wb", closefd=False) as file:
            file.write(text.encode())
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        return cls(settings, path, text, fd)

    def command(self, *words: str) -> list[str]:
        """A command of ours that reads these settings; it needs `fd`."""
        ours = [sys.executable, "-P", "-m", "slackwater.controller.cli.main", *words]
        return [*ours, "--config", str(self.path), "--settings-fd", str(self.fd)]

    def close(self) -> None:
        os.close(self.fd)


def read_settings(fd: int, path: Path) -> ControllerSettings:
    """The settings that `SettingsInForce` holds, for the part that inherited `fd`."""
    with open(fd, "rb") as file:
        data = os.pread(fd, os.fstat(file.fileno()).st_size, 0)
    return parse(data.decode(), str(path))
