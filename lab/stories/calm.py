"""Counts false episodes: nobody is loud, the load swings, Slackwater acts; each `interference` is one too many."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from lab.cluster import machine
from lab.cluster.bus import POOL
from lab.cluster.controller import Controller
from lab.cluster.lab import Lab
from lab.cluster.paths import LabError
from lab.disturb import swing
from lab.experiment.steady import SETTLE_S, WARM_UP_S, capacity_rps
from slackwater.messages import Change

MANY = 1_000_000


def run(lab: Lab, minutes: float, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Runs for some minutes after a warm-up; gives episodes, weight changes, requests and errors as for JSON."""
    capacity = capacity_rps(lab)
    facts = machine.describe(lab)
    progress(f"capacity {capacity:.0f} requests/s in calm; warming up")
    middle = (swing.LOW + swing.HIGH) / 2
    swing.run(lab, capacity, [swing.Level(middle, SETTLE_S)], lambda _: None)
    controller = Controller(lab, "act")
    controller.start()
    swing.run(lab, capacity, [swing.Level(middle, WARM_UP_S)], lambda _: None)
    begin_unix_s, begin_s = time.time(), time.monotonic()
    shown = 0

    def each(now: swing.Swing) -> None:
        nonlocal shown
        if (done := int(time.monotonic() - begin_s) // 30) > shown:
            shown = done
            progress(
                f"{done * 30} s: load {now.share:.0%}, {len(found(controller, begin_unix_s))} episodes, "
                f"{len(changes(controller, begin_unix_s))} weight changes"
            )

    plan = swing.levels(random.Random(seed), minutes * 60.0)
    requests, errors = swing.run(lab, capacity, plan, each)
    episodes = found(controller, begin_unix_s)
    weights = changes(controller, begin_unix_s)
    controller.stop()
    return {
        "machine": facts,
        "minutes": minutes,
        "seed": seed,
        "capacity_rps": capacity,
        "episodes": episodes,
        "weight_changes": len(weights),
        "requests": requests,
        "errors": errors,
    }


def found(controller: Controller, since_unix_s: float) -> list[dict[str, Any]]:
    """The episodes since then, also one that had begun before; raises LabError when the journal is away."""
    if controller.journal is None:
        raise LabError("the controller has no journal")
    return [
        {
            "node": span.node,
            "after_s": round(span.since_unix_s - since_unix_s, 2),
            "seconds": round(span.last_unix_s - span.since_unix_s, 2),
            "severity": span.severity,
            "path": span.path,
        }
        for span in controller.journal.states(POOL, since_unix_s)
        if span.state == "interference"
    ]


def changes(controller: Controller, since_unix_s: float) -> list[Change]:
    """Weight changes since then, the newest first."""
    if controller.journal is None:
        raise LabError("the controller has no journal")
    return [one for one in controller.journal.changes(POOL, MANY, since_unix_s) if one.what == "weight"]
