"""The policies that can run on real nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slackwater.governor.policies.core_switch import CoreSwitch
from slackwater.governor.policies.linux import Linux
from slackwater.governor.policies.parties import Parties
from slackwater.governor.policies.pegasus import Pegasus
from slackwater.governor.policies.slackwater import Slackwater
from slackwater.governor.policies.static import Static
from slackwater.governor.types import Configuration, Hardware, Policy

Make = Callable[[Hardware, float, Sequence[Configuration]], Policy]
ACTING: dict[str, Make] = {
    "slackwater": lambda of, target_ms, candidates: Slackwater(of, target_ms, candidates=candidates),
    "static": lambda of, _target_ms, _candidates: Static(of),
    "linux-ondemand": lambda of, _target_ms, _candidates: Linux(of, "ondemand"),
    "linux-schedutil": lambda of, _target_ms, _candidates: Linux(of, "schedutil"),
    "pegasus": lambda of, target_ms, _candidates: Pegasus(of, target_ms),
    "core-switch": lambda of, _target_ms, _candidates: CoreSwitch(of),
    "parties": lambda of, target_ms, _candidates: Parties(of, target_ms),
}
"""Name -> makes it, for a machine, the target of the p95 in ms, and the configurations that can be set."""
