"""What the policies that run on nodes decide, over drawn inputs: written for wsengine, which must decide the same.

`python -m tests.support.fast_policies` writes the file that `wsengine/src/fast/tests.rs` reads.
"""

from __future__ import annotations

import json
import random
from typing import Any

from slackwater.governor.types import Hardware, HotEvent, Observation
from slackwater_lab.governor.policies.hurry_up import HurryUp
from slackwater_lab.governor.policies.pareto import Pareto, energy_ladder
from tests.support.paths import TRACES

RECORDED = TRACES / "fast_policies.json"
SEED, CASES, STEPS = 20150, 8, 120


def machine(cores: int, clocks: list[int]) -> Hardware:
    values = tuple(1.0 for _ in clocks)
    return Hardware(cores, tuple(float(clock) for clock in clocks), 1.0, values, values)


def hurry_up(draw: random.Random) -> dict[str, Any]:
    """Cores are threads in wsengine. Some functions are shorter than a period, some longer than the threshold."""
    threads = draw.randint(1, 4)
    clocks = draw.choice([[1000, 2600], [1000, 2000, 2600], [20, 40, 60]])
    period_s, after_s = draw.choice([0.05, 0.1]), draw.choice([0.0, 0.1, 0.35, 0.45])
    mid = float(clocks[1]) if len(clocks) == 3 else None
    policy = HurryUp(machine(threads, clocks), float(clocks[0]), mid, float(clocks[-1]), threshold_s=after_s)
    steps = []
    for number in range(1, STEPS + 1):
        now_s = round(number * period_s, 6)
        events = sorted(
            (round(now_s - draw.random() * period_s, 6), draw.randrange(threads), draw.random() < 0.5)
            for _ in range(draw.choice([0] * 9 + [1, 1, 5]))
        )
        seen = tuple(HotEvent(core, time_s, entered) for time_s, core, entered in events)
        clocks_mhz = policy.decide(Observation(now_s, events=seen)).clocks_mhz
        steps.append({"now_s": now_s, "events": events, "clocks": [round(clock_mhz) for clock_mhz in clocks_mhz]})
    return {"threads": threads, "clocks": clocks, "after_s": after_s, "steps": steps}


def pareto(draw: random.Random) -> dict[str, Any]:
    """Delays around both thresholds, load around what a rung is worth."""
    cores, clocks = draw.randint(1, 4), draw.choice([[1000, 2600], [800, 1600, 2400], [10, 20, 40, 60]])
    up_delay_ms = draw.choice([0.3, 2.0, 20.0])
    hardware = machine(cores, clocks)
    policy = Pareto(hardware, energy_ladder(hardware), up_delay_ms)
    steps = []
    now_s, is_calm = 0.0, True
    for _ in range(STEPS):
        now_s = round(now_s + draw.choice([0.1, 0.1, 0.9]), 6)
        is_calm = is_calm if draw.random() < 0.95 else not is_calm
        busy = round(draw.uniform(0.0, 0.6) if is_calm else draw.uniform(0.4, 1.0), 3)
        delay_ms = round(draw.choice([0.0, 0.1, 0.24] if is_calm else [0.1, 0.25, 0.9, 1.0, 1.1]) * up_delay_ms, 6)
        action = policy.decide(Observation(now_s, queue_delay_ms=delay_ms, busy_shares=(busy,)))
        steps.append(
            {
                "now_s": now_s,
                "delay_ms": delay_ms,
                "busy": busy,
                "cores": len(action.cores),
                "clock": round(action.clocks_mhz[0]),
            }
        )
    return {"cores": cores, "clocks": clocks, "up_delay_ms": up_delay_ms, "steps": steps}


def written() -> str:
    """The file, one case a line."""
    draw = random.Random(SEED)
    cases = {"hurry_up": [hurry_up(draw) for _ in range(CASES)], "pareto": [pareto(draw) for _ in range(CASES)]}
    lines = (
        f'"{name}": [\n' + ",\n".join(json.dumps(case, separators=(",", ":")) for case in several) + "\n]"
        for name, several in cases.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    RECORDED.write_text(written())
