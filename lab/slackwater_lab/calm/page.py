"""The page of the calm, drawn from its data file alone."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from slackwater_lab.calm import summary
from slackwater_lab.calm.data import Minute
from slackwater_lab.calm.machine_load import RULE
from slackwater_lab.calm.plan import LEVELS_S, PLACES_PER_HOUR
from slackwater_lab.cells import templates
from slackwater_lab.cluster.commit import DECISION_CODE
from slackwater_lab.cluster.lab import HYPERVISORS
from slackwater_lab.compare.measured import machine_of
from slackwater_lab.disturb import swing
from slackwater_lab.disturb.timetable import DISTURBANCE_S, DISTURBANCES
from slackwater_lab.disturb.turn import AFTER_S

TEMPLATES = templates("slackwater_lab.calm")


def page(minutes: Sequence[Minute], data: str, place: str) -> str:
    """The page in Markdown; `data` and `place` are the paths of the data file and of this page in the commands."""
    current = summary.of_one_state(minutes)
    files = ["--data", data, "--page", place]
    return TEMPLATES.get_template("calm.md.jinja").render(
        commands=Counter(_command(minute, files) for minute in current),
        example=_example(files),
        replay=shlex.join(["slackwater", "lab", "calm", *files, "--replay"]),
        minutes=current,
        view=current[-1].view if current else "monitors",
        are_guests=bool(current) and _are_guests(current[-1]),
        others=len(minutes) - len(current),
        total=summary.summary(current),
        word=summary.reached(summary.rates(current)[0]),
        goal_per_node_day=summary.GOAL_PER_NODE_DAY,
        goal_node_days=summary.GOAL_NODE_DAYS,
        episodes=[(minute, began) for minute in current for began in summary.episodes([minute])],
        begun=sorted(minute.begun[:10] for minute in current),
        machines=Counter(_machine(minute) for minute in current),
        fleets=Counter(_fleet(minute) for minute in current),
        commits=Counter(minute.commit or "not recorded" for minute in current),
        decision_code=DECISION_CODE,
        rule=RULE,
        places_per_hour=PLACES_PER_HOUR,
        lasts_s=DISTURBANCE_S,
        after_s=AFTER_S,
        levels_s=LEVELS_S,
        low=swing.LOW,
        high=swing.HIGH,
    )


def _command(minute: Minute, files: Sequence[str]) -> str:
    unseen = {"clock_step"} if minute.view == "balancer" else set()
    kinds = ["all"] if set(minute.kinds) == set(DISTURBANCES) - unseen else minute.kinds
    hosts = f"uml:{minute.hosts}" if _are_guests(minute) else str(minute.hosts)
    words = [
        *("slackwater", "lab", "calm", "--hosts", hosts, "--pools", str(minute.pools)),
        *("--quota", f"{minute.quota_cores:g}", "--period-ms", f"{1000 * minute.period_s:g}"),
        *("--load", f"{minute.load:g}", "--seed", str(minute.seed)),
        *(word for kind in kinds for word in ("--disturbance", kind)),
        *(("--per-hour", str(minute.per_hour)) if kinds else ()),
        *(("--view", minute.view) if minute.view != "monitors" else ()),
    ]
    return shlex.join([*words, *files])


def _are_guests(minute: Minute) -> bool:
    return bool(minute.machine["hypervisor"] == HYPERVISORS["uml"])


def _example(files: Sequence[str]) -> str:
    fleet = ["--hosts", "40", "--quota", "0.2", "--period-ms", "100"]
    return shlex.join(["slackwater", "lab", "calm", *fleet, "--disturbance", "all", *files])


def _machine(minute: Minute) -> str:
    facts = minute.machine
    return f"{machine_of(facts)}, HAProxy {facts['haproxy']}, Apache {facts['apache']}, PHP {facts['php']}"


def _fleet(minute: Minute) -> str:
    return (
        f"{minute.hosts} hosts of {minute.quota_cores:g} core each {1000 * minute.period_s:g} ms in {minute.pools}"
        f" pools, {minute.machine['hypervisor']}; `{minute.app}`, `{minute.balance}`;"
        f" full load {minute.load:.0%} of the processors, {minute.capacity_rps:.0f} requests/s"
    )
