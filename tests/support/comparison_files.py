"""Runs of comparisons as the lab would leave them, with known figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from slackwater_lab.compare import measured
from slackwater_lab.compare.measured import Block, Measured
from slackwater_lab.experiment.policies import POLICIES
from slackwater_lab.experiment.recording import Marks, Recorded, Run

LEVEL_MS = {"static": 60.0, "leastconn": 20.0, "slackwater": 10.0, "oracle": 9.0}
"""Response time of every request while the neighbour is loud."""

COST = {"monitor": {"count": 3.0, "core_share": 0.012, "rss_mib": 8.0}}
CARRIED = {"busy_share": 0.6, "wait_ms": 0.5, "late_ms": 1.0}
ON_S, OFF_S = 9.0, 24.0
SERVERS = ("host1", "host2", "host3")


def recorded(run: Run, answers_s: float | None = None, detected_s: float | None = None) -> Recorded:
    """100 requests a second for 30 s: 3 ms each, and the policy's level from 9 s to 24 s; one error in each phase.

    host1's weight falls `answers_s` after the onset, its first Verdict comes `detected_s` after it; None: neither."""
    due = np.arange(0.0, 30.0, 0.01)
    loud = (due >= ON_S) & (due < OFF_S)
    dice = np.random.default_rng(run.number)
    level = LEVEL_MS.get(run.policy, 30.0) * dice.uniform(0.98, 1.02)
    status = np.full(len(due), 200)
    status[[400, 1000, 2500]] = 503
    falls_s = np.inf if answers_s is None else ON_S + answers_s
    weights = [
        (number / 20, name, 30 if name == "host1" and falls_s <= number / 20 < OFF_S else 100, number)
        for number in range(600)
        for name in SERVERS
    ]
    verdicts: list[tuple[float, str, str]] | None = None
    neighbour = {"host": "host1", "kind": "llcprobe", "on_s": ON_S, "off_s": OFF_S}
    facts: dict[str, Any] = {"rate_rps": 100.0, "cost": COST if run.policy == "slackwater" else {}}
    facts |= {"neighbours": [neighbour], "commit": "0123456789ab", "machine_load": CARRIED}
    if detected_s is not None:
        verdicts = [
            (
                number / 5,
                name,
                "interference" if name == "host1" and ON_S + detected_s <= number / 5 < OFF_S else "calm",
            )
            for number in range(150)
            for name in SERVERS
        ]
    return Recorded(
        run=run,
        marks=Marks(3.0, ON_S, OFF_S, 30.0),
        lost=2,
        due_s=due,
        seconds=np.where(loud, level, 3.0) / 1e3,
        status=status,
        weights=weights,
        verdicts=verdicts,
        facts=facts,
    )


FACTS: dict[str, Any] = {
    **{
        "cpu": "Test CPU",
        "cores": 2,
        "last_level_cache_mib": 32.0,
        "kernel": "6.1",
        "haproxy": "2.6",
        "haproxy_command": "haproxy",
        "apache": "2.4",
    },
    **{"php": "8.2", "hosts": 3, "quota_cores": 0.4, "period_s": 0.05, "hypervisor": "none"},
}
HERE = Block("cgroup", "", 0, measured.machine_of(FACTS), "code1")


def row(scenario: str, variant: str, number: int, times: float = 1.0, **changed: Any) -> Measured:
    """A run whose figures are `times` those of every run."""
    figures: dict[str, float | None] = {"requests": 1000, "errors": 0, "errors_share": 0.0}
    figures |= {"mean_ms": 4.0, "p50_ms": 2.0, "p95_ms": 10.0, "p99_ms": 20.0, "second_means_median_ms": 4.0}
    scaled = {key: value * times if key.endswith("_ms") and value else value for key, value in figures.items()}
    whole: dict[str, Any] = {
        **{"begun": "2026-11-24T12:00:00Z", "took_s": 50.0, "machine": FACTS, "commit": "abc", "hosts": "cgroup"},
        **{"decision_commit": "code1", "scenario": scenario, "balance": POLICIES[variant].balance, "variant": variant},
        **{"round": number, "seed": 7, "capacity_rps": 900.0, "rate_rps": 450.0, "calm": figures},
        "loud": scaled | {"answers_s": 0.4, "detected_s": None, "back_s": None, "not_back": 0.0, "wrong_moves": 0},
    }
    return Measured(**whole | changed)


def rows(scenario: str, times: dict[str, float], rounds: int = 5) -> list[Measured]:
    """All rounds of a scenario; each has its own level, which its variants share, and 1% of noise between them."""
    return [
        row(scenario, variant, number, level * (1.0 + 0.2 * number) * (1.0 + 0.01 * ((number + place) % 3 - 1)))
        for number in range(1, rounds + 1)
        for place, (variant, level) in enumerate(times.items())
    ]
