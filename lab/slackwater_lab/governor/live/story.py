"""Policies on one service of the lab, round by round, each beside the same batch job."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from slackwater_lab.cluster import machine
from slackwater_lab.cluster.commit import commit
from slackwater_lab.cluster.cpusets import Cpuset
from slackwater_lab.cluster.hosts import Host, events_socket
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.machine import version_of
from slackwater_lab.cluster.paths import ROOT, LabError, program
from slackwater_lab.cluster.spawn import wait_until
from slackwater_lab.cluster.webserver import unprivileged_user
from slackwater_lab.governor.live.load import Memcached
from slackwater_lab.governor.live.machine import Place
from slackwater_lab.governor.live.phase import Seen, Task
from slackwater_lab.governor.live.policies import CORES, SHARES
from slackwater_lab.governor.live.services import MEMCACHED_PORT, SERVICES, Service

WEB_PORT = 80
READY_S = 30.0
CAPACITY_S = 4.0
LOADS = (0.15, 0.6, 0.15)
"""Steps, as shares of the capacity."""
BATCH = "stress-cpu"
SPARE_S = 60.0
"""A phase that takes this much longer than its load hangs."""
PROCESSES = {"memcached": "memcached", "web": "php-fpm: pool"}
"""Kind of service -> text in the command lines of its serving processes."""
MEASURES = (
    *("p95_ms", "p99_ms", "within_target_percent", "rps"),
    *("allowed_cores", "used_cores", "serving_cores", "batch_cores"),
)


@dataclass(frozen=True)
class LiveTest:
    """`step_s` is the length of each step of the load."""

    service: str
    policies: tuple[str, ...]
    rounds: int
    step_s: float

    @property
    def asked(self) -> Service:
        return SERVICES[self.service]

    @property
    def most_s(self) -> float:
        """The longest time that the batch job runs: every phase, with its spare time."""
        phases = len(self.policies) * self.rounds
        return CAPACITY_S + SPARE_S + phases * (len(LOADS) * self.step_s + SPARE_S)


def settings(test: LiveTest) -> LabSettings:
    """Two hosts, because a lab has no fewer; the first one serves."""
    return LabSettings(hosts=2, quota_cores=CORES, app=test.asked.app, php_children=test.asked.children)


def start_memcached(lab: Lab, host: Host) -> None:
    """Starts memcached with a thread for each core. Raises LabError when it does not answer."""
    argv = [
        *(program("memcached"), "-l", host.address, "-p", str(MEMCACHED_PORT), "-t", str(CORES)),
        *("-u", unprivileged_user()[0], "-m", "64", "-U", "0"),
    ]
    started = lab.add(lab.machines[host.name].start("memcached", argv, "memcached.log"))

    def answers() -> bool:
        with contextlib.closing(Memcached((host.address, MEMCACHED_PORT))) as client, contextlib.suppress(OSError):
            client.fill()
            return True
        return False

    wait_until(answers, f"an answer of memcached at {host.address}", READY_S, watch=[started])


def serving(lab: Lab, host: Host, kind: str) -> tuple[int, ...]:
    """The processes that work on requests; raises LabError when there are none."""
    pids = []
    for pid in lab.cgroups.pids(host.vm):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if PROCESSES[kind] in command:
                pids.append(pid)
    if not pids:
        raise LabError(f"no process of {host.name} has `{PROCESSES[kind]}` in its command line")
    return tuple(pids)


class Rounds:
    """The rounds of a lab whose service and batch job run."""

    def __init__(self, lab: Lab, test: LiveTest, place: Place) -> None:
        self._lab, self._test, self._place = lab, test, place
        self._host = lab.hosts[0]
        self._serving = serving(lab, self._host, test.asked.kind)

    def capacity_rps(self) -> float:
        """The service's capacity with all cores and clocks, in a closed loop. Raises LabError."""
        seen = self._phase("static", None, CAPACITY_S, 0)
        if not seen.rps:
            raise LabError(f"{self._test.service}: no request was answered in {CAPACITY_S:g} s")
        return seen.rps

    def measured(self, policy: str, capacity_rps: float, seed: int) -> Seen:
        """Runs a policy through the load. Raises LabError."""
        return self._phase(policy, tuple(share * capacity_rps for share in LOADS), self._test.step_s, seed)

    def _phase(self, policy: str, rates_rps: tuple[float, ...] | None, step_s: float, seed: int) -> Seen:
        asked, host = self._test.asked, self._host
        task = Task(
            service=self._test.service,
            policy=policy,
            place=self._place,
            address=(host.address, MEMCACHED_PORT if asked.kind == "memcached" else WEB_PORT),
            rates_rps=rates_rps,
            step_s=step_s,
            seed=seed,
            waiting=self._serving,
            pinned=self._serving if asked.hot else (),
            events_socket=str(events_socket(host)) if asked.hot else None,
        )
        self._lab.check()
        argv = self._lab.in_front([sys.executable, "-m", "slackwater_lab.governor.live.phase"])
        within_s = len(LOADS) * step_s + SPARE_S
        try:
            done = subprocess.run(
                argv, input=msgspec.json.encode(task), capture_output=True, cwd=ROOT, timeout=within_s
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"{policy} on {self._test.service} did not end within {within_s:g} s") from None
        if done.returncode:
            log_end = done.stderr.decode(errors="replace")[-800:]
            raise LabError(f"{policy} on {self._test.service} ended with status {done.returncode}: {log_end}")
        return msgspec.json.decode(done.stdout, type=Seen)


def run(lab: Lab, test: LiveTest, progress: Callable[[str], None]) -> dict[str, Any]:
    """Gives the JSON of the run. Raises LabError."""
    host, asked = lab.hosts[0], test.asked
    facts = machine.describe(lab) | {
        "memcached": version_of("memcached", "-V"),
        "stress_ng": version_of("stress-ng", "--version"),
    }
    if asked.kind == "memcached":
        start_memcached(lab, host)
    batch = lab.noise(host, BATCH, 1.0, test.most_s)
    with contextlib.ExitStack() as stack:
        cpusets = [stack.enter_context(Cpuset(lab.cgroups, path)) for path in (host.vm, host.neighbour)]
        place = Place(
            host.vm,
            host.neighbour,
            str(cpusets[0].file),
            str(cpusets[1].file),
            tuple(sorted(os.sched_getaffinity(0))[:CORES]),
            asked.core_share,
            asked.period_s,
        )
        rounds = Rounds(lab, test, place)
        capacity = rounds.capacity_rps()
        progress(f"{asked.description}: capacity {capacity:.0f} requests/s beside the batch job")
        rows = []
        for number in range(1, test.rounds + 1):
            # Each round begins with another policy, so that none is always the first.
            first = (number - 1) % len(test.policies)
            for policy in test.policies[first:] + test.policies[:first]:
                if batch.process.poll() is not None:
                    raise LabError(f"the batch job ended with status {batch.process.returncode}")
                row = {
                    "round": number,
                    "policy": policy,
                    **msgspec.to_builtins(rounds.measured(policy, capacity, number)),
                }
                row |= {"capacity_rps": capacity, "load_average": round(os.getloadavg()[0], 2)}
                rows.append(row)
                progress(sentence(row))
    return {
        "machine": facts,
        "commit": commit(),
        "service": asked.description,
        "settings": described(test),
        "rounds": rows,
        "summary": [summary(policy, rows) for policy in test.policies],
    }


def described(test: LiveTest) -> dict[str, Any]:
    """The settings of the test, for the JSON."""
    asked = test.asked
    return {
        "service": test.service,
        "policies": list(test.policies),
        "step_s": test.step_s,
        "target_p95_ms": asked.target_ms,
        "core_share": asked.core_share,
        "period_s": asked.period_s,
        "clock_shares": list(SHARES),
        "loads": list(LOADS),
        "closed_loop": asked.closed,
        "connections": asked.connections,
        "batch": BATCH,
    }


def summary(policy: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median, least and most of each measure over a policy's rounds; None where it was never measured."""
    own = [row for row in rows if row["policy"] == policy]
    result: dict[str, Any] = {"policy": policy}
    for measure in MEASURES:
        values = [row[measure] for row in own if row[measure] is not None]
        result[measure] = [float(np.median(values)), min(values), max(values)] if values else None
    return result | {name: sum(row[name] for row in own) for name in ("requests", "errors")}


def sentence(row: dict[str, Any]) -> str:
    """The figures of a policy's round, for the terminal."""
    p95, within = (f"{row[name]:.1f}" if row[name] is not None else "-" for name in MEASURES[:3:2])
    return (
        f"round {row['round']}, {row['policy']}: p95 {p95} ms, {within}% of the seconds within the target,"
        f" {row['errors']} errors in {row['requests']}; {row['serving_cores']:.2f} cores,"
        f" {row['allowed_cores']:.2f} of CPU time allowed, {row['used_cores']:.2f} used, batch {row['batch_cores']:.2f}"
    )
