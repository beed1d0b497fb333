"""The policies that are compared on a live service, and the hardware that a quota makes."""

from __future__ import annotations

from collections.abc import Callable

from slackwater.governor.levers import NOMINAL_MHZ
from slackwater.governor.policies.core_switch import CoreSwitch
from slackwater.governor.policies.hurry_up import HurryUp
from slackwater.governor.policies.linux import Linux
from slackwater.governor.policies.pareto import Pareto, energy_ladder
from slackwater.governor.policies.slackwater import Slackwater
from slackwater.governor.policies.static import Static
from slackwater.governor.power import DEFAULT, hardware
from slackwater.governor.types import Hardware, Policy

CORES = 2
SHARES = (0.4, 0.6, 0.8, 1.0)
"""Clocks, as shares of the highest; those of the thesis are 0.38, 0.77 and 1."""
SLACKWATER_S = 0.2
"""As often as a node sends its Samples."""
UP_DELAY = 0.6
"""Of the target, that a request waits for a core when `pareto` goes up: 300 of 500 us, as on its authors' machine."""


def machine() -> Hardware:
    """Two cores; its power model decides for `slackwater` what is cheap, and nothing is reported of it."""
    return hardware(DEFAULT, CORES, [NOMINAL_MHZ * one for one in SHARES], busy_w=3.61, base_w=0.0, idle_w=0.65)


def three_states(of: Hardware) -> HurryUp:
    low, _, mid, high = of.clocks_mhz
    return HurryUp(of, low, mid, high)


LIVE: dict[str, Callable[[Hardware, float], Policy]] = {
    "static": lambda of, _: Static(of),
    "linux-ondemand": lambda of, _: Linux(of, "ondemand"),
    "core-switch": lambda of, _: CoreSwitch(of),
    "pareto": lambda of, target_ms: Pareto(of, energy_ladder(of), UP_DELAY * target_ms),
    "slackwater": lambda of, target_ms: Slackwater(of, target_ms, period_s=SLACKWATER_S),
    "hurry-up": lambda of, _: three_states(of),
    "hurry-up-two-states": lambda of, _: HurryUp(of, of.clocks_mhz[0], None, of.max_mhz),
}
"""Name -> makes it, for the hardware and the target of the p95 in ms."""
NEEDS_EVENTS = ("hurry-up", "hurry-up-two-states")
"""Only a service that tells of its hot function can have them."""
