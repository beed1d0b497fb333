"""The governor on real hosts of the lab: it takes cores and CPU time at low load, gives them back when load rises, and
puts everything back when it stops and when it is killed.

The same loads run twice, without the governor and with it. A quota stands in for the clock: there is no cpufreq. So CPU
time that it takes away is no energy saved; what is shown is the loop, not watts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from slackwater.core.config import NODE_POLICIES
from slackwater.core.messages import GOVERNOR, WSENGINE, Change, Governed, Mode
from slackwater_lab.cluster import machine
from slackwater_lab.cluster.background import Background
from slackwater_lab.cluster.bus import POOL
from slackwater_lab.cluster.commit import commit
from slackwater_lab.cluster.controller import CONTROLLER_FILE, Controller
from slackwater_lab.cluster.cpusets import Cpuset
from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand, Floats, Requests
from slackwater_lab.cluster.retunable import KEY_FILE, make_keys, start_wsengines
from slackwater_lab.cluster.spawn import wait_until
from slackwater_lab.experiment.measures import figures
from slackwater_lab.experiment.steady import SETTLE_S, WARM_UP_S, capacity_rps

HOSTS = 2
QUOTA_CORES = 1.2
PERIOD_S = 0.02
KNOBS = {"cpu": {"cores": "[1, 64]", "quota": "[10, 800]"}}
ON_NODE = {"policy": json.dumps(NODE_POLICIES)}
"""Further knobs for policies that run on the node."""
APP = {"hurry-up": "search"}
"""Applications for policies that need their events; `events` for others."""
LEASE_S = 10.0
LOWER_EVERY_S = 3.0
LOOK_S = 0.1
WITHIN_S = 90.0
MANY = 10_000
PHASES = (("low", 0.05), ("high", 0.4), ("low again", 0.05))
"""Load as a share of the capacity without the governor."""


def knobs(policy: str) -> dict[str, dict[str, str]]:
    """Section -> knob -> allowed values, as TOML."""
    return {"cpu": {**KNOBS["cpu"], **(ON_NODE if policy in NODE_POLICIES else {})}}


@dataclass(frozen=True)
class GovernorTest:
    """The settings of a test; `seconds` is the length of each phase."""

    target_p95_ms: float
    seconds: float
    policy: str


@dataclass(frozen=True)
class CpuLimits:
    """A host's cores and quota, as the kernel shows them."""

    cores: int
    quota_cores: float


class GovernedController(Controller):
    """The controller in `act` mode; the governor acts, or is `off`."""

    def __init__(self, lab: Lab, test: GovernorTest) -> None:
        self._test, self._governor = test, "off"
        super().__init__(lab, "act")

    def write(self, mode: Mode) -> None:
        super().write(mode)
        rows = {
            "mode": self._governor,
            "policy": self._test.policy,
            "lease_s": LEASE_S,
            "lower_every_s": LOWER_EVERY_S,
        }
        target = f"[[pool]]\ntarget_p95_ms = {self._test.target_p95_ms}\n"
        text = CONTROLLER_FILE.read_text().replace("[[pool]]\n", target)
        text += f'\n[retune]\norder_key = "{KEY_FILE}"\n[governor]\n'
        CONTROLLER_FILE.write_text(text + "".join(f"{name} = {json.dumps(value)}\n" for name, value in rows.items()))

    def turn(self, governor: str) -> None:
        """Starts anew with the governor `off`, or in `act`."""
        self._governor = governor
        self.restart("act")

    def reports(self) -> list[Governed]:
        """The governor's last report of each host."""
        if self.journal is None or self._governor == "off":
            return []
        return [report for report, _ in self.journal.latest_governed(POOL).values()]

    def changes(self, since_unix_s: float) -> list[Change]:
        """Changes by the governor and by wsengines since then, the oldest first."""
        changes = self.journal.changes(POOL, MANY, since_unix_s) if self.journal is not None else []
        return [change for change in reversed(changes) if change.by in (GOVERNOR, WSENGINE)]

    def kill(self) -> None:
        """The governor and the supervisor by SIGKILL; the latter is frozen first, so that it starts nothing again."""
        pid = self.child_pid(GOVERNOR)
        if self.program is None or pid is None:
            return
        self.program.signal(signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        self.program.signal(signal.SIGKILL)
        self.stop()


class Watch(Background):
    """Reads the hosts' cores and quotas and the governor's reports ten times a second."""

    def __init__(self, look: Callable[[], list[CpuLimits]], controller: GovernedController) -> None:
        super().__init__("watch")
        self._look, self._controller = look, controller
        self.seen: list[tuple[float, list[CpuLimits], list[Governed]]] = []

    def _run(self) -> None:
        while not self._end.wait(LOOK_S):
            self.seen.append((time.monotonic(), self._look(), self._controller.reports()))


class GovernorStory:
    """Runs the loads and the two ends in one lab."""

    def __init__(
        self, lab: Lab, test: GovernorTest, cpusets: Sequence[Cpuset], progress: Callable[[str], None]
    ) -> None:
        self._lab, self._test, self._cpusets, self._progress = lab, test, cpusets, progress
        self._controller = GovernedController(lab, test)
        self._own = self.limits()

    def limits(self) -> list[CpuLimits]:
        """Each host, from the kernel's files."""
        return [self._limits_of(host, cpuset) for host, cpuset in zip(self._lab.hosts, self._cpusets, strict=True)]

    def _limits_of(self, host: Host, cpuset: Cpuset) -> CpuLimits:
        cpu = self._lab.cgroups.roots[0] / host.vm
        if self._lab.cgroups.version == 2:
            quota, period = (cpu / "cpu.max").read_text().split()
        else:
            quota, period = ((cpu / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        cores = count(cpuset.file.read_text())
        return CpuLimits(cores, float(cores) if quota in ("max", "-1") else min(float(cores), int(quota) / int(period)))

    def _phases(self, capacity: float) -> list[dict[str, Any]]:
        rows = []
        for name, share in PHASES:
            with Watch(self.limits, self._controller) as watch:
                load = self._lab.load(Demand(rate_rps=share * capacity), self._test.seconds)
                self._lab.check()
                requests = load.finish()
            row = {"phase": name, "load": share, **self._measured(requests, watch, load.begin_mono_s)}
            self._progress(sentence(row))
            rows.append(row)
        return rows

    def _measured(self, requests: Requests, watch: Watch, begin_s: float) -> dict[str, Any]:
        """The figures of a phase, without its first `SETTLE_S`; seconds above the target are of the whole phase."""
        end_s = begin_s + self._test.seconds
        settled = figures(requests, requests.due_mono_s, begin_s + SETTLE_S, end_s)
        whole = figures(requests, requests.due_mono_s, begin_s, end_s, requests.lost_count)
        seconds = second_p95s_ms(requests, begin_s, end_s)
        inside = [(limits, reports) for at_s, limits, reports in watch.seen if begin_s + SETTLE_S <= at_s < end_s]
        all_limits = [host for limits, _ in inside for host in limits]
        all_reports = [report for _, reports in inside for report in reports]
        return {
            "p95_ms": settled["p95_ms"],
            "seconds_within_target": float(np.mean(seconds[:, 1] <= self._test.target_p95_ms))
            if len(seconds)
            else None,
            "late": [[int(at_s), round(float(ms), 1)] for at_s, ms in seconds if ms > self._test.target_p95_ms],
            "errors": whole["errors"],
            "requests": whole["requests"],
            "cores_mean": float(np.mean([host.cores for host in all_limits])),
            "cpu_cores_mean": float(np.mean([host.quota_cores for host in all_limits])),
            "last": [asdict(host) for host in inside[-1][0]],
            "interference_share": float(np.mean([report.interference for report in all_reports]))
            if all_reports
            else None,
        }

    def _wait(self, happened: Callable[[], bool], awaited: str) -> float:
        return wait_until(happened, awaited, WITHIN_S, watch=self._lab.programs)

    def _under_load(self, capacity: float, act: Callable[[], float]) -> float:
        """Runs `act` under low load; gives what it returns, in seconds."""
        load = self._lab.load(Demand(rate_rps=PHASES[0][1] * capacity), 3 * WITHIN_S)
        try:
            return act()
        finally:
            load.stop()

    def run(self) -> dict[str, Any]:
        """Gives the JSON of the run. Raises LabError."""
        facts = machine.describe(self._lab)
        capacity = capacity_rps(self._lab)
        own = self._own[0]
        self._progress(
            f"capacity without the governor: {capacity:.0f} requests/s; each host has {own.cores} cores and a quota of"
            f" {own.quota_cores:g} cores"
        )
        make_keys()
        warm = self._lab.load(Demand(rate_rps=PHASES[0][1] * capacity), WARM_UP_S)
        self._controller.start()
        start_wsengines(self._lab, POOL, knobs(self._test.policy))
        warm.finish()
        phases = {"without": self._phases(capacity)}
        self._controller.turn("act")
        since_unix_s = time.time()
        phases["with"] = self._phases(capacity)
        changes = [asdict_of(change) for change in self._controller.changes(since_unix_s)]

        def is_lowered() -> bool:
            return all(limits != own for limits, own in zip(self.limits(), self._own, strict=True))

        def is_back() -> bool:
            return self.limits() == self._own

        def killed() -> float:
            self._wait(is_lowered, "less at low load, before the kill")
            self._controller.kill()
            return self._wait(is_back, "as before, after the kill")

        def stopped() -> float:
            self._controller.start()
            self._wait(is_lowered, "less at low load, before the stop")
            begin_s = time.monotonic()
            self._controller.stop()
            self._wait(is_back, "as before, after the stop")
            return time.monotonic() - begin_s

        killed_s = self._under_load(capacity, killed)
        self._progress(f"killed with SIGKILL: as before {killed_s:.1f} s later; lease {LEASE_S:g} s")
        stopped_s = self._under_load(capacity, stopped)
        self._progress(f"stopped: as before {stopped_s:.1f} s later")
        return {
            "machine": facts,
            "commit": commit(),
            "settings": {**asdict(self._test), "lease_s": LEASE_S, "lower_every_s": LOWER_EVERY_S},
            "capacity_rps": capacity,
            "without_governor": [asdict(host) for host in self._own],
            "phases": phases,
            "changes": changes,
            "killed_back_s": killed_s,
            "stopped_back_s": stopped_s,
        }


def run(lab: Lab, test: GovernorTest, progress: Callable[[str], None]) -> dict[str, Any]:
    """Makes the hosts' cgroups and cpusets, and runs the story; gives its JSON. Raises LabError."""
    with contextlib.ExitStack() as stack:
        cpusets = []
        for host in lab.hosts:
            lab.cgroups.make(host.vm, quota_cores=lab.settings.quota_cores, period_s=lab.settings.period_s)
            cpusets.append(stack.enter_context(Cpuset(lab.cgroups, host.vm)))
        return GovernorStory(lab, test, cpusets, progress).run()


def asdict_of(change: Change) -> dict[str, Any]:
    return {"time_unix_s": change.time_unix_s, "by": change.by, "what": change.what, "before": change.before} | {
        "after": change.after,
        "why": change.why,
        "applied": change.applied,
        "cause": change.cause,
    }


def count(cores: str) -> int:
    """Number of cores in a list such as `0-2,4`."""
    ranges = [part.split("-") for part in cores.strip().split(",") if part]
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)


def second_p95s_ms(requests: Requests, begin_s: float, end_s: float) -> Floats:
    """(N, 2) each second with requests, counted from the begin, and the p95 of the requests that were due in it."""
    due = (requests.due_mono_s >= begin_s) & (requests.due_mono_s < end_s)
    second = np.floor(requests.due_mono_s[due] - begin_s).astype(np.int64)
    times_ms = 1e3 * requests.seconds[due]
    return np.array([(number, np.percentile(times_ms[second == number], 95)) for number in np.unique(second)]).reshape(
        -1, 2
    )


def sentence(row: dict[str, Any]) -> str:
    """A phase's figures, for the terminal."""
    within = row["seconds_within_target"]
    return (
        f"{row['phase']}, load {row['load']:.0%}: p95 {row['p95_ms']:.1f} ms, {within:.1%} of the seconds within the"
        f" target, {row['errors']} errors in {row['requests']}; of each host on average {row['cores_mean']:.2f} cores"
        f" and {row['cpu_cores_mean']:.2f} cores of CPU time"
    )
