"""What the governor sets, in lines for people."""

from __future__ import annotations

from slackwater.core.messages import Governed

FRESH_S = 5.0
"""It says something each second; what is older is of the past."""


def as_line(said: Governed) -> str:
    """`web1: 21.5 requests/s, p95 61 ms of 150 ms; 2 cores -> 1 core, quota 60% of their time: why`."""
    if said.cores is None or said.wanted_cores is None:
        return f"{said.node}: {said.why}"
    p95 = "no p95" if said.rt_p95_ms is None else f"p95 {said.rt_p95_ms:.3g} ms of {said.target_p95_ms:g} ms"
    load = "" if said.rps is None else f"{said.rps:.3g} requests/s, "
    now = _configuration(said.cores, said.clock_share, said.clock_knob)
    wanted = _configuration(said.wanted_cores, said.wanted_clock_share, said.clock_knob)
    verb = "sets" if said.mode == "act" else "would set"
    change = f"{now}, {verb} {wanted}" if now != wanted else f"{now}, stays"
    return f"{said.node}: {load}{p95}; {change}{_batch(said.batch_cores)}: {said.why}"


def _batch(cores: int | None) -> str:
    if cores is None:
        return ""
    return f", batch jobs have {_cores(cores)}" if cores else ", batch jobs stand still"


def _cores(count: int) -> str:
    return f"{count} core{'s' if count != 1 else ''}"


def _configuration(cores: int, share: float | None, knob: str) -> str:
    text = _cores(cores)
    if share is None:
        return text
    return f"{text}, quota {share:.0%}" if knob == "cpu.quota" else f"{text} at {share:.0%} of the highest clock"
