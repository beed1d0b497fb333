"""What happened, in lines for people: what was injected when, and which invariant broke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.schedule import Injection

BEFORE_S = 90.0
"""Faults that were over for longer than this before an invariant broke are left out."""


@dataclass(frozen=True)
class Broken:
    """An invariant that did not hold."""

    at_s: float
    invariant: str
    what: str


def story(seed: int, done: Sequence[Injection], broken: Sequence[Broken], command: str) -> str:
    """A short one: for each broken invariant the faults before it, and the command that injects the same again."""
    lines = [f"seed {seed}: {len(done)} faults, {len(broken)} broken invariants"]
    for breach in broken:
        lines.append("")
        near = [fault for fault in done if breach.at_s - BEFORE_S <= fault.end_s and fault.at_s <= breach.at_s]
        lines += [f"  {fault.at_s:7.1f} s  {fault} for {fault.seconds:g} s" for fault in near]
        lines.append(f"  {breach.at_s:7.1f} s  BROKEN {breach.invariant}: {breach.what}")
    if broken:
        lines += ["", f"again: {command}"]
    return "\n".join(lines)
