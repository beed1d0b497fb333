"""A comparison's plan: every run in a random order from a seed, round by round, so that what drifts on the machine
meets all policies alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.compare.policies import POLICIES
from lab.compare.scenarios import SCENARIOS

FORMAT = 1
FILE = "plan.json"


class CompareError(Exception):
    """A comparison that cannot be run or read; the text says which file or name, and what was expected."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run: a scenario under a policy."""

    number: int
    round: int
    scenario: str
    policy: str


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked for, and the order that follows from it."""

    v: int
    seed: int
    rounds: int
    scenarios: list[str]
    policies: list[str]
    hosts: int
    quota_cores: float
    runs: list[Run]
    capacity_rps: dict[str, float] = {}
    """Of the pool in calm, by application; measured when the first run needs it, and kept for all."""
    machine: dict[str, Any] = {}

    def same_question(self, other: Plan) -> bool:
        """Both ask for the same runs in the same order."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("v", "seed", "rounds", "scenarios", "policies", "hosts", "quota_cores", "runs")
        )


def plan(
    scenarios: Sequence[str], policies: Sequence[str], rounds: int, seed: int, *, quota_cores: float = 0.4
) -> Plan:
    """All runs in order. Within a round the order is random, but runs of one application stay together, since the
    lab is started anew for another. Raises CompareError for a name that is not in the tables."""
    for names, table, what in ((scenarios, SCENARIOS, "scenario"), (policies, POLICIES, "policy")):
        if unknown := [name for name in names if name not in table]:
            raise CompareError(f"no {what} `{unknown[0]}`; there are: {', '.join(table)}")
        if len(set(names)) < len(names) or not names:
            raise CompareError(f"expected each {what} once, and one at least, got: {', '.join(names) or 'none'}")
    dice = random.Random(seed)
    runs: list[Run] = []
    for number in range(1, rounds + 1):
        pairs = [(scenario, policy) for scenario in scenarios for policy in policies]
        dice.shuffle(pairs)
        pairs.sort(key=lambda pair: SCENARIOS[pair[0]].app)
        runs += [Run(len(runs) + place, number, *pair) for place, pair in enumerate(pairs, start=1)]
    return Plan(FORMAT, seed, rounds, list(scenarios), list(policies), 3, quota_cores, runs)


def save(folder: Path, made: Plan) -> None:
    """Writes the plan, atomically. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{FILE}.new"
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    draft.replace(folder / FILE)


def load(folder: Path) -> Plan:
    """Reads a comparison's plan. Raises CompareError when there is none, or it is damaged."""
    path = folder / FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Plan)
    except FileNotFoundError:
        raise CompareError(f"{path} is missing: expected the folder of a comparison") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise CompareError(f"{path}: not the plan of a comparison: {error}") from None
    if found.v != FORMAT:
        raise CompareError(f"{path}: format {found.v}; this program reads format {FORMAT}")
    return found
