"""A node whose policy runs on the node itself: `hurry-up`, `pareto`. The governor chooses it with its parameters, as
the value of the knob `cpu.policy`, and takes it back beside a neighbour. Touches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.core.config import NODE_POLICY, GovernorSettings
from slackwater.core.messages import Governed, Knobs, Mode, Traffic
from slackwater.governor.levers import CORES, QUOTA
from slackwater.governor.node import STALE_S, GovernedNode
from slackwater.governor.types import Observation
from slackwater.orders.knobs import Value, allows, can_be_set

CORE_FREQUENCY = "cpu.core_frequency"
HURRY_UP = "hurry-up"


@dataclass(frozen=True)
class ChosenPolicy:
    """A policy with its parameters."""

    value: str
    """The value of the knob `cpu.policy`."""
    lever: str
    """The knob that stands for the clock."""
    why: str
    """The reason, in words."""


def choose_policy(settings: GovernorSettings, knobs: Knobs, cores: int) -> ChosenPolicy | str:
    """The policy for a node, or why there is none. `cores`: of the node, where `cpu.cores` does not tell."""
    states = {knob.name: knob for knob in knobs.knobs if can_be_set(knob)}
    runs = states.get(NODE_POLICY)
    if runs is None or settings.policy not in runs.words:
        return f"the node's wsengine does not list `{NODE_POLICY}` with {settings.policy}"
    own_cores = states.get(CORES) if CORES in settings.knobs else None
    if own_cores is not None and isinstance(own_cores.baseline, int):
        cores = own_cores.baseline
    if CORE_FREQUENCY in states and len(settings.clocks_mhz) > 1:
        lever, unit = CORE_FREQUENCY, " kHz"
        clocks = [round(1000.0 * mhz) for mhz in settings.clocks_mhz]
    elif QUOTA in states and isinstance(quota := states[QUOTA].baseline, int):
        lever, unit = QUOTA, "% of a core's time, by a quota, which is no clock"
        cores = max(1, min(cores, -(-quota // 100)))
        clocks = sorted({max(1, int(share * quota / cores)) for share in settings.quota_shares})
    else:
        return "the node's wsengine lists no clock for the policy, and no quota to stand in for one"
    if settings.policy == HURRY_UP:
        clocks = sorted({clocks[0], clocks[(len(clocks) - 1) // 2], clocks[-1]})
        fewest = cores
        own = f"after_ms={settings.hot_after_ms}"
    else:
        fewest = max(1, min(cores, own_cores.lowest or 1)) if own_cores is not None else cores
        own = f"up_delay_us={settings.up_delay_us} fewest={fewest}"
    lowest, highest = (clocks[0], clocks[-1]) if lever == CORE_FREQUENCY else (fewest * clocks[0], cores * clocks[-1])
    if len(clocks) < 2 or not allows(states[lever], lowest, highest):
        return f"{lowest} to {highest} is not within what the node allows of `{lever}`"
    numbers = [str(clock) for clock in clocks]
    value = (
        f"{settings.policy} lever={lever} clocks={','.join(numbers)} cores={cores}"
        f" period_ms={settings.node_period_ms} {own}"
    )
    listed = f"{', '.join(numbers[:-1])} or {numbers[-1]}"
    return ChosenPolicy(value, lever, f"{settings.policy} runs on the node: {listed}{unit}")


class PolicyNode(GovernedNode):
    """All times are monotonic."""

    _chosen: ChosenPolicy | None = None

    def _decide(self, period_s: float, traffic: Traffic, cores: float, now_s: float) -> None:  # noqa: ARG002
        is_noisy, knobs = self._interference(now_s), self.fresh_knobs(now_s)
        self._shown = Observation(now_s, traffic.rps or 0.0, traffic.rt_p95_ms, interference=is_noisy)
        self._chosen, self.why = None, "the node's wsengine does not report"
        if knobs is None:
            return
        chosen = choose_policy(self._settings, knobs, max(1, round(cores)))
        if isinstance(chosen, str):
            self.why = chosen
            return
        self._chosen, self.why = chosen, chosen.why
        if is_noisy:
            self.why = "interference: as it is without the governor"
        elif self.fresh_verdict(now_s) is None:
            self.why = "no fresh Verdict: as it is without the governor"

    def target_values(self, now_s: float) -> dict[str, Value]:
        """The policy, unless nothing may be lowered now."""
        if now_s - self._seen_s > STALE_S:
            self._chosen, self.why = None, "no Samples: as it is without the governor"
        may_lower = self.fresh_verdict(now_s) is not None and not self._interference(now_s)
        if self._chosen is None or not may_lower or NODE_POLICY not in self.usable(now_s):
            return {}
        return {NODE_POLICY: self._chosen.value}

    @property
    def decision(self) -> str:
        return f"{self._chosen} {self.why}"

    def message(self, mode: Mode, now_unix_s: float, now_s: float) -> Governed:
        """Without the configuration, which the node alone knows."""
        message = super().message(mode, now_unix_s, now_s)
        message.clock_knob = self._chosen.lever if self._chosen is not None else ""
        return message
