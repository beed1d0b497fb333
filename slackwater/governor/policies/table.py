"""The table of policies: the governor, its commands and the lab make them here, by the words of `governor.policy`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slackwater.governor.policies.core_switch import CoreSwitch
from slackwater.governor.policies.linux import Linux
from slackwater.governor.policies.parties import Parties
from slackwater.governor.policies.pegasus import Pegasus
from slackwater.governor.policies.slackwater import Slackwater
from slackwater.governor.policies.static import Static
from slackwater.governor.types import Configuration, Hardware, Policy


@dataclass(frozen=True)
class Conditions:
    """The machine and the target that a policy is made for."""

    hardware: Hardware
    target_ms: float
    """The target of the p95."""
    candidates: Sequence[Configuration] = ()
    """The configurations that can be set; empty: all of the hardware."""
    period_s: float = 0.02
    """How often `slackwater` decides; the others have periods of their own."""
    seed: int = 0
    most_rps: float = 0.0
    """The highest load, for policies of papers that must know it."""


Make = Callable[[Conditions], Policy]
POLICIES: dict[str, Make] = {
    "slackwater": lambda given: Slackwater(
        given.hardware, given.target_ms, candidates=given.candidates, period_s=given.period_s
    ),
    "static": lambda given: Static(given.hardware),
    "linux-ondemand": lambda given: Linux(given.hardware, "ondemand"),
    "linux-schedutil": lambda given: Linux(given.hardware, "schedutil"),
    "pegasus": lambda given: Pegasus(given.hardware, given.target_ms),
    "core-switch": lambda given: CoreSwitch(given.hardware),
    "parties": lambda given: Parties(given.hardware, given.target_ms, given.seed),
}
