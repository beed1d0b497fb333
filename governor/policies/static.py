"""`static`: all cores at the highest clock, always. Heimdall's baseline (Eggen and Eggen 2019, section 4.1.8)."""

from __future__ import annotations

from governor.types import Action, Hardware, Observation, whole


class Static:
    name = "static"
    period_s = 1.0

    def __init__(self, hardware: Hardware) -> None:
        self._action = whole(hardware.highest)

    def start(self) -> Action:
        return self._action

    def decide(self, seen: Observation) -> Action:  # noqa: ARG002
        return self._action
