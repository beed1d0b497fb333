"""The policies that are compared on a live service, and the hardware that a quota makes."""

from __future__ import annotations

from slackwater.governor.levers import NOMINAL_MHZ
from slackwater.governor.policies.table import POLICIES, Conditions, Make
from slackwater.governor.power import DEFAULT, hardware
from slackwater.governor.types import Hardware, Policy
from slackwater_lab.governor.policies.hurry_up import HurryUp
from slackwater_lab.governor.policies.pareto import Pareto, energy_ladder

CORES = 2
SHARES = (0.4, 0.6, 0.8, 1.0)
"""Clocks, as shares of the highest; those of the thesis are 0.38, 0.77 and 1."""
SLACKWATER_S = 0.2
"""The period of a node's Samples."""
UP_DELAY = 0.6
"""`pareto` goes up when a request waits this share of the target for a core: 300 of 500 us in the paper."""


def machine() -> Hardware:
    """Two cores; its power model decides for `slackwater` what is cheap, and nothing is reported of it."""
    return hardware(DEFAULT, CORES, [NOMINAL_MHZ * share for share in SHARES], busy_w=3.61, base_w=0.0, idle_w=0.65)


def policy_of(name: str, processor: Hardware, target_ms: float) -> Policy:
    """Raises KeyError for another name than those of `LIVE`."""
    return LIVE[name](Conditions(processor, target_ms, period_s=SLACKWATER_S))


def three_states(processor: Hardware) -> HurryUp:
    low, _, mid, high = processor.clocks_mhz
    return HurryUp(processor, low, mid, high)


LIVE: dict[str, Make] = {
    **{name: POLICIES[name] for name in ("static", "linux-ondemand", "core-switch", "slackwater")},
    "pareto": lambda given: Pareto(given.hardware, energy_ladder(given.hardware), UP_DELAY * given.target_ms),
    "hurry-up": lambda given: three_states(given.hardware),
    "hurry-up-two-states": lambda given: HurryUp(
        given.hardware, given.hardware.clocks_mhz[0], None, given.hardware.max_mhz
    ),
}
"""The governor's own policies, and those that run on the node, as Python has them."""
NEEDS_EVENTS = ("hurry-up", "hurry-up-two-states")
"""Policies that need a service which reports its hot function."""
