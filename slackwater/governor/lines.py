"""The governor's messages as lines for people."""

from __future__ import annotations

from slackwater.core.messages import Governed

FRESH_S = 5.0
"""The governor publishes each second; an older message says nothing of now."""


def as_line(message: Governed) -> str:
    """`web1: 21.5 requests/s, p95 61 ms of 150 ms; 2 cores -> 1 core, quota 60% of their time: why`."""
    if message.cores is None or message.wanted_cores is None:
        return f"{message.node}: {message.why}"
    p95 = "no p95" if message.rt_p95_ms is None else f"p95 {message.rt_p95_ms:.3g} ms of {message.target_p95_ms:g} ms"
    load = "" if message.rps is None else f"{message.rps:.3g} requests/s, "
    now = _configuration(message.cores, message.clock_share, message.clock_knob)
    wanted = _configuration(message.wanted_cores, message.wanted_clock_share, message.clock_knob)
    verb = "sets" if message.mode == "act" else "would set"
    change = f"{now}, {verb} {wanted}" if now != wanted else f"{now}, stays"
    return f"{message.node}: {load}{p95}; {change}{_batch(message.batch_cores)}: {message.why}"


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
