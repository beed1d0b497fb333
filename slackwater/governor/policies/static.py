"""`static`: all cores at the highest clock, always. Heimdall's baseline (Eggen and Eggen 2019, section 4.1.8)."""

from __future__ import annotations

from slackwater.governor.types import Action, Configuration, Hardware, Observation, whole


class Static:
    name = "static"
    period_s = 1.0

    def __init__(self, hardware: Hardware, configuration: Configuration | None = None) -> None:
        """`configuration`: another than the highest, as the kernel's governor `powersave` has it."""
        self._action = whole(configuration or hardware.highest)

    def start(self) -> Action:
        return self._action

    def decide(self, seen: Observation) -> Action:  # noqa: ARG002
        return self._action
